"""What the PostgreSQL sink takes, makes, checks and refuses."""

from contextlib import suppress
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from fixtures.flows import Flow
from tallygate import DeadLetters, Kafka, Postgres
from tallygate.errors import ConfigError, InputError, TargetError

EVERY_TYPE = """
SELECT id, true AS b, CAST(1 AS byte) AS i1, CAST(2 AS short) AS i2, CAST(3 AS int) AS i4,
  CAST(1.5 AS float) AS f4, CAST(2.5 AS double) AS f8,
  CAST('12345678901234567.89' AS decimal(20,2)) AS d,
  'é' AS s, X'00ff' AS bin, DATE'0001-01-01' AS da, TIMESTAMP'2026-01-01 00:00:00+02:00' AS ts,
  TIMESTAMP_NTZ'2026-06-01 12:00:00' AS tn, INTERVAL '1 02:03:04' DAY TO SECOND AS dt,
  INTERVAL '1-2' YEAR TO MONTH AS ym, array(1L, null) AS ints, array('a') AS texts,
  map('k', 1) AS m, named_struct('x', 1, 'y', array('z')) AS st, array(array(1)) AS nested
FROM source
"""


@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "partition"])
def test_every_type(flow: Flow, driver_rows: int) -> None:
    flow.send(10)
    flow.run(transform=EVERY_TYPE, sink=Postgres(flow.name, driver_rows=driver_rows))
    found = flow.rows("SELECT row_to_json(t) FROM (SELECT * FROM {table} WHERE id = 3) AS t")
    row: dict[str, Any] = found[0]
    expected = {
        "id": 3,
        "b": True,
        "i1": 1,
        "i2": 2,
        "i4": 3,
        "f4": 1.5,
        "f8": 2.5,
        "s": "é",
        "bin": "\\x00ff",
        "da": "0001-01-01",
        "tn": "2026-06-01T12:00:00",
        "dt": "26:03:04",
        "ym": "INTERVAL '1-2' YEAR TO MONTH",
        "ints": [1, None],
        "texts": ["a"],
        "m": {"k": 1},
        "st": {"x": 1, "y": ["z"]},
        "nested": [[1]],
        "_topic": flow.name,
    }
    assert {name: row[name] for name in expected} == expected
    assert flow.rows("SELECT d::text, ts AT TIME ZONE 'UTC' FROM {table} WHERE id = 3")[0] == (
        "12345678901234567.89",
        flow.rows("SELECT timestamp '2025-12-31 22:00:00'")[0],
    )


@pytest.mark.parametrize("driver_rows", [20_000, 0], ids=["driver", "partition"])
def test_rows_that_postgres_refuses_become_dead_letters(flow: Flow, driver_rows: int) -> None:
    """A NUL, and a constraint; all other rows of the batch are written."""
    flow.send(60)
    flow.execute(
        "CREATE TABLE {table} (id bigint CHECK (id <> 17), account text, "
        "_topic text, _partition int, _offset bigint)"
    )
    transform = "SELECT id, IF(id = 5, concat('a', char(0)), account) AS account FROM source"
    flow.run(transform=transform, sink=Postgres(flow.name, driver_rows=driver_rows))
    assert flow.rows() == [n for n in range(60) if n not in (5, 17)]
    letters = flow.rows(
        "SELECT cause, convert_from(value, 'UTF8') FROM tallygate.dead_letters "
        f"WHERE pipeline = '{flow.name}' ORDER BY cause"
    )
    assert len(letters) == 2
    assert "violates check constraint" in str(letters[1][0]) + str(letters[0][0])
    assert any('"id":17' in str(value) for _, value in letters)


def test_rows_refused_at_the_merge_become_dead_letters(flow: Flow) -> None:
    flow.send(60)
    flow.execute("CREATE TABLE {table} (id bigint PRIMARY KEY CHECK (id <> 17), account text)")
    flow.run(sink=Postgres(flow.name, mode="upsert", key="id", driver_rows=0))
    assert flow.rows() == [n for n in range(60) if n != 17]
    assert flow.rows(
        f"SELECT count(*) FROM tallygate.dead_letters WHERE pipeline = '{flow.name}'"
    ) == [1]


def test_a_refused_row_of_an_aggregate_stops_the_pipeline(flow: Flow) -> None:
    flow.send(10)
    transform = "SELECT concat(account, char(0)) AS account, count(*) AS n FROM source GROUP BY 1"
    sink = Postgres(flow.name, mode="upsert", key="account")
    with pytest.raises(TargetError, match="does not have the coordinates"):
        flow.run(transform=transform, sink=sink)
    assert flow.rows("SELECT count(*) FROM {table}") == [0]


def test_too_many_dead_letters_stop_the_pipeline_and_are_kept(flow: Flow) -> None:
    flow.send(20)
    flow.send_text(["nonsense"] * 3)
    with pytest.raises(InputError, match="3 records are dead letters, more than the limit of 2"):
        flow.run(dead_letters=DeadLetters(limit=2))
    assert len(flow.rows()) == 20
    flow.run(dead_letters=DeadLetters(limit=3))
    flow.send_text(["nonsense", '{"id": 1}'])
    with pytest.raises(InputError, match="1 of 2 records of a batch .* share of 0.1"):
        flow.run(dead_letters=DeadLetters(share=0.1))


def test_of_several_records_of_one_key_the_last_wins(flow: Flow) -> None:
    flow.send(100)
    for driver_rows in (20_000, 0):
        flow.run(sink=Postgres(flow.name, mode="upsert", key="account", driver_rows=driver_rows))
        assert sorted(flow.rows("SELECT id FROM {table}")) == list(range(flow.sent - 5, flow.sent))
        flow.send(100)


def test_any_identifier_is_quoted(flow: Flow) -> None:
    flow.send(5)

    def rename(source: DataFrame) -> DataFrame:
        return source.selectExpr('id AS `a "b`', "account AS `select`", "id AS `x;y'`")

    for mode in ({}, {"mode": "upsert", "key": ['a "b']}):
        table = f'"public"."odd ""{flow.name} {len(mode)}"'
        flow.run(
            transform=rename,
            sink=Postgres(table, **mode),
            name=f"{flow.name}-{len(mode)}",
            checkpoint=f"{flow.checkpoint}-{len(mode)}",
        )
        assert flow.rows(f'SELECT "a ""b", "select", "x;y\'" FROM {table} ORDER BY 1')[4] == (
            4,
            "a4",
            4,
        )


def test_an_existing_table_of_wider_types_is_taken_and_others_are_listed(flow: Flow) -> None:
    flow.send(5)
    flow.execute(
        "CREATE TABLE {table} (n bigint, d numeric, t varchar(9), "
        "extra int DEFAULT 4, _topic text, _partition bigint, _offset bigint)"
    )
    flow.execute(f'CREATE TABLE public."{flow.name}-bad" (n smallint, must int NOT NULL)')
    transform = (
        "SELECT CAST(id AS int) AS n, CAST(1.5 AS decimal(3,1)) AS d, account AS t FROM source"
    )
    flow.run(transform=transform)
    assert flow.rows("SELECT n, d::text, t, extra FROM {table} ORDER BY n")[1] == (
        1,
        "1.5",
        "a1",
        4,
    )
    with pytest.raises(TargetError) as caught:
        flow.run(transform=transform, sink=Postgres(f"{flow.name}-bad"), name=f"{flow.name}-bad")
    for part in (
        "'n' is smallint there and integer here (int)",
        "no column 'd' (numeric(3,1))",
        "'must' is NOT NULL there and not given here",
    ):
        assert part in str(caught.value)


NOT_AS_LASTING = {
    "UNLOGGED TABLE {table} (id bigint, account text)": r"is unlogged: PostgreSQL empties it after",
    "TABLE {table} (id bigint, account text) PARTITION BY RANGE (id); CREATE UNLOGGED TABLE "
    "{part} PARTITION OF {table} DEFAULT": r"has the part .*_part, which is unlogged.*_part SET",
    "FOREIGN TABLE {table} (id bigint, account text) SERVER elsewhere": "is a foreign table",
    "VIEW {table} AS SELECT 1::bigint AS id, '' AS account": "is a view: name an ordinary table",
}


@pytest.mark.parametrize("made", NOT_AS_LASTING)
def test_a_table_that_keeps_its_rows_less_long_than_the_ledger_is_refused(
    flow: Flow, made: str
) -> None:
    table, part = f'public."{flow.name}"', f'public."{flow.name}_part"'
    with psycopg.connect(flow.stack.dsn, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):
            connection.execute(b"CREATE FOREIGN DATA WRAPPER nowhere")
            connection.execute(b"CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere")
        for statement in f"CREATE {made}".format(table=table, part=part).split("; "):
            connection.execute(statement.encode())
        flow.send(10)
        with pytest.raises(TargetError, match=NOT_AS_LASTING[made]):
            flow.run(sink=Postgres(flow.name, coordinates=False))
        if "UNLOGGED" in made:
            lasting = part if "PARTITION" in made else table
            connection.execute(f"ALTER TABLE {lasting} SET LOGGED".encode())
            flow.run(sink=Postgres(flow.name, coordinates=False))
            flow.check()


def test_a_replaced_table_holds_the_newest_result(flow: Flow) -> None:
    counts = "SELECT account, count(*) AS n FROM source GROUP BY account"
    for expected in (2, 4):
        flow.send(10)
        flow.run(transform=counts, sink=Postgres(flow.name, mode="replace"))
        assert flow.rows("SELECT account, n FROM {table} ORDER BY 1") == [
            (f"a{n}", expected) for n in range(5)
        ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"transform": "SELECT nope FROM source"}, "transform of .*nope"),
        ({"transform": "SELECT 1 AS _offset, id FROM source"}, "a column '_offset' of its own"),
        ({"transform": lambda source: None}, "returned a NoneType"),
        ({"source": Kafka("t", schema="id lonk")}, "source.schema of .*: 'id lonk' cannot be read"),
        ({"source": Kafka("t", schema="_key string")}, "a field '_key'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    flow: Flow, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        flow.run(**fields)
    assert flow.rows("SELECT to_regclass('{table}') IS NULL") == [True]
