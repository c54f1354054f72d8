"""Rows that PostgreSQL refuses: the rest of the batch is written, and written right."""

import psycopg

from fixtures.flows import Flow
from tallygate import Postgres
from tallygate.core.letters import Letter
from tallygate.postgres.plain import PlainConnection
from tallygate.targets.postgres import ledger as ledger
from tallygate.targets.postgres.ledger import PostgresLedger


def test_times_that_python_does_not_have_are_written_although_a_row_is_refused(flow: Flow) -> None:
    flow.execute("CREATE TABLE {table} (id bigint CHECK (id <> 3), at timestamptz, day date)")
    flow.send(6)
    flow.run(
        transform="SELECT id, timestamp_seconds(253402300800 + id) AS at, "
        "date_add(DATE'9999-12-31', CAST(id AS INT)) AS day FROM source",
        sink=Postgres(flow.name, coordinates=False),
    )
    found = flow.rows("SELECT id, at::text, day::text FROM {table} ORDER BY id")
    assert found[1] == (1, "10000-01-01 00:00:01+00", "10000-01-01")
    assert [row[0] for row in found] == [0, 1, 2, 4, 5]


def test_more_letters_than_one_statement_can_hold(flow: Flow) -> None:
    """By the size of their values, of which each lot may hold so much."""
    own = PostgresLedger(flow.stack.dsn, flow.name)
    own.prepare()
    claim = own.begin(
        target="t", delivery="exactly-once", stateful=False, checkpoint="c", version="0"
    )
    own.close()
    large = b"x" * (ledger.LETTERS_AT_ONCE // 2 + 1)
    letters = [Letter(flow.name, 0, offset, "unfit", value=large) for offset in range(3)]
    statements: list[int] = []
    with psycopg.connect(flow.stack.dsn) as connection:
        plain = PlainConnection(connection)

        class Counted:
            def rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
                statements.append(len(values))
                return plain.rows(statement, *values)

        claim.keep(Counted(), letters)
    assert len(statements) == 3
    kept = f"SELECT count(*) FROM tallygate.dead_letter_records WHERE pipeline = '{flow.name}'"
    assert flow.rows(kept) == [3]


def test_letters_of_a_first_batch_that_was_never_committed_are_forgotten(flow: Flow) -> None:
    """There is no position yet to compare them with; by the next start the record may be fit."""
    own = PostgresLedger(flow.stack.dsn, flow.name)
    own.prepare()
    begin = {"target": "t", "delivery": "exactly-once", "checkpoint": "c", "version": "0"}
    claim = own.begin(stateful=False, **begin)
    with psycopg.connect(flow.stack.dsn) as connection:
        claim.keep(PlainConnection(connection), [Letter(flow.name, 0, 5, "unfit", value=b"?")])
    own.begin(stateful=False, **begin)
    own.close()
    kept = f"SELECT count(*) FROM tallygate.dead_letter_records WHERE pipeline = '{flow.name}'"
    assert flow.rows(kept) == [0]


def test_a_store_that_is_away_while_letters_are_kept_is_waited_for(flow: Flow) -> None:
    """In the step that decodes, which cannot report: its rows go on to others."""
    flow.send(10)
    flow.run()
    flow.execute(
        f"""
        CREATE SEQUENCE {flow.name}_tries;
        CREATE FUNCTION {flow.name}_away() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('{flow.name}_tries') = 1 THEN
                RAISE EXCEPTION 'going away' USING ERRCODE = '57P01';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER {flow.name} BEFORE INSERT ON tallygate.dead_letter_records FOR EACH ROW
        WHEN (NEW.pipeline = '{flow.name}') EXECUTE FUNCTION {flow.name}_away();
        """
    )
    flow.send_text(["no json"])
    flow.send(10)
    flow.run(transform="SELECT id, account FROM source")
    flow.check()
    assert flow.rows(f"SELECT last_value FROM {flow.name}_tries") == [2]
