"""Sessions that are named after a run, and what a start does about those that hold a lock."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tallygate import Stack
from tallygate.core.ledger import Claim, Run
from tallygate.errors import TargetError
from tallygate.postgres.arrow import pooled
from tallygate.postgres.sessions import LONGEST_NAME, end_older, insist, rename, session_name

NAME = "SELECT current_setting('application_name')"


def claim(epoch: int, pipeline: str = "sessions") -> Claim:
    return Claim(pipeline, Run(epoch=epoch))


@pytest.fixture
def held(stack: Stack) -> Iterator[psycopg.Connection]:
    """A session of some other program, which has locked a table."""
    with psycopg.connect(stack.dsn, application_name="a report") as other:
        other.execute("CREATE TABLE IF NOT EXISTS held (n int)")
        other.commit()
        other.execute("LOCK TABLE held")
        yield other


def _drop(session: psycopg.Connection) -> None:
    session.execute("DROP TABLE held")


def test_a_name_tells_pipelines_and_epochs_apart_and_needs_no_quoting() -> None:
    names = {session_name(claim(epoch, name)) for name in ("a", "a'b", "é") for epoch in (1, 2, 12)}
    assert len(names) == 9
    longest = session_name(claim(2**63 - 1, "p" * 200))
    for name in (*names, longest):
        assert name.isascii()
        assert name.replace("-", "").isalnum()
        assert len(name) < LONGEST_NAME
        assert rename(name).count("'") == rename("").count("'")


@pytest.mark.parametrize("careful", [False, True])
def test_a_session_keeps_the_name_that_its_user_gave(stack: Stack, careful: bool) -> None:
    for own in ("nightly", "n" * LONGEST_NAME):
        dsn = make_conninfo(stack.dsn, application_name=own)
        for epoch in (1, 2):
            name = session_name(claim(epoch))
            with pooled(dsn, careful=careful, name=name) as connection:
                (said,) = connection.rows(NAME)[0]
                assert said == f"{own[: LONGEST_NAME - 1 - len(name)]} {name}"
                connection.rollback()
                assert connection.rows(NAME)[0][0] == said
        with pooled(dsn, careful=careful) as connection:
            assert own.startswith(connection.rows(NAME)[0][0])


def test_only_sessions_of_older_runs_of_the_pipeline_are_ended(stack: Stack) -> None:
    runs = [claim(1), claim(2), claim(3), claim(1, "another")]
    with ExitStack() as opened:
        sessions = [opened.enter_context(psycopg.connect(stack.dsn, autocommit=True)) for _ in runs]
        for session, run in zip(sessions, runs, strict=True):
            session.execute(rename(session_name(run)).encode())
        other = opened.enter_context(psycopg.connect(stack.dsn, application_name="a report"))
        with psycopg.connect(stack.dsn, autocommit=True) as mine:
            ended = end_older(mine, "sessions", 2)
        assert sorted(ended) == sorted(each.info.backend_pid for each in sessions[:2])
        for session in (*sessions[2:], other):
            assert session.execute("SELECT 1").fetchone() == (1,)
        for session in sessions[:2]:
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT 1")


def test_the_session_of_an_older_run_does_not_keep_a_lock(
    stack: Stack, held: psycopg.Connection
) -> None:
    held.execute(rename(session_name(claim(4))).encode())
    insist(stack.dsn, _drop, pipeline="sessions", older=4, doing="here", wait=0.5)
    with pytest.raises(psycopg.OperationalError):
        held.execute("SELECT 1")


def test_a_lock_of_another_program_is_an_error_that_names_its_session(
    stack: Stack, held: psycopg.Connection
) -> None:
    said = rf"cannot go on here.*pid {held.info.backend_pid} \(role .*'a report', idle in transac"
    with pytest.raises(TargetError, match=said):
        insist(stack.dsn, _drop, pipeline="sessions", older=4, doing="here", wait=1.0)
    assert held.execute("SELECT 1").fetchone() == (1,)
    held.rollback()
    insist(stack.dsn, _drop, pipeline="sessions", older=4, doing="here", wait=1.0)
