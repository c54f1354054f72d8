"""What is dear to make and is kept for the next who needs one: connections to Kafka and PostgreSQL.

Two queries of one driver run in two threads, so nothing is ever used by two at a time. Whatever
fails in use is closed: its state after a failure is not worth a guess.
"""

import atexit
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Pool(Generic[T]):
    def __init__(self) -> None:
        self._idle: dict[Hashable, list[T]] = {}
        # While the libraries can still do it: once the interpreter takes its parts down, in an
        # order of its own, closing a connection can bring the whole process down.
        atexit.register(self.close)

    @contextmanager
    def taken(
        self, kind: Hashable, make: Callable[[], T], is_fit: Callable[[T], bool] = lambda _: True
    ) -> Iterator[T]:
        """One of a kind, made if none is idle and fit; left in order, it is kept for the next."""
        idle = self._idle.setdefault(kind, [])
        taken = self._fit(idle, is_fit) or make()
        try:
            yield taken
        except BaseException:
            taken.close()
            raise
        idle.append(taken)

    @staticmethod
    def _fit(idle: list[T], is_fit: Callable[[T], bool]) -> T | None:
        """One that is still what it was when it was left; others are closed."""
        with suppress(IndexError):
            while True:
                found = idle.pop()
                if is_fit(found):
                    return found
                found.close()
        return None

    def close(self) -> None:
        """Close what is idle; others may take and bring some meanwhile."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):
                while True:
                    idle.pop().close()
