"""The proxy before a broker: it tells requests apart, and has one come late."""

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tallygate.errors import TallygateError
from tallygate.lab.drills.broker_proxy import Api, BrokerProxy, LateEnd, requests

FENCED = 90


def _request(kind: int, body: bytes = b"", *, version: int = 1, number: int = 0) -> bytes:
    head = struct.pack(">hhih", kind, version, number, 6) + b"client"
    return struct.pack(">i", len(head + body)) + head + body


def _end(transactional_id: str, *, commit: bool = True, number: int = 0, version: int = 1) -> bytes:
    name = transactional_id.encode()
    body = struct.pack(">h", len(name)) + name + struct.pack(">qh?", 1000, 0, commit)
    tags = b"\0" if version >= 3 else b""
    return _request(Api.END, body + tags, number=number, version=version)


@dataclass
class Broker:
    """Answers each request with its number, and an EndTxn of a connection that was lost by an
    error."""

    seen: list[bytes] = field(default_factory=list)
    place: tuple[str, int] = ("", 0)

    def serve(self, client: socket.socket) -> None:
        with client:
            for request in requests(client):
                self.seen.append(request)
                number = request[8:12]
                client.sendall(struct.pack(">i4sih", 10, number, 0, FENCED))


@pytest.fixture
def broker() -> Iterator[Broker]:
    listener, made = socket.create_server(("127.0.0.1", 0)), Broker()
    made.place = listener.getsockname()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=made.serve, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield made
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[BrokerProxy]:
    running = BrokerProxy(lambda: broker.place)
    yield running
    running.close()


def _connect(proxy: BrokerProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def _ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(1000)


def test_requests_are_told_apart_however_they_arrive(proxy: BrokerProxy, broker: Broker) -> None:
    sent = [_request(3, b"x" * size) for size in (0, 5, 100_000)]
    with _connect(proxy) as client:
        for piece in (sent[0] + sent[1][:3], sent[1][3:] + sent[2][:7], sent[2][7:]):
            client.sendall(piece)
        answers = b""
        while len(answers) < 3 * 14:
            answers += client.recv(1000)
    assert broker.seen == sent


@pytest.mark.parametrize("version", [1, 3])
def test_an_end_of_a_transaction_arrives_in_the_midst_of_the_next(
    proxy: BrokerProxy, broker: Broker, version: int
) -> None:
    late = proxy.late = LateEnd("copy", commit=True, before=Api.PRODUCE, nth=2)
    first = _end("copy", number=1, version=version)
    again = _end("copy", number=2, version=version)
    others = [
        _end("other", version=version),
        _end("copy", commit=False, version=version),
        _request(Api.PRODUCE, b"other"),
    ]
    following = [
        _request(Api.ADD_PARTITIONS, b"copy"),
        _request(Api.PRODUCE, b"copy", number=3),
        _request(Api.PRODUCE, b"copy", number=4),
    ]
    with _connect(proxy) as client:
        for request in others:
            assert _ask(client, request), "it waits for one of its own"
        assert _ask(client, first) == b"", "its connection is lost"
    with _connect(proxy) as client:
        for request in (again, *following):
            assert _ask(client, request)
    assert broker.seen == [*others, again, *following[:2], first, following[2]]
    assert late.wait(0) == FENCED


def test_what_the_transaction_before_sent_does_not_count(
    proxy: BrokerProxy, broker: Broker
) -> None:
    proxy.late = LateEnd("copy", commit=True, before=Api.PRODUCE, nth=2)
    held, produce = _end("copy", number=9), _request(Api.PRODUCE, b"copy")
    with _connect(proxy) as client:
        assert _ask(client, held) == b""
    sent = [produce, _end("copy"), produce, _end("copy"), produce]
    with _connect(proxy) as client:
        for request in sent:
            assert _ask(client, request)
        assert broker.seen == sent
        assert _ask(client, produce)
    assert broker.seen == [*sent, held, produce]


def test_a_request_that_was_never_sent_is_not_waited_for_in_vain() -> None:
    late = LateEnd("copy", commit=True, before=Api.PRODUCE)
    with pytest.raises(TallygateError, match="no EndTxn was sent"):
        late.wait(0.1)
    assert late.takes(_end("copy"))
    with pytest.raises(TallygateError, match="did not arrive"):
        late.wait(0.1)
