"""A drill whose fault did not bite has shown nothing: what is committed through a link that is
broken is noticed."""

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tallygate.errors import TallygateError
from tallygate.lab.drills.faults.database import UNDER_WAY, break_for
from tallygate.lab.drills.progress_sampler import Gauge
from tallygate.lab.drills.proxy import LinkFault, Proxy
from tallygate.waiting import wait_until

LONG = UNDER_WAY + 0.8


class Store:
    """Commits whenever it is told to, over a connection."""

    def __init__(self) -> None:
        self.commits = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def read(self) -> dict[int, int]:
        return {0: self.commits}

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                while client.recv(1):
                    self.commits += 1
                    client.sendall(b".")
            except OSError:
                if self._listener.fileno() < 0:
                    return


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.close()


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    made = Proxy(lambda: store.place)
    yield made
    made.close()


@pytest.fixture
def gauge(store: Store) -> Iterator[Gauge]:
    idle: Any = SimpleNamespace(produced=0, acknowledged=())
    made = Gauge(store, lambda: idle)
    made.start()
    yield made
    made.close()


def _commit(port: int, ending: threading.Event) -> None:
    """One after the other, each answered before the next, as a pipeline does."""
    while not ending.is_set():
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
                while not ending.wait(0.02):
                    link.sendall(b".")
                    if not link.recv(1):
                        break
        except OSError:
            continue


@pytest.fixture
def committing() -> Iterator[Any]:
    ending = threading.Event()
    threads = []

    def start(port: int) -> None:
        threads.append(threading.Thread(target=_commit, args=(port, ending)))
        threads[-1].start()

    yield start
    ending.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("fault", ["cut", "silent", "deaf"])
def test_nothing_is_committed_through_a_broken_link(
    gauge: Gauge, proxy: Proxy, committing: Any, fault: LinkFault
) -> None:
    committing(proxy.port)
    wait_until(lambda: gauge.committed, 10, "nothing is committed")
    break_for(LONG, proxy, fault, gauge)
    before = gauge.committed
    wait_until(lambda: gauge.committed > before, 10, "it does not go on")


def test_a_fault_that_does_not_bite_is_noticed(
    gauge: Gauge, store: Store, proxy: Proxy, committing: Any
) -> None:
    committing(store.place[1])  # past the proxy
    with pytest.raises(TallygateError, match="committed through a link that is cut"):
        break_for(LONG, proxy, "cut", gauge)
    break_for(LONG, proxy, "slow", gauge)
