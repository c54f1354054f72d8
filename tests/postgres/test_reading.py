"""A table is read in parts that all see one moment, whatever its columns are."""

import psycopg
from pyspark.sql import SparkSession

from tallygate import Stack
from tallygate.postgres.read import TableReading


def test_all_parts_see_the_moment_of_the_snapshot(small_stack: Stack, spark: SparkSession) -> None:
    with psycopg.connect(small_stack.dsn, autocommit=True) as writer:
        writer.execute(
            "CREATE TABLE public.reading (id int, small smallint, big bigint, flag boolean, "
            "real real, double double precision, amount numeric(12,3), name text, "
            "short varchar(9), data bytea, day date, at timestamptz, plain timestamp, "
            "document jsonb, many int[], gap interval, who uuid)"
        )
        writer.execute(
            "INSERT INTO public.reading SELECT n, n, n, n % 2 = 0, n, n, n / 4.0, "
            "repeat('x', 200), 'y', '\\x00ff', '2026-01-31', '2026-01-31 12:00+00', "
            "'2026-01-31 12:00', '{\"a\": 1}', '{1,2}', '1 day', gen_random_uuid() "
            "FROM generate_series(1, 1000) AS n"
        )
        with psycopg.connect(small_stack.dsn) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found = holder.execute(
                "SELECT pg_export_snapshot(), pg_relation_size('public.reading') / 8192"
            ).fetchone()
            assert found is not None
            reading = TableReading(
                dsn=small_stack.dsn, table="public.reading", snapshot=found[0], pages=found[1]
            )
            writer.execute("DELETE FROM public.reading WHERE id <= 500")
            writer.execute("INSERT INTO public.reading (id) SELECT generate_series(2000, 2500)")
            rows = reading.rows(spark)
            assert sorted(row.id for row in rows.select("id").collect()) == list(range(1, 1001))
            some = reading.rows(spark, "id % 100 = 0 OR id < 3")
            assert some.count() == 12
            (one,) = rows.where("id = 6").collect()
    assert (one.small, one.big, one.flag, one.amount) == (6, 6, True, "1.500")
    assert (one.document, one.many, one.data) == ('{"a": 1}', "{1,2}", bytearray(b"\x00\xff"))
    assert (one.day.isoformat(), one.at.isoformat()) == ("2026-01-31", "2026-01-31T12:00:00")
