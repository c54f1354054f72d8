"""The source once more, over exactly the ranges that the ledger claims, through the transform in
batch mode."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallygate.core.decoding import COORDINATES, Decoder, fit_records
from tallygate.core.letters import Coordinates, Letter, letter_of
from tallygate.core.offsets import Range
from tallygate.engine.factory import source_connection
from tallygate.engine.frames import decoded, decoder_of
from tallygate.engine.lookup_tables import Statics
from tallygate.engine.opening import Opened
from tallygate.engine.pipeline import Pipeline
from tallygate.engine.transform import transformed
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.plan import DECODING, fits_pattern
from tallygate.spark.records import records
from tallygate.spec import Kafka, PipelineSpec
from tallygate.targets.kafka.records import as_key

_PASSED = "key binary, value binary, _topic string, _partition int, _offset long"


@dataclass(frozen=True)
class Noted:
    """Where the decoding step leaves what the audit must know of its records: the coordinates of
    those that are unfit, and how many there were in each block. A task that is repeated notes the
    same again, under the same names, so nothing counts twice. It travels to the workers."""

    folder: str

    def aside(self, name: str) -> "Noted":
        """A place for what is read once more, and must not count again."""
        folder = Path(self.folder) / name
        folder.mkdir(exist_ok=True)
        return Noted(str(folder))

    def keep(self, letters: list[Letter]) -> None:
        self._write("letters", [[each.topic, each.partition, each.offset] for each in letters])

    def saw(self, raw: pa.RecordBatch) -> None:
        first = [raw.column(name)[0].as_py() for name in ("topic", "partition", "offset")]
        self._write("blocks", [[*first, raw.num_rows]])

    def counted(self, records: Mapping[Coordinates, int]) -> None:
        """How many records there are in blocks that begin at these coordinates."""
        self._write("blocks", [[*at, count] for at, count in records.items()])

    def unfit(self) -> set[Coordinates]:
        return {(topic, number, offset) for topic, number, offset in self._read("letters")}

    def records(self) -> int:
        """How many records were read."""
        blocks = {(topic, number, at): count for topic, number, at, count in self._read("blocks")}
        return sum(blocks.values())

    def _write(self, kind: str, rows: list[list[object]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (Path(self.folder) / f"{uuid.uuid4().hex}.{kind}").write_text(text)

    def _read(self, kind: str) -> Iterator[list[Any]]:
        for file in Path(self.folder).glob(f"*.{kind}"):
            yield from map(json.loads, file.read_text().splitlines())


@dataclass(frozen=True, kw_only=True)
class Source:
    """The pipeline's sources and its transform, to be gone through again."""

    pipeline: Pipeline
    spark: SparkSession
    connection: Connection
    statics: Statics
    checkpoint: Checkpoint
    apart: frozenset[Coordinates] = frozenset()
    """Records of which the stream has made nothing, as the sink's dead letters say: they came too
    late, or the transform fails on them. They are not given to it again."""
    beyond_spark: bool = False
    """Whether there are records that Spark's own reader cannot read."""

    @classmethod
    def of(cls, at: Opened) -> "Source":
        pipeline, settings, spark = at.pipeline, at.settings, at.spark
        connection = source_connection(pipeline, settings)
        if connection is None or len(pipeline.topics_read) < len(pipeline.streams):
            raise ConfigError(
                "only pipelines that read Kafka can be audited: others cannot be read again."
            )
        return cls(
            pipeline=pipeline,
            spark=spark,
            connection=connection,
            statics=pipeline.statics(spark, settings),
            checkpoint=Checkpoint(spark, pipeline.checkpoint_path(settings)),
        )

    @property
    def passes(self) -> bool:
        """Whether records go from topic to topic as they are."""
        return self.pipeline.transform is None and self.pipeline.sink.is_topic

    def recomputed(
        self, ranges: Sequence[Range], noted: Noted, spec: PipelineSpec | None = None
    ) -> DataFrame:
        """What the transform gives from these records."""
        spec = spec or self.pipeline
        views = {}
        for name, source in spec.topics_read.items():
            mine = self.ranges_of(source, spec, ranges)
            headed = looks_at_headers(spec, source)
            raw = self.records(mine, headers=headed)
            if spec.transform is None and spec.sink.is_topic:
                return _passed(raw, source, next(iter(spec.sink.keys), None), noted)
            if spec.transform is None:
                held = [HEADERS.name] if headed else []
                plain = raw.select("key", "value", "topic", "partition", "offset", *held)
                whole = source.model_copy(update={"headers": False})
                return decoded(plain, whole, noted, noted.saw, COORDINATES)
            views[name] = decoded(raw, source, noted, noted.saw, apart=self.apart)
        sides = self.statics.seen(self.checkpoint) if self.statics.sides else {}
        return transformed(self.spark, spec, {**views, **sides})

    def records(self, ranges: Sequence[Range], **options: bool) -> DataFrame:
        return records(
            self.spark, self.connection, ranges, beyond_spark=self.beyond_spark, **options
        )

    def ranges_of(self, source: Kafka, spec: PipelineSpec, ranges: Sequence[Range]) -> list[Range]:
        """Those that the source has read. The only source has read them all, whatever topics it
        names by now."""
        if len(spec.streams) == 1:
            return list(ranges)
        if source.pattern is None:
            return [each for each in ranges if each.topic in source.topic]
        named = {topic for each in spec.streams.values() for topic in getattr(each, "topic", ())}
        unnamed = {each.topic for each in ranges} - named
        fitting = {topic for topic in unnamed if fits_pattern(self.spark, source.pattern, topic)}
        return [each for each in ranges if each.topic in fitting]


def looks_at_headers(spec: PipelineSpec, source: Kafka) -> bool:
    """Whether the pipeline reads records with their headers, whose names may make them unfit."""
    if spec.transform is None and spec.sink.decodes:
        return spec.sink.is_topic
    return source.headers


def _passed(raw: DataFrame, source: Kafka, key: str | None, noted: Noted) -> DataFrame:
    """Records that go from topic to topic as they are, but for those that are unfit."""
    step = _PassStep(decoder_of(source), key, noted)

    def run(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step.run(blocks)

    run.__name__ = DECODING
    return raw.mapInArrow(run, _PASSED)


@dataclass(frozen=True)
class _PassStep:
    decoder: Decoder
    key: str | None
    noted: Noted

    def run(self, blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for raw in blocks:
            if not raw.num_rows:
                continue
            self.noted.saw(raw)
            fields, unfit = self.decoder.decode(raw)
            if unfit:
                self.noted.keep([letter_of(raw, each.index, each.cause) for each in unfit])
            fit = fit_records(raw, unfit)
            keys = fit.column("key")
            if self.key is not None:
                keys = as_key(fields.column(self.key))
            columns = [fit.column(name) for name in ("topic", "partition", "offset")]
            yield pa.RecordBatch.from_arrays(
                [keys, fit.column("value"), *columns], ["key", "value", *COORDINATES]
            )


def without(frame: DataFrame, records: Iterable[Coordinates]) -> DataFrame:
    """The rows that are not of these records."""
    listed = frame.sparkSession.createDataFrame(
        sorted(records), "_topic string, _partition int, _offset long"
    )
    return frame.join(f.broadcast(listed), list(COORDINATES), "left_anti").select(frame.columns)
