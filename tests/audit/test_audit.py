"""The audit finds what was planted by hand into a correct table, and nothing in one untouched."""

import itertools
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.audits import abort, amounts, audited, counts
from fixtures.commands import Tallygate
from fixtures.flows import SCHEMA, Flow
from tallygate import Postgres
from tallygate.auditing import coordinates
from tallygate.auditing.digests import Digests, digests
from tallygate.auditing.verdict import Verdict
from tallygate.engine.progress import Progress
from tallygate.engine.rebuild import rebuild
from tallygate.errors import ConfigError, LedgerError

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


PLANTED: dict[str, tuple[list[str], dict[str, int]]] = {
    "rows": (
        [
            "DELETE FROM {table} WHERE id = 20",
            "INSERT INTO {table} SELECT * FROM {table} WHERE id = 21",
            "INSERT INTO {table} SELECT 999, 'a', _topic, _partition, _offset FROM {table} "
            "WHERE id = 22",
            "UPDATE {table} SET account = 'x' WHERE id = 23",
            "UPDATE {table} SET account = NULL WHERE id = 24",
            "UPDATE {table} SET _offset = 100000 WHERE id = 25",
            "INSERT INTO {table} SELECT 1, 'x', _topic, _partition, _offset - 2 FROM {table} "
            "WHERE id = 0",  # an aborted record made visible
        ],
        {"missing": 2, "duplicate": 2, "different": 2, "misplaced": 1, "aborted": 1},
    ),
    "a ledger that claims too little": (
        [
            "UPDATE tallygate.positions SET next_offset = next_offset - 1 "
            "WHERE pipeline = '{name}' AND partition = 0"
        ],
        {"misplaced": 1, "overlap": 1},
    ),
    "a ledger that claims too much, and a dead letter removed": (
        [
            "UPDATE tallygate.positions SET next_offset = next_offset + 9 "
            "WHERE pipeline = '{name}' AND partition = 0",
            "DELETE FROM tallygate.dead_letter_records WHERE pipeline = '{name}'",
        ],
        {"overclaimed": 9, "gap": 9, "undead": 1},
    ),
}


def test_what_was_planted_is_found(flow: Flow) -> None:
    """One after the other, each undone before the next; the untouched table is valid."""
    flow.send_text(["bad"])
    abort(flow.stack.cluster.connection, flow.name, '{"id": 1, "account": "x"}', partition=0)
    flow.send(200, partition=0)
    flow.send(100)
    flow.run()
    whole = audited(flow)
    assert (whole.verdict, whole.records, whole.rows) == (Verdict.VALID, 301, 300)
    assert (whole.letters, whole.filtered) == (1, 0)
    mine = f"WHERE pipeline = '{flow.name}'"
    tables = {
        f'public."{flow.name}"': "",
        "tallygate.positions": mine,
        "tallygate.dead_letter_records": mine,
    }
    for number, (table, which) in enumerate(tables.items()):
        flow.execute(f"CREATE TABLE public.kept_{number} AS SELECT * FROM {table} {which}")
    wrong = {}
    for what, (statements, expected) in PLANTED.items():
        for statement in statements:
            flow.execute(statement.replace("{name}", flow.name))
        found = counts(audited(flow))
        if found != expected:
            wrong[what] = found
        for number, (table, which) in enumerate(tables.items()):
            flow.execute(f"DELETE FROM {table} {which}")
            flow.execute(f"INSERT INTO {table} SELECT * FROM public.kept_{number}")
    assert wrong == {}
    assert audited(flow).verdict is Verdict.VALID


def test_aggregates_are_compared_key_by_key(flow: Flow) -> None:
    fields = {"transform": COUNTS, "sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(100)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    flow.execute("UPDATE {table} SET payments = payments + 1 WHERE account = 'a1'")
    flow.execute("DELETE FROM {table} WHERE account = 'a2'")
    flow.execute("INSERT INTO {table} VALUES ('nobody', 1)")
    found = audited(flow, **fields)
    assert counts(found) == {"different": 1, "missing": 1, "unexpected": 1}
    (different,) = [each for each in found.anomalies if each.kind == "different"]
    assert different.examples == ('{"account":"a1"}',)


@pytest.mark.system
def test_sums_of_doubles_are_compared_closely(flow: Flow) -> None:
    """The stream adds up batch by batch, the audit in one go, and the last bits differ."""
    fields = {
        "source": amounts(flow),
        "transform": "SELECT account, sum(amount) AS total, stddev(amount) AS spread FROM source "
        "GROUP BY account",
        "sink": Postgres(flow.name, mode="upsert", key="account"),
    }
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    flow.execute("UPDATE {table} SET total = total * 1.000001 WHERE account = 'a1'")
    flow.execute("UPDATE {table} SET spread = NULL WHERE account = 'a2'")
    assert counts(audited(flow, **fields)) == {"different": 2}


def test_a_table_that_appends_by_key_holds_rows_that_the_transform_gives(flow: Flow) -> None:
    """Which record of a key came first depends on the batches; that it is one of them does not."""
    fields = {"sink": Postgres(flow.name, key="account")}
    flow.send(20)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    flow.execute("UPDATE {table} SET id = 999 WHERE account = 'a1'")
    flow.execute("DELETE FROM {table} WHERE account = 'a2'")
    (different, missing) = sorted(audited(flow, **fields).anomalies, key=lambda each: each.kind)
    assert (missing.kind, missing.count) == ("missing", 1)
    assert (different.kind, different.examples) == ("different", ('{"account":"a1"}',))


def test_columns_that_are_not_compared_are_said(flow: Flow) -> None:
    """One that is gone from the table is unknown; one of a type that cannot be compared is named,
    and one that the clock gave is both."""
    fields = {
        "transform": "SELECT id, account, array(id) AS listed, current_timestamp() AS at "
        "FROM source"
    }
    flow.send(20)
    flow.run(**fields)
    whole = audited(flow, **fields)
    assert (whole.anomalies, whole.not_compared) == ((), ("listed",))
    clock = "column at was not compared: current_timestamp() gives another value each time"
    assert whole.unknown == (clock,)
    flow.execute("UPDATE {table} SET id = 999 WHERE id = 3")
    assert counts(audited(flow, **fields)) == {"different": 1}
    flow.execute("ALTER TABLE {table} DROP COLUMN id")
    found = audited(flow, **fields)
    assert (found.verdict, found.anomalies) == (Verdict.UNKNOWN, ())
    assert found.unknown == (
        "the sink has no column id, so what it should hold was not compared",
        clock,
    )


def test_what_only_chance_lets_through_is_unknown(flow: Flow) -> None:
    fields = {"transform": "SELECT * FROM source WHERE rand() < 0.5"}
    flow.send(60)
    flow.run(**fields)
    found = audited(flow, **fields)
    assert (found.verdict, found.anomalies) == (Verdict.UNKNOWN, ())
    assert "rand() gives another value each time, and which rows there are" in found.unknown[0]


def test_two_readings_that_do_not_agree_are_unknown(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests that differ where no row does: somebody has read something else."""
    fields = {"transform": "SELECT * FROM source"}
    flow.send(10)
    flow.run(**fields)
    numbers = itertools.count()

    def misread(*given: Any) -> Digests:
        found, number = digests(*given), next(numbers)
        wrong = {at: (rows, total, xor ^ number) for at, (rows, total, xor) in found.inside.items()}
        return Digests(wrong, found.outside)

    monkeypatch.setattr(coordinates, "digests", misread)
    found = audited(flow, **fields)
    assert found.unknown == (f"two readings of public.{flow.name} do not agree",)


@pytest.mark.system
def test_the_last_record_of_a_key_counts_where_it_is_known(flow: Flow) -> None:
    """Account a0 is in two partitions, and which of its records came last is not known."""
    fields = {"sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(20, partition=0)
    flow.run(**fields)
    flow.send(1, partition=1)
    flow.run(**fields)
    found = audited(flow, **fields)
    assert found.verdict is Verdict.UNKNOWN
    assert found.unknown[0].startswith("1 different: records of their keys are in several")
    flow.execute("UPDATE {table} SET id = 1 WHERE account = 'a3'")
    (different,) = audited(flow, **fields).anomalies
    assert (different.count, different.examples) == (1, ('{"account":"a3"}',))


def test_rows_that_the_target_refused_are_no_losses(flow: Flow) -> None:
    flow.execute(
        "CREATE TABLE {table} (id bigint CHECK (id <> 17), account text, _topic text, "
        "_partition int, _offset bigint)"
    )
    flow.send(60)
    flow.run()
    found = audited(flow)
    assert (found.verdict, found.rows, found.letters) == (Verdict.VALID, 59, 1)


def test_what_retention_removed_is_unknown_and_the_rest_is_checked(flow: Flow) -> None:
    flow.send(60, partition=1)
    flow.run()
    flow.retire(1, 45)
    found = audited(flow)
    assert found.verdict is Verdict.UNKNOWN
    assert "/1 [0, 45) cannot be read again: retention removed 45 records" in found.unknown[0]
    flow.execute("DELETE FROM {table} WHERE id = 50")
    assert counts(audited(flow)) == {"missing": 1}


def test_only_records_since_a_time_are_looked_at(flow: Flow) -> None:
    flow.send(20, partition=0)
    time.sleep(0.01)
    since = datetime.now(UTC)
    flow.send(30, partition=0)
    flow.run()
    flow.execute("DELETE FROM {table} WHERE id IN (3, 40)")
    found = audited(flow, since=since)
    assert (found.records, found.rows, counts(found)) == (30, 29, {"missing": 1})
    assert found.checked == {f"{flow.name}/0": [[20, 50]]}
    assert found.scope.startswith("records since 20")


def test_a_sample_says_how_sure_it_is(flow: Flow) -> None:
    flow.send(2000, partition=0)
    flow.run()
    found = audited(flow, sample=500)
    assert (found.verdict, found.records, found.rows) == (Verdict.VALID, 500, 500)
    assert "500 records in 10 windows, of 2,000 offsets" in found.scope
    flow.execute("UPDATE {table} SET account = 'x'")
    assert counts(audited(flow, sample="10%")) == {"different": 200}


def test_what_retention_removed_before_the_time_is_not_looked_at(flow: Flow) -> None:
    flow.send(30, partition=0)
    time.sleep(0.01)
    since = datetime.now(UTC)
    flow.send(20, partition=0)
    flow.run()
    flow.retire(0, 10)
    found = audited(flow, since=since)
    assert (found.verdict, found.records) == (Verdict.VALID, 20), found
    flow.retire(0, 30)
    assert audited(flow, since=since).verdict is Verdict.UNKNOWN, "those removed may be as new"


def test_what_lies_after_all_that_was_read_is_unknown(flow: Flow) -> None:
    flow.send(20)
    flow.run()
    found = audited(flow, since="2099-01-01T00:00:00Z")
    assert (found.verdict, found.records) == (Verdict.UNKNOWN, 0)
    assert "so nothing was checked" in found.unknown[0]


def test_a_ledger_that_claims_nothing_is_valid_over_an_empty_table_alone(flow: Flow) -> None:
    flow.run()
    found = audited(flow)
    assert (found.verdict, len(found.notes)) == (Verdict.VALID, 1)
    assert "the ledger claims no offset" in found.notes[0]
    flow.execute(f"INSERT INTO {{table}} VALUES (1, 'x', '{flow.name}', 0, 0)")
    assert counts(audited(flow)) == {"misplaced": 1}


def test_rows_that_another_transform_made_are_not_called_wrong(flow: Flow) -> None:
    first = {"transform": "SELECT id, account FROM source"}
    flow.send(10)
    flow.run(**first)
    assert audited(flow, **first).verdict is Verdict.VALID
    second = {"transform": "SELECT id, upper(account) AS account FROM source WHERE id <> 3"}
    found = audited(flow, **second)
    assert found.verdict is Verdict.UNKNOWN
    assert "1 unexpected" in found.unknown[0]
    assert "with another transform, schema or time zone than the present one" in found.unknown[0]
    flow.send(10)
    flow.run(**second)
    assert audited(flow, **second).verdict is audited(flow, **first).verdict is Verdict.UNKNOWN
    rebuild(flow.pipeline(**second), settings=flow.settings, spark=flow.spark)
    assert audited(flow, **second).verdict is Verdict.VALID
    flow.execute("DELETE FROM {table} WHERE id = 5")
    assert counts(audited(flow, **second)) == {"missing": 1}


def test_rows_of_others_are_left_out_where_the_table_is_shared(flow: Flow) -> None:
    flow.send(10)
    flow.run()
    others = "(1, 'x', 'another', 0, 0), (2, 'y', 'a third', 0, 0)"
    flow.execute(f"INSERT INTO {{table}} VALUES {others}")
    assert counts(audited(flow)) == {"misplaced": 2}
    shared = audited(flow, sink=Postgres(flow.name, shared=True))
    assert (shared.verdict, shared.rows) == (Verdict.VALID, 10)
    assert shared.notes == ("2 rows of others were not looked at",)
    flow.execute(f"INSERT INTO {{table}} VALUES (3, 'z', '{flow.name}', 0, 9999)")
    assert counts(audited(flow, sink=Postgres(flow.name, shared=True))) == {"misplaced": 1}


def test_only_rows_with_coordinates_can_be_checked_in_part(flow: Flow) -> None:
    fields = {"transform": COUNTS, "sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(10)
    flow.run(**fields)
    with pytest.raises(ConfigError, match="can be checked in part"):
        audited(flow, sample=5, **fields)


def test_a_batch_that_was_interrupted_explains_the_gap_that_it_left(flow: Flow) -> None:
    fields = {"sink": Postgres(flow.name, driver_rows=0)}
    flow.send(90)
    flow.run(**fields)
    ours = f"WHERE pipeline = '{flow.name}' AND strategy = 'partition'"
    assert min(flow.rows(f"SELECT rows FROM tallygate.batches {ours}")) >= 0
    flow.send(90)
    flow.run(**fields)
    assert audited(flow, **fields).verdict is Verdict.VALID
    last = f"{ours} AND number = (SELECT max(number) FROM tallygate.batches {ours})"
    flow.execute(f"UPDATE tallygate.batches SET rows = -1 {last}")
    assert audited(flow, **fields).verdict is Verdict.VALID
    flow.execute(f"DELETE FROM tallygate.batches {last}")
    assert counts(audited(flow, **fields)) == {"gap": 90}


def test_an_audit_of_a_running_pipeline_sees_one_moment(flow: Flow) -> None:
    flow.send(300)
    verdicts: list[tuple[Verdict, int]] = []

    def check(progress: Progress) -> None:
        found = audited(flow)
        verdicts.append((found.verdict, found.rows))

    flow.pipeline().run(
        until="available", settings=flow.settings, spark=flow.spark, on_progress=check
    )
    assert [verdict for verdict, _ in verdicts] == [Verdict.VALID] * 3
    assert [rows for _, rows in verdicts] == [100, 200, 300]


@pytest.mark.system
def test_the_command_says_what_it_found_by_its_exit_code(
    flow: Flow, tallygate: Tallygate, tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"name: {flow.name}\nsource: {{topic: {flow.name}, schema: '{SCHEMA}'}}\n"
        f"sink: {{table: {flow.name}}}\ncheckpoint: {flow.checkpoint}\n"
    )
    with pytest.raises(LedgerError, match="has never run"):
        audited(flow)
    flow.send(30)
    flow.run()
    said = tallygate("audit", str(file), "--name", "small").stdout
    assert f"{flow.name}: valid" in said
    flow.execute("DELETE FROM {table} WHERE id = 3")
    record = flow.rows("SELECT _partition, _offset FROM {table} WHERE id = 4")[0]
    place = ("--partition", str(record[0]), "--offset", str(record[1]))
    followed = tallygate("trace", str(file), "--name", "small", *place).stdout
    assert f"{flow.name}/{record[0]}@{record[1]}: row" in followed
    tallygate("trace", str(file), "--name", "small", code=ConfigError.exit_code)
    done = tallygate("audit", str(file), "--name", "small", "--json", code=1)
    found = json.loads(done.stdout)
    assert found["verdict"] == "invalid"
    assert found["counts"]["missing"] == 1
    flow.execute("ALTER TABLE {table} ALTER COLUMN id TYPE text USING 'x'")
    crashed = tallygate("audit", str(file), "--name", "small", code=2)
    assert "the audit could not be finished, so its result is unknown: " in crashed.stderr
