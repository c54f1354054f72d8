"""Forgetting a topic: the ledger keeps how far it was read, and the pipeline goes on without it."""

from pyspark.sql import SparkSession

from tallygate.engine.opening import PipelineOrPath, open_pipeline
from tallygate.engine.start import forget
from tallygate.settings import Settings


def forget_topic(
    pipeline: PipelineOrPath,
    topic: str,
    *,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
) -> dict[int, int]:
    """Have a pipeline forget a topic that it reads no more, or whose place another one has taken;
    return up to where each partition was read. Rows stay as they are. A run that is alive is
    fenced; the next start goes on with the other topics.

    The session is the one that is given, else the active one, else a new one, which is left
    running."""
    at = open_pipeline(pipeline, "forget-topic", settings, spark)
    done = forget(at.pipeline.request(at.spark, at.settings, {}), at.spark, topic)
    return {each.partition: each.until for each in done.ranges}
