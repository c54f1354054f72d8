"""Rows that PostgreSQL refuses: the rest of the batch is written, and written right."""

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.flows import Flow
from tallygate import Postgres
from tallygate.core.ledger import Claim, Run
from tallygate.core.letters import Letter
from tallygate.errors import TargetError
from tallygate.postgres import ledger_tables, letter_tables
from tallygate.postgres.connect import connect
from tallygate.postgres.plain import PlainConnection
from tallygate.postgres.tables import upgrade


def _taken_over(flow: Flow) -> Claim:
    about = {
        "target": "t",
        "delivery": "exactly-once",
        "checkpoint": "c",
        "version": "0",
        "target_id": "1",
    }
    claim = Claim(flow.name, Run.mine(0))
    with connect(flow.stack.dsn, autocommit=True) as session:
        upgrade(session)
    with connect(flow.stack.dsn) as session:
        ledger_tables.take_over(PlainConnection(session), claim, {**about, "stateful": False})
    return claim


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


RAISES = """
CREATE FUNCTION {name}_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = 3 THEN RAISE EXCEPTION 'three is refused' {using}; END IF;
    RETURN NEW;
END $$;
CREATE TABLE {table} (id bigint, account text);
CREATE TRIGGER refuses BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {name}_refuses();
"""
REFUSALS = {
    "an index row that is too large": (
        "CREATE TABLE {table} (id bigint, account text PRIMARY KEY)",
        "SELECT id, CASE id WHEN 3 THEN array_join(transform(sequence(1, 9000), "
        "n -> CAST(hash(n) AS STRING)), '') ELSE CAST(id AS STRING) END AS account FROM source",
        "index row",
    ),
    "a trigger": (RAISES.replace("{using}", ""), "SELECT id, account FROM source", "three is"),
    "a trigger with a code of its own": (
        RAISES.replace("{using}", "USING ERRCODE = 'TG001'"),
        "SELECT id, account FROM source",
        "three is refused",
    ),
    "bytes that are no text": (
        "CREATE TABLE {table} (id bigint, account text)",
        "SELECT id, CAST(CASE id WHEN 3 THEN X'ff41' ELSE X'42' END AS STRING) AS account "
        "FROM source",
        "utf-8",
    ),
}


@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "tasks"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_whatever_a_row_is_refused_for_it_becomes_a_dead_letter(
    flow: Flow, refusal: str, driver_rows: int
) -> None:
    made, transform, cause = REFUSALS[refusal]
    name = f"f_{abs(hash((refusal, driver_rows)))}"
    flow.execute(made.replace("{name}", name))
    flow.send(6)
    key: dict[str, Any] = {"mode": "upsert", "key": "account"} if "PRIMARY KEY" in made else {}
    sink = Postgres(flow.name, coordinates=False, driver_rows=driver_rows, **key)
    flow.run(transform=transform, sink=sink)
    assert flow.rows() == [0, 1, 2, 4, 5]
    letters = f"SELECT cause FROM tallygate.dead_letters WHERE pipeline = '{flow.name}'"
    (said,) = flow.rows(letters)
    assert cause in said


def test_a_right_that_is_missing_makes_no_dead_letters(flow: Flow) -> None:
    """It means the table, not a row: nothing is set aside, and the run ends and says why."""
    role = f"{flow.name}_role"
    flow.send(6)
    flow.execute("CREATE TABLE {table} (id bigint, account text)")
    flow.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    flow.execute(f"GRANT ALL ON DATABASE tallygate TO {role}")
    flow.execute(f"GRANT ALL ON SCHEMA public, tallygate TO {role}")
    flow.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA tallygate TO {role}")
    flow.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA tallygate TO {role}")
    flow.execute(f"GRANT SELECT ON {{table}} TO {role}")
    dsn = make_conninfo(flow.stack.dsn, user=role, password="p")
    with pytest.raises(TargetError, match="permission denied for table"):
        flow.run(sink=Postgres(flow.name, coordinates=False, dsn=dsn))
    kept = f"SELECT count(*) FROM tallygate.dead_letter_records WHERE pipeline = '{flow.name}'"
    assert flow.rows(kept) == [0]


def test_more_letters_than_one_statement_can_hold(flow: Flow) -> None:
    """By the size of their values, of which each lot may hold so much."""
    claim = _taken_over(flow)
    large = b"x" * (letter_tables.LETTERS_AT_ONCE // 2 + 1)
    letters = [Letter(flow.name, 0, offset, "unfit", value=large) for offset in range(3)]
    statements: list[int] = []
    with psycopg.connect(flow.stack.dsn) as connection:
        plain = PlainConnection(connection)

        class Counted:
            def rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
                statements.append(len(values))
                return plain.rows(statement, *values)

        letter_tables.keep_letters(Counted(), claim, letters)
    assert len(statements) == 3
    kept = f"SELECT count(*) FROM tallygate.dead_letter_records WHERE pipeline = '{flow.name}'"
    assert flow.rows(kept) == [3]


def test_letters_of_a_first_batch_that_was_never_committed_are_forgotten(flow: Flow) -> None:
    """There is no position yet to compare them with; by the next start the record may be fit."""
    claim = _taken_over(flow)
    with psycopg.connect(flow.stack.dsn) as connection:
        unfit = Letter(flow.name, 0, 5, "unfit", value=b"?")
        letter_tables.keep_letters(PlainConnection(connection), claim, [unfit])
    _taken_over(flow)
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
