"""Who takes part, in what, and with which settings."""

from benchmarks import flink, limits, loops, ours, quix, spark
from benchmarks.contender import Contender

__all__ = ["CONTENDERS"]

INTO_POSTGRES = (
    Contender("tallygate", "exactly-once", ours.append, "no transform; commits by partition"),
    Contender("tallygate, SQL", "exactly-once", ours.with_sql, "a selection in SQL"),
    Contender("tallygate, shuffled", "exactly-once", ours.staged, "a shuffle; commits by staging"),
    Contender("spark jdbc", "at-least-once", spark.as_it_comes, "foreachBatch, nothing set"),
    Contender(
        "spark jdbc tuned",
        "at-least-once",
        spark.tuned,
        "reWriteBatchedInserts=true, batchsize=10000",
    ),
    Contender(
        "spark jdbc tuned, larger polls",
        "at-least-once",
        spark.larger_polls,
        "the same, with kafka.max.poll.records=10000",
    ),
    Contender(
        "spark jdbc tuned, SQL", "at-least-once", spark.with_sql, "the same, with the selection"
    ),
    Contender(
        "flink sql",
        "at-least-once",
        flink.into_table,
        "JDBC with reWriteBatchedInserts=true, 10,000 rows a flush, object reuse, checkpoints "
        "every 5 s, parallelism {processes}",
        on_spark=False,
    ),
    Contender(
        "quix streams",
        "at-least-once",
        quix.into_table,
        "its PostgreSQL sink, {processes} processes",
        on_spark=False,
    ),
    Contender(
        "copy loop",
        "exactly-once",
        loops.copy_loop,
        "confluent-kafka, orjson, COPY and offsets in one transaction, {processes} processes",
        on_spark=False,
    ),
    Contender("spark noop", "nothing", spark.nothing, "from_json, and nothing is written"),
    Contender(
        "raw copy",
        "nothing",
        limits.raw_copy,
        "COPY of rows that are there, 1 connection",
        on_spark=False,
    ),
)
INTO_KAFKA = (
    Contender(
        "tallygate to topic", "exactly-once", ours.pass_on, "keys and values as they are, no header"
    ),
    Contender("spark to topic", "at-least-once", spark.own_sink, "nothing set"),
    Contender(
        "flink sql to topic",
        "exactly-once",
        flink.into_topic,
        "raw format, checkpoints every 5 s, parallelism {processes}",
        on_spark=False,
    ),
    Contender(
        "quix streams to topic",
        "exactly-once",
        quix.into_topic,
        "bytes, exactly-once, {processes} processes",
        on_spark=False,
    ),
    Contender(
        "transactional loop",
        "exactly-once",
        loops.transactional_loop,
        "confluent-kafka, 50,000 records a transaction, {processes} processes",
        on_spark=False,
    ),
    Contender(
        "raw consumption",
        "nothing",
        limits.raw_consumption,
        "a bare consumer, 1 process",
        on_spark=False,
    ),
)
WINDOWED = (
    Contender("tallygate windows", "exactly-once", ours.windows, "upsert by window and account"),
    Contender("merge", "at-least-once", spark.merged, "a staging table by tuned JDBC, then MERGE"),
)
FILES = (
    Contender("tallygate to files", "exactly-once", ours.into_files, "Parquet"),
    Contender("spark to files", "exactly-once", spark.files, "Parquet, for Spark's readers only"),
)
CONTENDERS = {
    "postgres": INTO_POSTGRES,
    "kafka": INTO_KAFKA,
    "windows": WINDOWED,
    "files": FILES,
}
