"""The audit finds what was planted by hand into a correct table, and nothing in one untouched."""

import json
from pathlib import Path
from typing import Any

from fixtures.commands import Tallygate
from fixtures.flows import SCHEMA, Flow
from tallygate import Postgres
from tallygate.audit.audit import audit
from tallygate.audit.verdict import Report, Verdict
from tallygate.errors import LedgerError
from tallygate.pipeline.engine import Progress

COUNTS = "SELECT account, count(*) AS payments FROM source GROUP BY account"


def _audited(flow: Flow, **fields: Any) -> Report:
    return audit(flow.pipeline(**fields), settings=flow.settings, spark=flow.spark)


def _counts(report: Report) -> dict[str, int]:
    return {each.kind: each.count for each in report.anomalies}


PLANTED = {
    "a deleted row": ("DELETE FROM {table} WHERE id = 20", {"missing": 1}),
    "a doubled row": (
        "INSERT INTO {table} SELECT * FROM {table} WHERE id = 20",
        {"duplicate": 1},
    ),
    "a changed value": ("UPDATE {table} SET account = 'x' WHERE id = 20", {"different": 1}),
    "a value made null": ("UPDATE {table} SET account = NULL WHERE id = 20", {"different": 1}),
    "a row of no record": (
        "UPDATE {table} SET _offset = 100000 WHERE id = 20",
        {"missing": 1, "misplaced": 1},
    ),
    "a row from nowhere": (
        "INSERT INTO {table} SELECT 999, 'a', _topic, _partition, _offset FROM {table} "
        "WHERE id = 20",
        {"duplicate": 1},
    ),
    "a ledger that claims too little": (
        "UPDATE tallygate.positions SET next_offset = next_offset - 1 WHERE pipeline = '{name}' "
        "AND partition = 0",
        {"misplaced": 1},
    ),
    "a dead letter removed": (
        "DELETE FROM tallygate.dead_letter_records WHERE pipeline = '{name}' AND value = 'bad'",
        {"undead": 1},
    ),
}


def test_what_was_planted_is_found(flow: Flow) -> None:
    """One after the other, each undone before the next; the untouched table is valid."""
    flow.send_text(["bad"])
    flow.send(200, partition=0)
    flow.send(100)
    flow.run()
    whole = _audited(flow)
    assert (whole.verdict, whole.records, whole.rows, whole.letters) == (
        Verdict.VALID,
        301,
        300,
        1,
    )
    mine = f"WHERE pipeline = '{flow.name}'"
    tables = {
        f'public."{flow.name}"': "",
        "tallygate.positions": mine,
        "tallygate.dead_letter_records": mine,
    }
    for number, (table, which) in enumerate(tables.items()):
        flow.execute(f"CREATE TABLE public.kept_{number} AS SELECT * FROM {table} {which}")
    wrong = {}
    for what, (statement, expected) in PLANTED.items():
        flow.execute(statement.replace("{name}", flow.name))
        found = _counts(_audited(flow))
        if found != expected:
            wrong[what] = found
        for number, (table, which) in enumerate(tables.items()):
            flow.execute(f"DELETE FROM {table} {which}")
            flow.execute(f"INSERT INTO {table} SELECT * FROM public.kept_{number}")
    assert wrong == {}
    assert _audited(flow).verdict is Verdict.VALID


def test_aggregates_are_compared_key_by_key(flow: Flow) -> None:
    fields = {"transform": COUNTS, "sink": Postgres(flow.name, mode="upsert", key="account")}
    flow.send(100)
    flow.run(**fields)
    assert _audited(flow, **fields).verdict is Verdict.VALID
    flow.execute("UPDATE {table} SET payments = payments + 1 WHERE account = 'a1'")
    flow.execute("DELETE FROM {table} WHERE account = 'a2'")
    flow.execute("INSERT INTO {table} VALUES ('nobody', 1)")
    found = _audited(flow, **fields)
    assert _counts(found) == {"different": 1, "missing": 1, "unexpected": 1}
    (different,) = [each for each in found.anomalies if each.kind == "different"]
    assert different.examples == ('{"account":"a1"}',)


def test_rows_that_the_target_refused_are_no_losses(flow: Flow) -> None:
    flow.execute(
        "CREATE TABLE {table} (id bigint CHECK (id <> 17), account text, _topic text, "
        "_partition int, _offset bigint)"
    )
    flow.send(60)
    flow.run()
    found = _audited(flow)
    assert (found.verdict, found.rows, found.letters) == (Verdict.VALID, 59, 1)


def test_what_retention_removed_is_unknown_and_the_rest_is_checked(flow: Flow) -> None:
    flow.send(60, partition=1)
    flow.run()
    flow.retire(1, 45)
    found = _audited(flow)
    assert found.verdict is Verdict.UNKNOWN
    assert "/1 [0, 45) cannot be read again: retention removed 45 records" in found.unknown[0]
    flow.execute("DELETE FROM {table} WHERE id = 50")
    assert _counts(_audited(flow)) == {"missing": 1}


def test_an_audit_of_a_running_pipeline_sees_one_moment(flow: Flow) -> None:
    flow.send(300)
    verdicts: list[tuple[Verdict, int]] = []

    def check(progress: Progress) -> None:
        found = _audited(flow)
        verdicts.append((found.verdict, found.rows))

    flow.pipeline().run(until="available", settings=flow.settings, spark=flow.spark, told=check)
    assert [verdict for verdict, _ in verdicts] == [Verdict.VALID] * 3
    assert [rows for _, rows in verdicts] == [100, 200, 300]


def test_the_command_says_what_it_found_by_its_exit_code(
    flow: Flow, tallygate: Tallygate, tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"name: {flow.name}\nsource: {{topic: {flow.name}, schema: '{SCHEMA}'}}\n"
        f"sink: {{table: {flow.name}}}\ncheckpoint: {flow.checkpoint}\n"
    )
    tallygate("audit", str(file), "--name", "small", code=LedgerError.exit_code)
    flow.send(30)
    flow.run()
    said = tallygate("audit", str(file), "--name", "small").stdout
    assert f"{flow.name}: valid" in said
    flow.execute("DELETE FROM {table} WHERE id = 3")
    done = tallygate("audit", str(file), "--name", "small", "--json", code=1)
    found = json.loads(done.stdout)
    assert found["verdict"] == "invalid"
    assert found["counts"]["missing"] == 1
