"""Pipelines as users run them: a `Pipeline`, or `write_stream` for a Spark job that exists."""

import contextlib
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallygate.core.decoding import COORDINATES, METADATA
from tallygate.endpoints import running_dsn
from tallygate.engine.factory import (
    connection_at,
    home_of,
    read_topics,
    runs_of,
    runs_on,
    source_connection,
    target_of,
)
from tallygate.engine.fingerprint import fingerprint_of
from tallygate.engine.frames import (
    check_files,
    decoded,
    decoder_of,
    fetchable,
    other_stream,
    raw_stream,
)
from tallygate.engine.lateness import Lateness, lateness_of
from tallygate.engine.lookup_tables import Statics
from tallygate.engine.progress import Progress
from tallygate.engine.run import Counts, Heart, Summary, run_query
from tallygate.engine.run_request import RunRequest
from tallygate.engine.start import SHUFFLE_PARTITIONS, forget, look, start
from tallygate.engine.transform import transformed
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.kafka.fetch import HEADERS, RECORDS
from tallygate.settings import Settings, nearest
from tallygate.spark.checkpoint import Checkpoint
from tallygate.spark.ending import WatchedQuery
from tallygate.spark.plan import committed_only, foreign_sources, kafka_servers
from tallygate.spark.session import session
from tallygate.spark.state_report import states, warnings
from tallygate.spec import (
    NAME,
    DeadLetters,
    Delivery,
    Delta,
    Files,
    Kafka,
    KafkaSink,
    Parquet,
    PipelineSpec,
    Postgres,
    load_spec,
    look_in,
    validated,
)
from tallygate.targets.base import LetterKeeper, RowShape
from tallygate.units import interval_ms

TIME_ZONE = "spark.sql.session.timeZone"


class Pipeline(PipelineSpec):
    """A pipeline that can be run: `Pipeline(name=…, source=…, sink=…).run()`."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**dict(validated(PipelineSpec, fields, "the pipeline")))

    @classmethod
    def load(cls, path: str | Path) -> "Pipeline":
        """A pipeline from its YAML file. Modules that it names are looked for beside it too."""
        file = Path(path)
        pipeline = cls(**dict(load_spec(file)))
        pipeline._file = file
        if pipeline.refers:
            look_in(file.resolve().parent)
        return pipeline

    def look(self, spark: SparkSession, settings: Settings) -> dict[str, str]:
        """How the pipeline would be written; neither Kafka nor the store is asked. Of files that
        are there already, the first rows must fit their schema."""
        anywhere = settings.with_flags({"kafka.bootstrap.servers": "localhost:9092"})
        if isinstance(self.sink, Postgres) and self.sink.dsn is None:
            anywhere = anywhere.with_flags({"postgres.dsn": "postgresql://localhost"})
        request = self.request(spark, anywhere, {}, static_settings=settings)
        plan, shape = look(request)
        self._check_key(shape)
        self._check_files(spark, settings)
        kept = states(plan.frame)
        found = {
            "source": ", ".join(each.said for each in self.streams.values()),
            "plan": plan.why,
            "columns": shape.schema.simpleString().removeprefix("struct<").removesuffix(">"),
            "state": "; ".join(map(str, kept)) if kept else "none",
            "sink": request.target.name,
            "commit": f"{self.delivery}, {self.sink.strategies(narrow=shape.narrow)}",
        }
        notes = warnings(plan.frame)
        return {**found, **({"warning": " ".join(notes)} if notes else {})}

    def _check_key(self, shape: RowShape) -> None:
        """Refuse a key that the rows do not have, as the store would when a run starts."""
        columns = shape.schema.fieldNames()
        for name in self.sink.keys:
            if name not in columns:
                raise ConfigError(
                    f"{self.where('sink', 'key')}: {name!r} is not a column of the "
                    f"pipeline's rows{nearest(name, columns)}"
                )

    def _check_files(self, spark: SparkSession, settings: Settings) -> None:
        for name, source in self.streams.items():
            if isinstance(source, Files):
                check_files(spark, source, self._where_in(name))
        self.statics(spark, settings).check_files()

    def run(
        self,
        *,
        until: Literal["stopped", "available"] = "stopped",
        settings: Settings | None = None,
        spark: SparkSession | None = None,
        accept_loss: bool = False,
        accept_new_target: bool = False,
        on_progress: Callable[[Progress], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> Summary:
        """Run until it is stopped (by SIGTERM, Ctrl-C or `tallygate stop`), or until all that is
        there now has been read; a batch under way is finished first."""
        settings = settings or Settings.load()
        running = session(
            f"tallygate {self.name}", existing=spark, settings=settings, delta=self.needs_delta
        )
        counts = Counts()

        def listen(progress: Progress) -> None:
            counts.add(progress)
            on_progress(progress)

        statics = self.statics(running, settings)
        began, late = time.monotonic(), 0
        while True:
            checkpoint = Checkpoint(running, self.checkpoint_path(settings))
            alone = bool(self.static) and statics.wait_for_a_batch(checkpoint)
            trigger = {"once": True} if alone else self._trigger(until)
            request = replace(
                self.request(running, settings, trigger, on_progress=listen, note=note),
                accept_loss=accept_loss,
                accept_new_target=accept_new_target,
            )
            done = run_query(request, running, counts)
            # Of what was there at the start; what happens later is not accepted unseen.
            accept_loss = accept_new_target = False
            late += done.late
            if not (alone and done.outcome == "done") and done.outcome != "refreshed":
                return replace(done, late=late, seconds=time.monotonic() - began)
            note("a static side has changed; the next batch sees it")

    def request(
        self,
        spark: SparkSession,
        settings: Settings,
        trigger: Mapping[str, str | bool],
        *,
        on_progress: Callable[[Progress], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        static_settings: Settings | None = None,
    ) -> RunRequest:
        """What is to be run, by these settings."""
        connection = source_connection(self, settings)
        raw, path = self._raw, self.checkpoint_path(settings)
        asked = settings.section("spark.conf").get(SHUFFLE_PARTITIONS)
        statics = self.statics(spark, static_settings or settings)
        return RunRequest(
            name=self.name,
            build=lambda keeper, at, needed: self._frame(
                spark, connection, keeper, statics, at, needed
            ),
            target=target_of(
                self.sink,
                self.name,
                delivery=self.delivery,
                source=connection,
                topics=read_topics(self),
                spark=spark,
                settings=settings,
                runs=runs_of(self, settings),
            ),
            checkpoint=path,
            connection=connection,
            mode=self.sink.mode,
            instead=self.sink.instead,
            trigger=trigger,
            decoder=None if raw is None else decoder_of(raw, where=self._where_in("source")),
            fetches=all(fetchable(each, connection) for each in self.streams.values()),
            small=getattr(self.sink, "driver_rows", RunRequest.small),
            limits=self.dead_letters,
            on_error=self.on_error,
            on_progress=on_progress,
            note=note,
            ready=lambda: statics.check(Checkpoint(spark, path)),
            stale=lambda: statics.changed(Checkpoint(spark, path)),
            shuffle_partitions=int(asked) if asked else None,
            fingerprint=self.fingerprint(spark),
            lists_letters=self.lists_letters,
            where=self.where("transform"),
        )

    def fingerprint(self, spark: SparkSession) -> str:
        """What the rows are made by in this session (see `engine.fingerprint`)."""
        return fingerprint_of(self, spark.conf.get(TIME_ZONE) or "")

    @property
    def lists_letters(self) -> str:
        """The command that lists its dead letters; none where a job has no file."""
        if self._file is None or not self.sink.keeps_ledger:
            return ""
        return f"tallygate dead-letters list {shlex.quote(str(self._file))}"

    @property
    def _raw(self) -> Kafka | None:
        """The one source whose records the sink decodes by itself, since nothing is in between."""
        if self.transform is None and isinstance(self.source, Kafka) and self.sink.decodes:
            return self.source
        return None

    def statics(self, spark: SparkSession, settings: Settings) -> Statics:
        return Statics(spark, self.static, lambda: running_dsn(settings), self.where)

    def _where_in(self, stream: str) -> Callable[[str], str]:
        """What a field of a source is called in messages."""
        return lambda field: self.where(*self.place_of(stream), field)

    def checkpoint_path(self, settings: Settings) -> str:
        """What came from a socket cannot be read again, so each run of it has a checkpoint of its
        own. What went to a sink without a ledger must not count as done for another one."""
        name = self.name
        if not self.sink.keeps_ledger:
            name = f"{name}.{self.sink.kind}"
        if any(source.read_once for source in self.streams.values()):
            name = f"{name}-{int(time.time() * 1000)}"
        return self.checkpoint or str(home_of(self, settings) / "checkpoints" / name)

    def _frame(
        self,
        spark: SparkSession,
        connection: Connection | None,
        keeper: LetterKeeper,
        statics: Statics,
        checkpoint: Checkpoint | None,
        needed: Collection[str] | None,
    ) -> DataFrame:
        lateness = lateness_of(self, spark)
        if self._raw is not None:
            assert connection is not None
            if self.sink.is_topic:
                raw = raw_stream(spark, self._raw, connection, headers=True)
                return raw.select(*RECORDS.names, HEADERS.name)
            return raw_stream(spark, self._raw, connection).select(*RECORDS.names)
        views = {
            name: self._stream(spark, name, connection, keeper, lateness, needed)
            for name in self.streams
        }
        if self.transform is None and isinstance(self.source, Kafka):
            extra = set(METADATA.names) - set(COORDINATES)
            return views["source"].drop(*extra)
        sides = statics.schemas() if checkpoint is None else statics.frames(checkpoint)
        return transformed(spark, self, {**views, **sides})

    def _stream(
        self,
        spark: SparkSession,
        name: str,
        connection: Connection | None,
        keeper: LetterKeeper,
        lateness: Lateness | None,
        needed: Collection[str] | None,
    ) -> DataFrame:
        source, where = self.streams[name], self._where_in(name)
        if not isinstance(source, Kafka):
            return other_stream(spark, source, where)
        assert connection is not None
        raw = raw_stream(spark, source, connection)
        return decoded(
            raw,
            source,
            keeper,
            lateness=lateness,
            needed=needed,
            where=where,
            connection=connection if fetchable(source, connection) else None,
        )

    def _trigger(self, until: str) -> dict[str, str | bool]:
        if until == "available":
            return {"availableNow": True}
        if self.trigger == "as fast as possible":
            return {}
        return {"processingTime": f"{interval_ms(self.trigger)} milliseconds"}


def write_stream(
    frame: DataFrame,
    *,
    name: str,
    sink: Postgres | KafkaSink | Parquet | Delta,
    checkpoint: str,
    delivery: Delivery = "exactly-once",
    trigger: Mapping[str, str | bool] | None = None,
    dead_letters: DeadLetters | None = None,
    accept_loss: bool = False,
    accept_new_target: bool = False,
    forget_topics: Collection[str] = (),
    settings: Settings | None = None,
) -> StreamingQuery:
    """Start writing any streaming frame over Kafka to a sink, and return the started query.

    This is what takes the place of `foreachBatch` in a job that exists; `trigger` is what
    `DataStreamWriter.trigger` takes, as `{"availableNow": True}`. `accept_loss` goes on past
    records that retention has removed, and keeps the range in the ledger as lost;
    `accept_new_target` goes on into another table or topic than before; `forget_topics` goes on
    without topics that were read and are not read any more, however often they are named.
    """
    settings = settings or Settings.load()
    if not NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use letters, digits, dots, dashes and underscores.")
    if not frame.isStreaming:
        raise ConfigError("write_stream needs a streaming frame, as of spark.readStream.")
    try:
        sink.check_delivery(delivery)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    foreign = foreign_sources(frame)
    if foreign:
        raise ConfigError(
            f"the frame reads a source that is not Kafka ({', '.join(foreign)}); write_stream "
            "takes frames over Kafka, and a Pipeline takes the others too."
        )
    committed = committed_only(frame)
    connection = connection_at(kafka_servers(committed), settings)
    request = RunRequest(
        name=name,
        build=lambda *_: committed,
        target=target_of(
            sink,
            name,
            delivery=delivery,
            source=connection,
            topics=(),
            spark=frame.sparkSession,
            settings=settings,
            runs=runs_on(connection, settings),
        ),
        checkpoint=checkpoint,
        connection=connection,
        mode=sink.mode,
        trigger=trigger or {},
        instead=sink.instead,
        limits=dead_letters or DeadLetters(),
        accept_loss=accept_loss,
        accept_new_target=accept_new_target,
        adopts=True,
        where="the frame",
    )
    for topic in forget_topics:
        with contextlib.suppress(ConfigError):  # it was done before, or the topic is back
            forget(request, frame.sparkSession, topic)
    query, engine = start(request, frame.sparkSession)
    heart = Heart(query, engine, alone=True)
    heart.start()
    return WatchedQuery(query, lambda: heart.failure)
