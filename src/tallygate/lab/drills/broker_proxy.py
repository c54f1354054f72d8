"""A proxy before a broker, which knows one request from the next.

It can have an EndTxn come late: the request is held, its connection is lost, and the client sends
it again over another one. In the midst of the transaction that follows, the first one arrives. A
network does so that forgets a connection, and not what was under way in it; and so does a broker
that was busy.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum

from tallygate.errors import TallygateError
from tallygate.lab.drills.proxy import Link, Proxy


class Api(IntEnum):
    """The kinds of requests of a transaction, by their numbers in Kafka's protocol."""

    PRODUCE = 0
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END = 26


_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">ihh")
"""The length, the kind and its version."""
_ANSWER = struct.Struct(">iiih")
"""The length, the request's number, how long to wait, the error: of an EndTxn that is answered."""
_FLEXIBLE = 3
"""The version from which on an EndTxn has tags at its end."""
HEAD = 300
"""Bytes in which a request says whose transaction it is for."""
MOMENT = 0.3
"""By then a broker has answered what it has, and written what follows from it."""
LONG = 120.0


class LateEnd:
    """The next EndTxn of a transactional id, held until it can overtake a request of the
    transaction that follows: the `nth` of kind `before`."""

    def __init__(self, transactional_id: str, *, commit: bool, before: Api, nth: int = 1) -> None:
        self._id, self._commit = transactional_id.encode(), commit
        self._before, self._nth = before, nth
        self._lock = threading.Lock()
        self._sent_again, self._count = False, 0
        self._held, self._due, self._done = (threading.Event() for _ in range(3))
        self.answer: int | None = None
        """The error by which the broker has answered it in the end; 0 if it did what it says."""

    def takes(self, request: bytes) -> bool:
        """Whether this is the request that comes late."""
        with self._lock:
            if self._held.is_set() or not self._is_own(request) or _kind(request) is not Api.END:
                return False
            if _is_commit(request) is not self._commit:
                return False
            self._held.set()
            return True

    def meet(self, request: bytes) -> None:
        """Have it arrive before a request that it overtakes."""
        with self._lock:
            if not self._held.is_set() or self._due.is_set() or not self._is_own(request):
                return
            kind = _kind(request)
            if kind is Api.END:
                self._sent_again, self._count = True, 0
            if kind is self._before and self._sent_again:
                self._count += 1
            if self._count < self._nth:
                return
            self._due.set()
        self._done.wait(LONG)
        time.sleep(MOMENT)

    def arrive(self, server: socket.socket, request: bytes) -> None:
        """Called where it is held: when it is due, send it, and wait for the answer."""
        if self._due.wait(LONG):
            time.sleep(MOMENT)
            server.sendall(request)
            self._done.wait(LONG)

    def note(self, answer: bytes) -> None:
        """What the broker says where the request was held."""
        if self._due.is_set() and len(answer) >= _ANSWER.size:
            *_, self.answer = _ANSWER.unpack_from(answer)
            self._done.set()

    def wait(self, timeout: float) -> int:
        """Wait until it is answered, and return the error."""
        if not self._done.wait(timeout) or self.answer is None:
            raise TallygateError(
                "the late EndTxn did not arrive"
                if self._held.is_set()
                else "no EndTxn was sent that could be late"
            )
        return self.answer

    def _is_own(self, request: bytes) -> bool:
        return self._id in request[:HEAD]


class BrokerProxy(Proxy):
    def __init__(self, server: Callable[[], tuple[str, int]], *, listen: int = 0) -> None:
        self.late: LateEnd | None = None
        self._holding: dict[Link, LateEnd] = {}
        super().__init__(server, listen=listen)

    def _pieces(self, link: Link) -> Iterator[bytes]:
        for request in requests(link.client):
            if (late := self.late) is not None:
                if late.takes(request):
                    self._hold(late, link, request)
                    return
                late.meet(request)
            yield request

    def _hold(self, late: LateEnd, link: Link, request: bytes) -> None:
        self._holding[link] = late
        with suppress(OSError):
            link.client.shutdown(socket.SHUT_RDWR)
        late.arrive(link.server, request)

    def _hear(self, link: Link, data: bytes) -> None:
        if link in self._holding:
            self._holding[link].note(data)


def requests(client: socket.socket) -> Iterator[bytes]:
    """Each request as a whole, with its length before it; what is no whole one at the end too."""
    held = b""
    while data := client.recv(65536):
        held += data
        while len(held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(held)[0]
            if len(held) < end:
                break
            yield held[:end]
            held = held[end:]


def _kind(request: bytes) -> Api | None:
    _, kind, _ = _HEADER.unpack_from(request)
    return Api(kind) if kind in set(Api) else None


def _is_commit(request: bytes) -> bool:
    _, _, version = _HEADER.unpack_from(request)
    return request[-2 if version >= _FLEXIBLE else -1] == 1
