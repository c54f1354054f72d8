"""What proves the promise is reached from Python, by a pipeline or by the path of its file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tallygate
from fixtures.commands import Tallygate
from fixtures.flows import SCHEMA, Flow
from tallygate import Pipeline, Producer, Verdict
from tallygate.errors import ConfigError, LedgerError, TopicError

SINKS = ["postgres", "kafka", "parquet", "delta"]


def _sink(flow: Flow, kind: str) -> dict[str, Any]:
    rows = str(flow.folder / "rows")
    return {
        "postgres": {"table": flow.name},
        "kafka": {"topic": f"{flow.name}-out"},
        "parquet": {"parquet": rows},
        "delta": {"delta": rows},
    }[kind]


def _file(flow: Flow, kind: str = "postgres") -> Path:
    """The YAML file of a pipeline of this flow."""
    spec = {
        "name": flow.name,
        "source": {"topic": flow.name, "schema": SCHEMA, "max_records": 100},
        "sink": _sink(flow, kind),
        "checkpoint": str(flow.checkpoint),
    }
    path = flow.folder / "flow.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def _run(flow: Flow, file: Path) -> dict[str, Any]:
    """Run until all is read; returns what the functions are given besides the pipeline."""
    given: dict[str, Any] = {"settings": flow.settings, "spark": flow.spark}
    Pipeline.load(file).run(until="available", **given)
    return given


def test_an_audit_is_true_until_a_row_is_gone(flow: Flow) -> None:
    flow.send(30, partition=0)
    file = _file(flow)
    given = _run(flow, file)
    assert tallygate.audit(file, **given)
    flow.execute("DELETE FROM {table} WHERE id = 17")
    for pipeline in (file, str(file), Pipeline.load(file), flow.pipeline()):
        found = tallygate.audit(pipeline, **given)
        assert not found
        assert (found.verdict, found.counts["missing"], found.records) == (Verdict.INVALID, 1, 30)
        where = f'{{"_topic":"{flow.name}","_partition":0,"_offset":17}}'
        assert repr(found).endswith(f"invalid; 1 missing ({where})>")
        assert str(found).endswith(f"\n  missing: 1\n    {where}")
    assert tallygate.audit(file, since="2000-01-01T00:00:00Z", **given).counts["missing"] == 1
    with pytest.raises(ConfigError, match="is not a sample"):
        tallygate.audit(file, sample="some", **given)


def test_an_audit_that_cannot_see_everything_is_not_true(flow: Flow) -> None:
    flow.send(30, partition=0)
    file = _file(flow)
    given = _run(flow, file)
    flow.retire(0, 10)
    found = tallygate.audit(file, **given)
    assert not found
    assert found.verdict is Verdict.UNKNOWN
    assert "unknown: " in str(found)
    assert "retention removed 10 records" in repr(found)


def test_an_audit_that_cannot_be_done_raises(flow: Flow) -> None:
    flow.run()
    other = flow.pipeline(name=f"{flow.name}_other")
    with pytest.raises(LedgerError, match="has never run into this database"):
        tallygate.audit(other, settings=flow.settings, spark=flow.spark)


def test_the_active_session_is_taken_and_left_running(flow: Flow) -> None:
    flow.send(5)
    flow.run()
    assert tallygate.audit(flow.pipeline(), settings=flow.settings)
    assert flow.spark.range(3).count() == 3


TASK = """
import sys, tallygate
from pyspark.sql import SparkSession
settings = tallygate.Settings.load({"stack": sys.argv[2]})
for _ in range(2):
    result = tallygate.audit(sys.argv[1], settings=settings)
    print(SparkSession.getActiveSession().sparkContext.applicationId)
if not result:
    raise RuntimeError(str(result))
"""


@pytest.mark.system
def test_a_task_without_a_session_makes_one_and_shows_why_it_fails(flow: Flow) -> None:
    flow.send(5, partition=0)
    flow.run()
    flow.execute("DELETE FROM {table} WHERE id = 3")
    command = [sys.executable, "-c", TASK, str(_file(flow)), flow.stack.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert f"RuntimeError: {flow.name}: invalid" in done.stderr
    assert "missing: 1" in done.stderr
    first, second = done.stdout.split()
    assert first == second, "the second call takes over the session of the first"


def test_a_record_is_followed_to_its_row_and_back(flow: Flow) -> None:
    flow.send(8, partition=0)
    file = _file(flow)
    given = _run(flow, file)
    for at in (f"{flow.name}/0@3", "0@3", (flow.name, 0, 3), (0, 3)):
        (found,) = tallygate.trace(file, at, **given)
        assert found
        assert (found.became, [row["id"] for row in found.rows]) == ("row", [3])
    back = tallygate.trace(flow.pipeline(), where="id IN (3, 5)", **given)
    assert [each.offset for each in back] == [3, 5]
    assert tallygate.trace(file, where="id = 99", **given) == []
    flow.execute("DELETE FROM {table} WHERE id = 3")
    (gone,) = tallygate.trace(file, "0@3", **given)
    assert not gone
    assert str(gone).splitlines()[0] == f"{flow.name}/0@3: missing"


def test_a_pipeline_is_rebuilt(flow: Flow) -> None:
    flow.send(30)
    file = _file(flow)
    given = _run(flow, file)
    flow.execute("UPDATE {table} SET account = 'x'")
    assert not tallygate.audit(file, **given)
    done = tallygate.rebuild(file, **given)
    assert done.summary.records == 30
    assert done.before is not None
    assert tallygate.audit(file, **given)


def test_the_status_of_one_pipeline_and_of_all(flow: Flow) -> None:
    flow.send(30)
    flow.run()
    one = tallygate.status(flow.name, settings=flow.settings)
    assert (one.name, one.state, sum(one.positions.values())) == (flow.name, "stopped", 30)
    assert one in tallygate.status(settings=flow.settings)
    with pytest.raises(ConfigError, match=f"no pipeline '{flow.name}x'; did you mean"):
        tallygate.status(f"{flow.name}x", settings=flow.settings)


@pytest.mark.parametrize("kind", SINKS)
def test_dead_letters_are_the_same_values_whatever_the_sink(
    flow: Flow, kind: str, request: pytest.FixtureRequest
) -> None:
    flow.topics.create(f"{flow.name}-out")
    flow.send(2, partition=0)
    bad = [b"not JSON", b"\xff\x00"]
    with Producer(flow.stack.cluster.connection) as producer:
        for value in bad:
            producer.send(flow.name, value, key="k", partition=0)
    file = _file(flow, kind)
    if kind == "kafka":  # it passes bytes on unless something is made of them
        file.write_text(file.read_text() + "transform: SELECT * FROM source\n")
    given = _run(flow, file)
    found = tallygate.dead_letters(file, **given)
    assert [each.coordinates for each in found] == [f"{flow.name}/0@{n}" for n in (2, 3)]
    assert [each.value for each in found] == bad
    assert all(each.cause and each.key == b"k" and each.time for each in found)
    assert not any(each.replayed or each.is_row for each in found)
    assert tallygate.dead_letters(Pipeline.load(file), **given) == found
    command = ("dead-letters", "list", str(file), "--name", flow.stack.name, "-o", "json")
    run_command: Tallygate = request.getfixturevalue("tallygate")  # the module has that name here
    listed = json.loads(run_command(*command).stdout)
    assert [each["from"] for each in listed] == [each.coordinates for each in found]
    (followed,) = tallygate.trace(file, found[0].coordinates, **given)
    assert (followed.became, followed.cause) == ("dead letter", found[0].cause)


@pytest.mark.parametrize("kind", SINKS)
def test_a_pipeline_that_never_ran_has_no_list_of_dead_letters(flow: Flow, kind: str) -> None:
    flow.send(2)
    other = flow.pipeline(name=f"{flow.name}_other", sink=_sink(flow, kind))
    with pytest.raises((LedgerError, TopicError), match=r"never|does not exist|unknown|no topic"):
        tallygate.dead_letters(other, settings=flow.settings, spark=flow.spark)


def test_a_sink_without_a_ledger_keeps_none(flow: Flow) -> None:
    pipeline = flow.pipeline(sink={"console": 1}, delivery="at-least-once")
    with pytest.raises(ConfigError, match=f"a sink console keeps no ledger.*{flow.name}.jsonl"):
        tallygate.dead_letters(pipeline, settings=flow.settings)
    with pytest.raises(ConfigError, match="a sink console keeps no ledger.*nothing to audit"):
        tallygate.audit(pipeline, settings=flow.settings, spark=flow.spark)
