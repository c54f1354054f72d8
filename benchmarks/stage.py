"""Where contenders take turns: one stack, one topic, one Spark session."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psycopg
from pyspark.sql import SparkSession

from benchmarks.course import Course
from benchmarks.pagecache import PageCache
from tallygate.errors import TallygateError
from tallygate.kafka.connection import Connection
from tallygate.kafka.load import Load, load
from tallygate.kafka.producer import producer_properties
from tallygate.kafka.read import Reading, read
from tallygate.kafka.record_files import FileFormat
from tallygate.kafka.topics import Topics
from tallygate.lab.drills.isolation import machine_only
from tallygate.lab.stack import Stack
from tallygate.progress import Progress, silent
from tallygate.quoting import double_quoted
from tallygate.settings import Settings
from tallygate.spark.session import session

__all__ = ["COMMITTED_AT", "SCHEMA", "MiscountedError", "Stage", "Work", "own_stack"]

NAME = "bench"

SCHEMA = "id long, account long, amount double, at string, note string"
"""A line of about 100 bytes of JSON."""


COMMITTED_AT = "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float"
"""When a row became visible, in seconds since 1970, as PostgreSQL is asked for it."""


class MiscountedError(TallygateError):
    """What came out is not what went in: the run does not count."""


@dataclass(frozen=True)
class Work:
    """What every contender has to move."""

    rows: int = 2_000_000
    partitions: int = 4
    batches: int = 5
    topic: str = "events"

    @property
    def size(self) -> int:
        """Records in a batch, for those who read in batches. Spark rounds down for each partition:
        without a few more, what is left over would be one more batch."""
        return self.rows // self.batches + self.partitions


@contextmanager
def own_stack(brokers: int) -> Iterator[Stack]:
    """A stack in a folder of its own; both are gone at the end.

    **Whatever is configured, no benchmark reaches it**: its settings are about this machine, and
    name this stack."""
    with tempfile.TemporaryDirectory(prefix="tallygate-bench-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        with Stack(NAME, brokers=brokers, purge=True, settings=_settings(folder)) as stack:
            yield stack


def _settings(folder: str) -> Settings:
    return machine_only(Settings.load()).with_flags({"state.dir": folder, "stack": NAME})


class Stage:
    def __init__(
        self,
        stack: Stack,
        spark: SparkSession,
        settings: Settings,
        work: Work,
        memory: PageCache | None = None,
    ) -> None:
        self.stack, self.spark, self.settings, self.work = stack, spark, settings, work
        self._memory = memory
        self.connection: Connection = stack.cluster.connection
        self.topics = Topics(self.connection, settings)
        self._number = 0

    @classmethod
    @contextmanager
    def opened(cls, work: Work, progress: Progress = silent) -> Iterator[Self]:
        """With everything of its own, the topic filled."""
        with own_stack(brokers=1) as stack:
            spark = session("bench", settings=stack.settings)
            try:
                memory = PageCache(stack.settings.state_dir)
                stage = cls(stack, spark, stack.settings, work, memory)
                progress(f"{work.rows:,} records into {work.topic}")
                stage.fill()
                yield stage
            finally:
                spark.stop()

    @property
    def processes(self) -> int:
        """As many as Spark has cores, for programs that use one; more of them than partitions would
        have nothing to read."""
        return min(self.spark.sparkContext.defaultParallelism, self.work.partitions)

    def filled(self, **changed: int | str) -> "Stage":
        """The same place with other work, in a topic of its own."""
        work = replace(self.work, **changed)  # type: ignore[arg-type]
        stage = Stage(self.stack, self.spark, self.settings, work, self._memory)
        stage.fill()
        return stage

    def settle(self) -> None:
        """Before anything is measured: nobody is to pay for memory that nobody has used yet."""
        if self._memory is not None:
            self._memory.fill()

    def fill(self) -> None:
        work = self.work
        self.topics.create(work.topic, partitions=work.partitions, replication=1)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for number in range(work.rows):
                file.write(
                    f'{{"id":{number},"account":{number % 1000},"amount":{number / 4},'
                    f'"at":"2026-01-01T00:00:00Z","note":"note {number % 97:012d}"}}\n'
                )
            file.flush()
            properties = producer_properties(compression="lz4")
            lines = Load(work.topic, file.name, FileFormat.lines, properties=properties)
            load(lines, self.connection)

    def fresh(self, prefix: str) -> str:
        """A name that nobody has used."""
        self._number += 1
        return f"{prefix}_{self.work.topic}_{self._number}".replace("-", "_")

    def target(self, prefix: str) -> str:
        """A topic to write to, which notes when each record was appended."""
        name = self.fresh(prefix).replace("_", "-")
        noting = {"message.timestamp.type": "LogAppendTime"}
        partitions = self.work.partitions
        self.topics.create(name, partitions=partitions, replication=1, configs=noting)
        return name

    @contextmanager
    def table(self, prefix: str, columns: str = "") -> Iterator[str]:
        """A name for a table, and the table if columns are given; it is gone afterwards."""
        name = self.fresh(prefix)
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            if columns:
                connection.execute(
                    f"CREATE TABLE public.{double_quoted(name)} ({columns})".encode()
                )
            try:
                yield name
            finally:
                connection.execute(f"DROP TABLE IF EXISTS public.{double_quoted(name)}".encode())

    def course_of_table(self, table: str) -> Course:
        """When each row was committed; every id must be there once."""
        name = double_quoted(table)
        with psycopg.connect(self.stack.dsn) as connection:
            found = connection.execute(
                f"SELECT count(*), count(DISTINCT id) FROM public.{name}".encode()
            ).fetchone()
            if found != (self.work.rows, self.work.rows):
                raise MiscountedError(f"{table}: {found} rows and ids of {self.work.rows}.")
            commits = connection.execute(
                f"SELECT {COMMITTED_AT}, n FROM "
                f"(SELECT xmin, count(*) AS n FROM public.{name} GROUP BY 1) t ORDER BY 1".encode()
            ).fetchall()
        return Course(tuple((at, count) for at, count in commits))

    def check_windows(self, table: str) -> None:
        """All records must be counted in a table of counts."""
        with psycopg.connect(self.stack.dsn) as connection:
            query = f"SELECT sum(payments) FROM public.{double_quoted(table)}"
            found = connection.execute(query.encode()).fetchone()
        if found != (self.work.rows,):
            raise MiscountedError(f"{table}: {found} records of {self.work.rows}.")

    def check_files(self, folder: str) -> None:
        """Every record must be in the files."""
        found = self.spark.read.parquet(folder).count()
        if found != self.work.rows:
            raise MiscountedError(f"{folder}: {found} rows of {self.work.rows}.")

    def course_of_topic(self, topic: str) -> Course:
        """When each record was appended, as a reader of what is committed sees it; every record
        must be there once."""
        moments: Counter[int] = Counter()
        seen: set[int] = set()
        for batch in read(Reading([topic], exit_at_end=True), self.connection):
            values = [message.value() or b"" for message in batch]
            seen.update(int(value[6 : value.index(b",")]) for value in values)
            moments.update(message.timestamp()[1] for message in batch)
        count = moments.total()
        if count != self.work.rows or len(seen) != self.work.rows:
            raise MiscountedError(
                f"{topic}: {count} records and {len(seen)} ids of {self.work.rows}."
            )
        self.topics.delete([topic])
        return Course(tuple((at / 1000, count) for at, count in sorted(moments.items())))
