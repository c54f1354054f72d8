"""What compaction has removed from a source is no fault of the sink."""

import pytest

from fixtures.audits import abort, audited, counts
from fixtures.flows import Flow
from tallygate import Postgres
from tallygate.auditing.compaction import Compacted
from tallygate.auditing.verdict import Verdict
from tallygate.waiting import wait_until

POLICIES = {"plain": "delete", "packed": "compact", "both": "compact,delete", "unsaid": None}


def _among(*topics: str) -> Compacted:
    return Compacted.among(topics, POLICIES.get)


def test_topics_are_told_apart_by_their_policy() -> None:
    assert _among("plain") == Compacted(())
    assert _among("packed", "plain", "both", "packed") == Compacted(("both", "packed"))
    assert _among("unsaid", "plain").topics == ("unsaid",), "it may be compacted"


def test_rows_of_records_that_are_gone_are_said_by_topic() -> None:
    assert _among("plain").rows({}) == []
    assert _among("packed", "both").rows({"packed": 3}) == [
        "3 rows are of records that compaction has removed from packed since"
    ]
    assert _among("unsaid").rows({"unsaid": 1}) == [
        "1 rows are of records that are not in unsaid, and its cleanup.policy could not be asked "
        "for"
    ]


@pytest.mark.parametrize(
    ("topic", "records", "said"),
    [("plain", 5, False), ("packed", 10, False), ("packed", 5, True), ("unsaid", 9, True)],
)
def test_results_are_in_doubt_where_offsets_lack_a_record(
    topic: str, records: int, *, said: bool
) -> None:
    reason = _among(topic).results(records=records, offsets=10)
    assert (reason is not None) is said
    if reason is not None:
        assert reason == f"compaction may have removed records from {topic} since"


def _compact(flow: Flow) -> None:
    """A cleaner is slow; that offsets have no record is what it leaves, and what the end of a
    transaction leaves too."""
    flow.topics.alter(flow.name, configs={"cleanup.policy": "compact"})
    wait_until(
        lambda: flow.topics.effective_configs(flow.name)["cleanup.policy"] == "compact",
        10,
        "the policy has not changed",
    )


@pytest.mark.parametrize("transform", [None, "SELECT * FROM source"], ids=["quick", "spark"])
def test_rows_of_records_that_compaction_removed_are_unknown(
    flow: Flow, transform: str | None
) -> None:
    flow.send(10, partition=0)
    abort(flow.stack.cluster.connection, flow.name, "{}", partition=0)
    flow.send(10, partition=0)
    flow.run(transform=transform)
    row = "SELECT 999, 'a', _topic, _partition, _offset + 2 FROM {table} WHERE id = 9"
    flow.execute(f"INSERT INTO {{table}} {row}")
    assert counts(audited(flow, transform=transform)) == {"unexpected": 1}
    _compact(flow)
    found = audited(flow, transform=transform)
    assert (found.verdict, found.anomalies) == (Verdict.UNKNOWN, ()), found
    said = f"1 rows are of records that compaction has removed from {flow.name} since"
    assert found.unknown == (said,)
    flow.execute("UPDATE {table} SET account = 'x' WHERE id = 3")
    assert counts(audited(flow, transform=transform)) == {"different": 1}


def test_results_of_records_that_compaction_removed_are_unknown(flow: Flow) -> None:
    fields = {
        "transform": "SELECT account, count(*) AS payments FROM source GROUP BY account",
        "sink": Postgres(flow.name, mode="upsert", key="account"),
    }
    flow.send(10, partition=0)
    flow.run(**fields)
    _compact(flow)
    flow.execute("UPDATE {table} SET payments = payments + 1 WHERE account = 'a1'")
    assert counts(audited(flow, **fields)) == {"different": 1}, "each offset has its record"
    abort(flow.stack.cluster.connection, flow.name, "{}", partition=0, key="a1")
    flow.send(1, partition=0)
    flow.run(**fields)
    found = audited(flow, **fields)
    assert (found.verdict, found.anomalies) == (Verdict.UNKNOWN, ()), found
    assert f"compaction may have removed records from {flow.name} since" in found.unknown[0]
