"""Connections are lent to one user at a time, and not used again after a failure."""

import subprocess
import sys
import textwrap

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tallygate import Stack
from tallygate.postgres.arrow import pooled
from tallygate.postgres.connect import watchful


@pytest.mark.parametrize("careful", [False, True])
def test_two_users_at_once_do_not_share_a_transaction(stack: Stack, careful: bool) -> None:
    table = f"shared_{careful}".lower()
    with psycopg.connect(stack.dsn) as connection:
        connection.execute(f"CREATE TABLE public.{table} (n int)".encode())
    with pooled(stack.dsn, careful=careful) as one, pooled(stack.dsn, careful=careful) as other:
        one.rows(f"INSERT INTO public.{table} VALUES (1)")
        other.rows(f"INSERT INTO public.{table} VALUES (2)")
        other.commit()
    with pooled(stack.dsn, careful=careful) as again:
        assert again in (one, other), "a connection that was fine is used again"
        assert again.rows(f"SELECT n FROM public.{table}") == [(2,)]


def test_a_program_ends_in_peace_when_its_server_is_gone(stack: Stack) -> None:
    """Connections that lie idle in the pool are closed before the interpreter takes itself down."""
    program = textwrap.dedent(
        f"""
        import contextlib
        from tallygate.postgres.arrow import pooled
        with contextlib.ExitStack() as lent:
            for careful in (False, True) * 3:
                lent.enter_context(pooled({stack.dsn!r}, careful=careful)).rows("SELECT 1")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_connection_that_failed_is_not_used_again(stack: Stack) -> None:
    used = []
    with pytest.raises(Exception, match="nonsense"), pooled(stack.dsn) as connection:
        used.append(connection)
        connection.rows("SELECT nonsense")
    with pooled(stack.dsn) as fresh:
        assert fresh not in used
        assert fresh.rows("SELECT 1") == [(1,)]


@pytest.mark.parametrize("careful", [False, True])
def test_the_server_is_told_to_ask_after_its_client(stack: Stack, careful: bool) -> None:
    """A client that is gone without a word must not keep its locks for hours. What a connection is
    told first outlives every rollback."""
    with pooled(stack.dsn, careful=careful) as connection:
        connection.rollback()
        assert connection.rows("SELECT current_setting('tcp_keepalives_idle')") == [("15",)]


def test_a_dsn_may_say_itself_how_patient_it_is() -> None:
    given = conninfo_to_dict(watchful("postgresql://me@db/events?keepalives_idle=600"))
    assert (given["host"], given["keepalives_idle"], given["keepalives_count"]) == (
        "db",
        "600",
        "3",
    )


def test_a_connection_that_the_server_ended_while_it_was_idle_is_not_lent_again(
    stack: Stack,
) -> None:
    def backend() -> int:
        with pooled(stack.dsn, careful=True) as connection:
            return int(connection.rows("SELECT pg_backend_pid()")[0][0])

    first = backend()
    assert backend() == first, "it is kept"
    with psycopg.connect(stack.dsn, autocommit=True) as session:
        session.execute("SELECT pg_terminate_backend(%s, 10000)", (first,))
    assert backend() != first
