"""What the clock and chance give is known by the plan, and where it goes."""

import pytest
from pyspark.sql import SparkSession

from tallygate.spark.unsteady import Unsteady, unsteady_in

QUERIES = {
    "SELECT id, id * 2 AS twice FROM range(3) WHERE id > 1": Unsteady(),
    "SELECT id, now() AS at, uuid() AS u FROM range(3)": Unsteady({"at": "now()", "u": "uuid()"}),
    "SELECT id, date_trunc('day', at) AS day FROM (SELECT id, current_timestamp() AS at "
    "FROM range(3))": Unsteady({"day": "current_timestamp()"}),
    "SELECT id FROM (SELECT id, rand() AS dice FROM range(3))": Unsteady(),
    "SELECT id FROM range(3) WHERE current_date() > DATE '2026-01-01'": Unsteady(
        rows="current_date()"
    ),
    "SELECT id FROM (SELECT id, rand() AS dice FROM range(3)) WHERE dice > 0.5": Unsteady(
        rows="rand()"
    ),
    "SELECT id, 'a' AS at FROM range(3) UNION ALL SELECT id, string(now()) FROM range(3)": Unsteady(
        {"at": "now()"}
    ),
    "SELECT day, count(*) AS n FROM (SELECT current_date() AS day FROM range(3)) GROUP BY day": (
        Unsteady({"day": "current_date()"}, "current_date()")
    ),
    "SELECT id, count_if(now() > TIMESTAMP '2026-01-01') AS n FROM range(3) GROUP BY id": Unsteady(
        {"n": "now()"}
    ),
    "WITH t AS (SELECT id, now() AS at FROM range(3)) SELECT a.at, b.at AS other, b.id "
    "FROM t a JOIN t b ON a.id = b.id": Unsteady({"at": "now()", "other": "now()"}),
    "SELECT * FROM range(3) WHERE id > (SELECT max(id) * rand() FROM range(2))": Unsteady(
        rows="scalarsubquery()"
    ),
}


@pytest.mark.parametrize("query", QUERIES)
def test_what_would_be_another_the_next_time_is_known(spark: SparkSession, query: str) -> None:
    assert unsteady_in(spark.sql(query)) == QUERIES[query]
