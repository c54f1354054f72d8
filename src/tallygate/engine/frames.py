"""The streaming frames of a pipeline's sources; of Kafka's, raw or decoded.

Decoding is a step of our own (see `core.decoding`), so that a record that is unfit is known with
its coordinates and its cause. Where the transform needs no JVM, the task that writes the rows
decodes them, and mostly reads them too (see `targets.batch_input`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader

from tallygate.core import avro
from tallygate.core.blocks import decoded as decoded_block
from tallygate.core.blocks import without
from tallygate.core.decoding import COORDINATES, METADATA, Decoder
from tallygate.core.letters import Coordinates
from tallygate.engine.lateness import Lateness
from tallygate.engine.schema import check_sample, declared, refuse_header
from tallygate.errors import ConfigError, UnreachableError
from tallygate.gc_tuning import collect_seldom
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS, HEADERS_DDL, fetch
from tallygate.spark.direct_read import UNTIL, ranges_in
from tallygate.spark.error_text import reason
from tallygate.spark.kafka_options import READING
from tallygate.spark.plan import DECODING
from tallygate.spec import Files, Kafka, Rate, Socket
from tallygate.targets.base import LetterKeeper
from tallygate.targets.task_report import report_step_errors
from tallygate.units import size_bytes, time_ms

Where = Callable[[str], str]
"""What a field of the source is called in messages."""
SOURCE: Where = "source.{}".format
LEFT_OUT = "is read, but was taken for one that is not needed"
"""What an error says that is this program's, and no record's."""
Reader = TypeVar("Reader", DataFrameReader, DataStreamReader)


def raw_stream(
    spark: SparkSession, source: Kafka, connection: Connection, *, headers: bool = False
) -> DataFrame:
    """The records of the source as Kafka has them."""
    reader = spark.readStream.format("kafka").options(**{**READING, **connection.spark()})
    reader = reader.option("kafka.isolation.level", "read_committed")
    if source.pattern is not None:
        reader = reader.option("subscribePattern", source.pattern)
    else:
        reader = reader.option("subscribe", ",".join(source.topic))
    reader = reader.options(**_start(source))
    if source.max_records is not None:
        reader = reader.option("maxOffsetsPerTrigger", source.max_records)
    if source.headers or headers:
        reader = reader.option("includeHeaders", "true")
    return reader.options(**source.options).load()


def other_stream(
    spark: SparkSession, source: Files | Socket | Rate, where: Where = SOURCE
) -> DataFrame:
    """The rows of a source that is not Kafka."""
    reader = spark.readStream
    if isinstance(source, Socket):
        return (
            reader.format("socket").option("host", source.host).option("port", source.port).load()
        )
    if isinstance(source, Rate):
        return reader.format("rate").option("rowsPerSecond", source.rate).load()
    if ":/" not in source.folder and not Path(source.folder).is_dir():
        raise ConfigError(f"{where('folder')}: {source.folder!r} is not a folder.")
    reader = _of_files(reader, source, where)
    _refuse_header(spark, source, where)
    # Spark passes files over that are a week older than the newest: nothing is skipped in silence.
    reader = reader.option("maxFileAge", "36500d")
    if source.max_files is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files)
    return reader.load(source.folder)


def check_files(spark: SparkSession, source: Files, where: Where) -> None:
    """Raise if files that are there already do not fit the schema."""
    rows = _of_files(spark.read, source, where).load(source.folder)
    _refuse_header(spark, source, where)
    check_sample(rows, where("schema"))


def _refuse_header(spark: SparkSession, source: Files, where: Where) -> None:
    if source.format == "csv":
        schema = declared(source.schema_ or "", where("schema"))
        refuse_header(spark, source.folder, schema, source.options, where("schema"))


def _of_files(reader: Reader, source: Files, where: Where) -> Reader:
    if source.schema_ is not None:
        declared(source.schema_, where("schema"))
        reader = reader.schema(source.schema_)
    if source.format in ("csv", "json"):
        # A line that does not fit stops the pipeline: Spark's own way would make nulls of it.
        reader = reader.option("mode", "FAILFAST")
    return reader.options(**source.options).format(source.format)


def _start(source: Kafka) -> dict[str, str]:
    if isinstance(source.start, dict):
        return {"startingOffsets": json.dumps(source.start)}
    if source.start in ("earliest", "latest"):
        return {"startingOffsets": source.start}
    return {
        "startingTimestamp": str(time_ms(source.start)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def fetchable(source: Kafka | Files | Socket | Rate, connection: Connection | None) -> bool:
    """Whether reading without Spark's source is the same: nothing was said to that one alone."""
    return (
        isinstance(source, Kafka)
        and connection is not None
        and not (source.options or connection.java_properties)
    )


def decoder_of(
    source: Kafka, metadata: tuple[str, ...] = COORDINATES, where: Where = SOURCE
) -> Decoder:
    """The decoder for the source's format and schema; making it refuses types that it lacks."""
    if source.format == "avro":
        fields = avro.arrow_schema(source.avro_schema or "")
    elif source.format in ("text", "bytes"):
        fields = pa.schema([("value", pa.string() if source.format == "text" else pa.binary())])
    else:
        try:
            fields = to_arrow_schema(declared(source.schema_ or "", where("schema")))
        except PySparkException as error:  # varchar(10), for one, is no type of Arrow
            raise ConfigError(
                f"{where('schema')}: {source.schema_!r} cannot be decoded: {reason(error)}."
            ) from None
    reserved = sorted(set(fields.names) & {*METADATA.names, "_headers"})
    if reserved:
        raise ConfigError(
            f"{where('schema')} has a field {reserved[0]!r}; that name stands for a record's "
            "metadata."
        )
    size = size_bytes(source.max_record)
    largest = None if size < 0 else size
    return Decoder(source.format, fields, metadata, source.avro_schema, largest)


def decoded(
    raw: DataFrame,
    source: Kafka,
    keeper: LetterKeeper,
    saw: Callable[[pa.RecordBatch], None] | None = None,
    metadata: tuple[str, ...] = tuple(METADATA.names),
    lateness: Lateness | None = None,
    needed: Collection[str] | None = None,
    where: Where = SOURCE,
    connection: Connection | None = None,
    apart: Set[Coordinates] = frozenset(),
) -> DataFrame:
    """The source's fields and metadata; what is unfit is left with the keeper, and by `lateness`
    what is late. `saw` is shown each block of raw records, in the worker. If it is known what is
    `needed`, the rest is decoded, since that tells whether a record is fit, and not given out: to
    read it nevertheless is an error. With a connection the step can also be given ranges in the
    place of records (see `spark.direct_read`), and reads them. Records that are kept `apart` are
    not given out: above this step Spark may compute with a row before it drops it."""
    decoder = decoder_of(source, metadata, where)
    schema = from_arrow_schema(decoder.schema)
    if source.headers:
        schema = schema.add("_headers", t._parse_datatype_string(HEADERS_DDL))
    if lateness is not None and not pa.types.is_timestamp(_type(decoder.schema, lateness.column)):
        raise ConfigError(f"the watermark's column {lateness.column!r} is not a timestamp.")
    given = [each for each in schema.fields if needed is None or each.name in needed]
    given = given or schema.fields[-1:]  # else the frame would not say how many rows there are
    names = [each.name for each in given]
    brokers = None if connection is None else connection.travelling()
    step = _DecodeStep(decoder, keeper, source.headers, saw, lateness, names, brokers, apart)

    def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step.run(blocks)

    run.__name__ = DECODING
    frame = raw.mapInArrow(run, t.StructType(given))
    if given == schema.fields:
        return frame
    return frame.select(
        *(
            f.col(each.name) if each in given else _left_out(each).alias(each.name)
            for each in schema.fields
        )
    )


def _left_out(column: t.StructField) -> Column:
    said = f"column {column.name} {LEFT_OUT}"
    return f.raise_error(said).cast(column.dataType)


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if name in schema.names else pa.null()


@dataclass(frozen=True)
class _DecodeStep:
    decoder: Decoder
    keeper: LetterKeeper
    headers: bool
    saw: Callable[[pa.RecordBatch], None] | None
    lateness: Lateness | None
    given: list[str]
    connection: Connection | None
    apart: Set[Coordinates]

    def run(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for raw, apart in self._records(blocks):
            if self.saw is not None and raw.num_rows:
                self.saw(raw)
            if apart:
                raw = without(raw, apart)
            made = decoded_block(raw, self.decoder)
            fit, letters = made.rows, made.letters
            if self.lateness is not None:
                letters += self.lateness.letters(raw, fit)
            if letters:
                # All of a block at a time: a topic keeps none before the last that it has.
                self.keeper.keep(letters)
            if self.headers:
                fit = fit.append_column("_headers", made.fit.column(HEADERS.name))
            yield fit.select(self.given)

    def _records(
        self, blocks: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, Set[Coordinates]]]:
        """The blocks, if they hold records; those of ranges are read here. With them, the records
        that are kept apart."""
        for block in blocks:
            if UNTIL not in block.schema.names:
                yield block, self.apart
                continue
            assert self.connection is not None
            ranges, ids, apart = ranges_in(block)
            collect_seldom()  # the worker may be of another daemon than ours
            with report_step_errors(lambda error: isinstance(error, UnreachableError)):
                for raw in fetch(ranges, self.connection, headers=self.headers, ids=ids):
                    yield raw, apart
