"""Each source reads its own topics again, and none of the others'."""

from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from fixtures.blocks import raw_block
from tallygate import Kafka, Pipeline, Postgres
from tallygate.auditing.recompute import Noted, Source, _PassStep
from tallygate.core.offsets import Range
from tallygate.engine.frames import decoder_of

RANGES = [Range(topic, 0, 0, 5) for topic in ("payments", "shop.eu", "shop.us", "shops")]


def _topics(spark: SparkSession, **sources: Kafka) -> dict[str, list[str]]:
    pipeline = Pipeline(
        name="p", sources=sources, transform="SELECT 1 AS one", sink=Postgres("table")
    )
    nothing = cast(Any, None)
    source = Source(
        pipeline=pipeline, spark=spark, connection=nothing, statics=nothing, checkpoint=nothing
    )
    return {
        name: [each.topic for each in source.ranges_of(each, pipeline, RANGES)]
        for name, each in sources.items()
    }


def test_a_pattern_has_what_fits_it_and_nobody_else_names(spark: SparkSession) -> None:
    found = _topics(
        spark,
        some=Kafka(pattern=r"shop\.\p{Lower}+", schema="id long"),
        named=Kafka(["payments", "shop.us"], schema="id long"),
    )
    assert found == {"some": ["shop.eu"], "named": ["payments", "shop.us"]}


def test_a_pattern_alone_has_read_all_that_was_read(spark: SparkSession) -> None:
    found = _topics(spark, all=Kafka(pattern="changed since", schema="id long"))
    assert found == {"all": [each.topic for each in RANGES]}


def test_a_key_of_any_bytes_is_passed_as_it_is(tmp_path: Path) -> None:
    """As the target passes it."""
    step = _PassStep(decoder_of(Kafka("t", format="bytes")), "value", Noted(str(tmp_path)))
    (block,) = step.run([raw_block(b"\xff", None, b"text")])
    assert block.column("key").to_pylist() == [b"\xff", None, b"text"]
