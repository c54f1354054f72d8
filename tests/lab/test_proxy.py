"""The proxy misbehaves as it is told, and otherwise passes everything on."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tallygate.lab.drills.proxy import LATE, Proxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that says everything twice."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(client,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _answer(client: socket.socket) -> None:
    with client:
        try:
            while data := client.recv(1000):
                client.sendall(data + data)
        except OSError:
            return


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    running = Proxy(lambda: echo)
    yield running
    running.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        yield connection


def _said(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(1000)


def test_everything_passes(client: socket.socket) -> None:
    assert _said(client, b"one") == b"oneone"
    assert _said(client, b"two") == b"twotwo"


def test_a_link_that_is_cut(proxy: Proxy, client: socket.socket) -> None:
    _said(client, b"one")
    proxy.break_link("cut")
    assert client.recv(1000) == b""
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
        assert _said(again, b"two") == b"twotwo"


@pytest.mark.parametrize("fault", ["silent", "deaf"])
def test_a_link_on_which_no_answer_comes(proxy: Proxy, client: socket.socket, fault: str) -> None:
    _said(client, b"one")
    client.settimeout(0.3)
    proxy.break_link(fault)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        _said(client, b"two")
    client.settimeout(10)
    proxy.heal()
    assert client.recv(1000) == b"", "who hangs on it is told at the end"


def test_nothing_follows_what_was_swallowed(proxy: Proxy, client: socket.socket) -> None:
    """TCP has no holes: bytes after those that are gone must not arrive."""
    _said(client, b"one")
    client.settimeout(0.3)
    proxy.break_link("silent")
    with pytest.raises(TimeoutError):
        _said(client, b"two")
    proxy._fault = None  # the moment between the end of the fault and the reset
    with pytest.raises(TimeoutError):
        _said(client, b"three")


def test_a_slow_link(proxy: Proxy, client: socket.socket) -> None:
    proxy.break_link("slow")
    began = time.monotonic()
    assert _said(client, b"one") == b"oneone"
    assert time.monotonic() - began >= LATE


def test_a_fault_for_some_callers_only(proxy: Proxy, client: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as other:
        _said(client, b"broker")
        _said(other, b"client")
        proxy.break_link("cut", lambda hello: hello.startswith(b"broker"))
        assert client.recv(1000) == b""
        assert _said(other, b"again") == b"againagain"


@pytest.mark.parametrize(
    "request_", [b"Q\0\0\0\x0bCOMMIT\0", b"P\0\0\0\x0fS_1\0COMMIT\0\0\0"], ids=["query", "parse"]
)
def test_the_commit_that_is_waited_for(
    proxy: Proxy, client: socket.socket, request_: bytes
) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert _said(client, b"Q\0\0\0\x0bBEGIN;\0")
    proxy.armed = "request"
    assert _said(client, b"Q\0\0\0\x0bSELECT\0"), "it waits for a commit"
    assert _said(client, request_) == b""
    assert proxy.cut == 1
