"""Staged rows count only if their task reported them, and only if all of them are still there."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from fixtures.flows import SCHEMA, Flow
from tallygate import Kafka, Postgres, Producer
from tallygate.core.ledger import Claim, Run
from tallygate.postgres.tables import upgrade
from tallygate.targets.postgres.staging import Staging
from tallygate.targets.postgres.table import TableName, columns_of


@pytest.fixture
def after_staging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Flow, str], None]]:
    """Run a statement on the staging table once, between the tasks and the merge."""

    def arm(flow: Flow, statement: str) -> None:
        merge = Staging.merge
        done: list[bool] = []

        def disturbed(self: Staging, *arguments: Any, **named: Any) -> int:
            if not done:
                done.append(True)
                with psycopg.connect(flow.stack.dsn) as connection:
                    connection.execute(statement.format(self.name).encode())
            return merge(self, *arguments, **named)

        monkeypatch.setattr(Staging, "merge", disturbed)

    yield arm


STAGED = {"mode": "upsert", "key": "id", "driver_rows": 0}


def test_rows_of_an_attempt_that_did_not_report_are_left_out(
    flow: Flow, after_staging: Callable[[Flow, str], None]
) -> None:
    """As of a task that failed after its commit, and was repeated."""
    flow.send(50)
    columns = "id, account, _topic, _partition, _offset, _attempt, _row"
    after_staging(
        flow,
        f"INSERT INTO tallygate.{{}} ({columns}) OVERRIDING SYSTEM VALUE "
        "VALUES (999, 'x', 't', 0, 0, 'lost', 1)",
    )
    flow.run(sink=Postgres(flow.name, **STAGED))
    flow.check()


def test_a_staging_table_that_postgres_emptied_is_filled_again(
    flow: Flow, after_staging: Callable[[Flow, str], None]
) -> None:
    """Unlogged tables are empty after a crash; the merge must not take that for no rows."""
    flow.send(50)
    after_staging(flow, "TRUNCATE tallygate.{}")
    flow.run(sink=Postgres(flow.name, **STAGED))
    flow.check()


def test_of_one_key_the_newest_record_counts_although_rows_are_merged_in_parts(
    flow: Flow, after_staging: Callable[[Flow, str], None]
) -> None:
    """Tasks that share a partition stage its rows in an order of their own, here the reverse one;
    a row that is refused makes the merge go by halves."""
    flow.execute(
        "CREATE TABLE {table} (id bigint PRIMARY KEY, account text CHECK (account <> 'no'))"
    )
    with Producer(flow.stack.cluster.connection) as producer:
        for number in range(400):
            row = {"id": number % 7, "account": "no" if number == 250 else f"v{number}"}
            producer.send(flow.name, json.dumps(row), partition=0)
    after_staging(flow, "UPDATE tallygate.{} SET _row = 1000 - _row")
    flow.run(
        source=Kafka(flow.name, schema=SCHEMA),
        sink=Postgres(flow.name, mode="upsert", key="id", driver_rows=0),
    )
    newest = {number % 7: f"v{number}" for number in range(400) if number != 250}
    assert flow.rows("SELECT id, account FROM {table} ORDER BY id") == sorted(newest.items())


def test_a_start_that_is_overtaken_leaves_the_staging_table_of_the_newer_run(flow: Flow) -> None:
    """It was paused between its epoch and its staging table, and still removes older ones."""

    def made(session: psycopg.Connection, epoch: int) -> Staging:
        return Staging.make(
            session,
            Claim(flow.name, Run(epoch=epoch)),
            table=TableName("public", flow.name),
            columns=(),
            staged=columns_of(StructType([StructField("id", LongType())])),
            key=(),
            mode="append",
        )

    with psycopg.connect(flow.stack.dsn, autocommit=True) as session:
        upgrade(session)
        names = [made(session, epoch).name for epoch in (5, 7, 6)]
        there = [
            session.execute("SELECT to_regclass(%s)::text", (f"tallygate.{name}",)).fetchone()
            for name in names
        ]
    assert there == [(None,), *((f"tallygate.{name}",) for name in names[1:])]


def test_split_partitions_are_not_committed_by_partition(flow: Flow) -> None:
    """With minPartitions two tasks share one Kafka partition: neither may move it alone."""
    flow.send(300, partition=0)
    source = Kafka(flow.name, schema="id long, account string", options={"minPartitions": "4"})
    flow.run(source=source, sink=Postgres(flow.name, driver_rows=0))
    flow.check()
    query = f"SELECT DISTINCT strategy FROM tallygate.batches WHERE pipeline = '{flow.name}'"
    assert flow.rows(query) == ["staged"]
