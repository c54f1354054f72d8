"""A proxy whose purpose is to lose connectivity.

It stands before a server, passes bytes on, and misbehaves on demand:

    cut      connections are reset, new ones are refused
    silent   connections stay open and not a byte passes, in either direction: half-open
    deaf     what the client sends arrives, the answers do not: one way
    slow     every piece is late

A fault can be for some callers only, known by the first bytes that they sent. Before PostgreSQL the
proxy can wait for the moment that decides, the next COMMIT: `request`: the server never hears of
it; `answer`: the server commits, and the client never hears of it.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

LinkFault = Literal["cut", "silent", "deaf", "slow"]
CommitFault = Literal["request", "answer"]
Whom = Callable[[bytes], bool]
LATE = 0.2
COMMIT_TAKES = 0.3


@dataclass(eq=False)
class Link:
    client: socket.socket
    server: socket.socket
    hello: bytes = b""
    """The first bytes that the client sent."""
    torn: bool = False
    """Whether something was swallowed: nothing may follow it, for TCP never has a hole."""

    def end(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Proxy:
    def __init__(self, server: Callable[[], tuple[str, int]], *, listen: int = 0) -> None:
        """`server` is asked with each connection where the server is."""
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", listen))
        self.port: int = self._listener.getsockname()[1]
        self.armed: CommitFault | None = None
        self.at_commit: Callable[[], None] = lambda: None
        """Called when the armed commit was cut."""
        self.cut = 0
        """How many commits were cut."""
        self._closed = False
        self._fault: LinkFault | None = None
        self._whom: Whom = lambda _: True
        self._links: set[Link] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_link(self, fault: LinkFault, whom: Whom = lambda _: True) -> None:
        self._fault, self._whom = fault, whom
        if fault == "cut":
            self._reset()

    def heal(self) -> None:
        """Connections that hang do not come back: who waits on one must find out, and they are
        reset now, as by a firewall that was restarted."""
        self._fault = None
        for link in list(self._links):
            if link.torn:
                link.end()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._whom = lambda _: True
        self._reset()

    def _reset(self) -> None:
        for link in list(self._links):
            if self._whom(link.hello):
                link.end()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server(), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server)
        self._links.add(link)
        for way in (self._ask, self._answer):
            threading.Thread(target=self._pass, args=(way, link), daemon=True).start()

    def _pass(self, way: Callable[[Link], None], link: Link) -> None:
        with contextlib.suppress(OSError):
            way(link)
        self._links.discard(link)
        link.end()

    def _ask(self, link: Link) -> None:
        asked = _Asked()
        for data in self._pieces(link):
            link.hello = link.hello or data
            fault = self._fault_of(link)
            if fault == "cut" or (asked.to_commit(data) and self._is_cut(data, link)):
                return
            if fault == "slow":
                time.sleep(LATE)
            link.torn |= fault == "silent"
            if not link.torn:
                link.server.sendall(data)

    def _pieces(self, link: Link) -> Iterator[bytes]:
        """What the client sends, in pieces that are passed on or not."""
        while data := link.client.recv(65536):
            yield data

    def _hear(self, link: Link, data: bytes) -> None:
        """What the server answers."""

    def _answer(self, link: Link) -> None:
        while data := link.server.recv(65536):
            self._hear(link, data)
            link.torn |= self._fault_of(link) in ("silent", "deaf")
            if not link.torn:
                link.client.sendall(data)

    def _fault_of(self, link: Link) -> LinkFault | None:
        return self._fault if self._fault and self._whom(link.hello) else None

    def _is_cut(self, data: bytes, link: Link) -> bool:
        """Whether this commit is the one that was waited for."""
        if self.armed is None:
            return False
        fault, self.armed = self.armed, None
        self.cut += 1  # at once: who was cut off may be done with the rest before this returns
        if fault == "answer":
            link.client.shutdown(socket.SHUT_RDWR)
            link.server.sendall(data)
            # The answer goes to the other thread, which finds the client gone.
            time.sleep(COMMIT_TAKES)
        self.at_commit()
        return True


class DatabaseProxy(Proxy):
    """Before a PostgreSQL; what uses `dsn` goes through it."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        address = str(parts["host"]), int(str(parts["port"]))
        super().__init__(lambda: address)
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self.port)


class _Asked:
    """What a client of PostgreSQL asks for in one connection. Some send COMMIT as a query; JDBC
    prepares it under a name, and from then on sends the name."""

    def __init__(self) -> None:
        self._commits: set[bytes] = set()

    def to_commit(self, data: bytes) -> bool:
        kind, body = data[:1], data[5:300]
        if kind == b"Q":
            return body.upper().startswith(b"COMMIT")
        name, _, rest = body.partition(b"\0")
        if kind == b"P" and rest.upper().startswith(b"COMMIT\0"):
            self._commits.add(name)
            return True
        return kind == b"B" and rest.partition(b"\0")[0] in self._commits - {b""}
