"""Sessions of runs, and what a start does about those of older runs that hold what it needs.

**A start does not wait for ever.** An executor that hangs keeps its transaction, and with that its
locks: on the pipeline's row, on a staging table. Its machine still answers for it, so no keepalive
finds out. So each session of a run names the pipeline and the run's epoch in its
`application_name`, and a start that has waited long enough ends the sessions of older epochs, whose
transactions were to be fenced in any case. Within a run a commit that waits as long for the ledger,
which a task that hangs may hold, is given up and planned again, and says who that is.

The name goes behind the one that the DSN, the environment or the role sets, which stays.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import psycopg

from tallygate.core.ledger import Claim
from tallygate.errors import TallygateError, TargetError, UnreachableError
from tallygate.postgres.connect import connect

T = TypeVar("T")
LOCK_WAIT = 10.0
"""How long a start waits for a lock, in seconds, before it does something about that."""
LONGEST_NAME = 63
_OURS = "tallygate-[0-9a-f]{12}-[0-9]+"
LOOK_EVERY = 0.2
ANY_EPOCH = 10**18
"""Of whatever run there was."""
LOCK_NOT_AVAILABLE = "55P03"
_OLDER = """
    SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (usename = session_user AND pg_has_role(usesysid, 'USAGE')
         OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
    AND substring(application_name FROM %s::text)::bigint <= %s
"""
"""A role may end its own sessions, and a superuser all; whatever is named otherwise has no number
here, and stays."""
_BLOCKING = """
    SELECT pid, usename, application_name, state FROM pg_stat_activity
    WHERE pid = ANY (pg_blocking_pids(%s)) ORDER BY pid
"""


class _Transaction(Protocol):
    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...


def session_name(claim: Claim) -> str:
    """What a run's sessions are called, in characters that need no quoting."""
    return f"{_named_after(claim.pipeline)}{claim.run.epoch}"


def _named_after(pipeline: str) -> str:
    return f"tallygate-{hashlib.sha256(pipeline.encode()).hexdigest()[:12]}-"


def rename(name: str) -> str:
    """The statement that gives a session this name, or takes the name of a run from it."""
    own = f"regexp_replace(current_setting('application_name'), ' ?{_OURS}$', '')"
    room = LONGEST_NAME - 1 - len(name)
    return f"SELECT set_config('application_name', btrim(left({own}, {room}) || ' {name}'), false)"


def end_older(session: psycopg.Connection, pipeline: str, epoch: int) -> list[int]:
    """End the sessions of the pipeline's runs up to this epoch; return their process ids."""
    pattern = f"(?:^| ){_named_after(pipeline)}([0-9]{{1,18}})$"
    return [pid for pid, _ in session.execute(_OLDER, (pattern, epoch)).fetchall()]


def insist(
    dsn: str,
    act: Callable[[psycopg.Connection], T],
    *,
    pipeline: str = "",
    older: int = 0,
    name: str = "",
    doing: str,
    wait: float = LOCK_WAIT,
) -> T:
    """Act within a transaction that does not wait for a lock for ever. When it has waited long
    enough, end the sessions of the pipeline's runs up to epoch `older`, if it is for one, and try
    once more."""
    with suppress(psycopg.errors.LockNotAvailable), _transaction(dsn, name, wait) as ours:
        return act(ours)
    with connect(dsn, autocommit=True) as session:
        ended = end_older(session, pipeline, older)
    blocking: list[str] = []
    try:
        with _transaction(dsn, name, wait) as ours, _watched(dsn, _pid_of(ours), blocking):
            return act(ours)
    except psycopg.errors.LockNotAvailable as error:
        who = f"pipeline {pipeline!r}" if pipeline else "Tallygate"
        raise TargetError(
            f"{who} cannot go on {doing}: {_held(2 * wait, ended, blocking)}. Have "
            "it commit, or end it by SELECT pg_terminate_backend(pid) as its role or a superuser, "
            "and start again."
        ) from error


@contextmanager
def bounded(dsn: str, transaction: _Transaction, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Within this transaction wait for a lock no longer than so many seconds. Then say who has it,
    in an error after which a batch is planned again: what holds the lock may commit yet."""
    ((pid, _),) = transaction.rows(
        f"SELECT pg_backend_pid(), set_config('lock_timeout', '{round(1000 * wait)}ms', true)"
    )
    blocking: list[str] = []
    try:
        with _watched(dsn, pid, blocking, after=wait / 2):
            yield
    except Exception as error:
        if getattr(error, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        raise UnreachableError(f"{_held(wait, [], blocking)}.") from error


@contextmanager
def _transaction(dsn: str, name: str, wait: float) -> Iterator[psycopg.Connection]:
    with connect(dsn, autocommit=True) as session, session.transaction():
        if name:
            session.execute(rename(name).encode())
        session.execute("SELECT set_config('lock_timeout', %s, true)", (f"{round(1000 * wait)}ms",))
        yield session


def _pid_of(session: psycopg.Connection) -> int:
    """Of the server process, whatever is in between."""
    (pid,) = session.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    return int(pid)


@contextmanager
def _watched(dsn: str, pid: int, seen: list[str], *, after: float = 0) -> Iterator[None]:
    """Note who it is that the session of this process waits for, once it has had so many seconds:
    PostgreSQL tells that only while it waits."""
    over = threading.Event()

    def look() -> None:
        if over.wait(after):
            return
        with suppress(psycopg.Error, TallygateError), connect(dsn, autocommit=True) as watcher:
            while not over.wait(LOOK_EVERY):
                found = watcher.execute(_BLOCKING, (pid,)).fetchall()
                if found:
                    seen[:] = [_shown(*each) for each in found]

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=1)


def _shown(pid: int, role: str | None, name: str | None, state: str | None) -> str:
    about = (f"role {role}" if role else "", repr(name) if name else "", state or "")
    return f"pid {pid} ({', '.join(filter(None, about))})"


def _held(seconds: float, ended: list[int], blocking: list[str]) -> str:
    who = ", ".join(blocking) or "which pg_locks names"
    tried = f", and still when sessions {ended} of older runs had been ended" if ended else ""
    return f"another session of PostgreSQL held a lock for {seconds:g} s{tried}: {who}"
