"""`tallygate produce`: a file into a topic."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import (
    Output,
    pairs,
    resolve_connection,
    with_settings,
)
from tallygate.cli.output import Format, progress_display, show
from tallygate.errors import ConfigError, TallygateError, TopicError
from tallygate.gc_tuning import collect_seldom
from tallygate.printable import printable
from tallygate.units import duration_ms, human_size

if TYPE_CHECKING:
    from tallygate.kafka.connection import Connection
    from tallygate.kafka.csv_cells import Cells
    from tallygate.kafka.load import Load, LoadSummary
    from tallygate.kafka.record_files import FileFormat
    from tallygate.kafka.record_template import RecordTemplate
    from tallygate.settings import Settings


class InputFormat(StrEnum):
    auto = "auto"
    lines = "lines"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    avro = "avro"


class Acks(StrEnum):
    none = "0"
    one = "1"
    all = "all"


class Bad(StrEnum):
    stop = "stop"
    dead_letter = "dead-letter"


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


@with_settings
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="The file; `-` is standard input.")
    ] = "-",
    format: Annotated[
        InputFormat, typer.Option(help="The file's format; auto goes by the name's ending.")
    ] = InputFormat.auto,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="TYPES",
            help="Types of columns of CSV, `id long, amount double`: long, double, boolean, "
            "string. Those of others are guessed from the first rows.",
        ),
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--as-text", help="Leave each cell of CSV the text that it is.")
    ] = False,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Cells of CSV that are null, as `NA`; empty ones are anyway."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="A field, `user.id`, or a template, `{account}-{region}`.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="A header; TEXT may hold {field}s."),
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="The field with the time: milliseconds or ISO 8601.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Put all into this one.")] = None,
    partitioner: Annotated[
        str | None,
        typer.Option(
            help="murmur2 (as Java clients), round-robin, or module:function(key, partitions)."
        ),
    ] = None,
    avro_schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="Encode values as Avro of this schema.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="How batches are compressed.")
    ] = Compression.lz4,
    acks: Annotated[
        Acks, typer.Option(help="Who must have a record: no broker, the leader, all in sync.")
    ] = Acks.all,
    retries: Annotated[int | None, typer.Option(min=0, help="How often to try again.")] = None,
    delivery_timeout: Annotated[
        str | None, typer.Option(help="How long a record may take: 30s.", show_default="5m")
    ] = None,
    idempotent: Annotated[
        bool | None,
        typer.Option(
            "--idempotent/--no-idempotent",
            help="No duplicates or reordering by retries; on with acks=all.",
        ),
    ] = None,
    transactional: Annotated[
        bool,
        typer.Option("--transactional", help="Each line once, also when killed and started again."),
    ] = False,
    transaction_size: Annotated[
        int, typer.Option(min=1, help="Records for each transaction.")
    ] = 200_000,
    load_name: Annotated[
        str | None,
        typer.Option(help="The name under which a transactional load keeps its position."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Load from the beginning, whatever was loaded.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="At most this many records/s.")] = None,
    bad: Annotated[
        Bad, typer.Option(help="What to do with a line that cannot be read.")
    ] = Bad.stop,
    dead_letters: Annotated[
        str | None, typer.Option(help="The topic for such lines.", show_default="TOPIC.bad")
    ] = None,
    create: Annotated[
        int | None,
        typer.Option(metavar="PARTITIONS", min=1, help="Create the topic if it is not there."),
    ] = None,
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """Load a file into a topic: lines, JSON lines, CSV, Parquet or Avro."""
    collect_seldom()
    from tallygate.kafka.load import Load, load
    from tallygate.kafka.producer import producer_properties
    from tallygate.kafka.record_files import FileFormat, guess_format

    kind = guess_format(file) if format is InputFormat.auto else FileFormat(format.value)
    if idempotent and acks is not Acks.all:
        raise ConfigError("--idempotent needs --acks all: others cannot notice a duplicate.")
    if transactional and (idempotent is False or acks is not Acks.all):
        raise ConfigError("--transactional needs --acks all and idempotence.")
    if rate is not None and rate <= 0:
        raise ConfigError("--rate must be more than 0.")
    dead_topic = (dead_letters or f"{topic}.bad") if bad is Bad.dead_letter else None
    what = Load(
        topic=topic,
        file=file,
        kind=kind,
        template=_template(key, header, timestamp, partition, partitioner),
        cells=_cells(kind, schema, null, as_text=as_text),
        encode=_encode(avro_schema),
        rate=rate,
        transaction_size=transaction_size if transactional else None,
        name=load_name,
        again=again,
        dead_letters=dead_topic,
    )
    what.properties.update(
        producer_properties(
            acks=acks.value,
            idempotent=acks is Acks.all if idempotent is None else idempotent,
            retries=retries,
            timeout_ms=duration_ms(delivery_timeout) if delivery_timeout else None,
            compression=compression.value,
            transactional_id=what.group if transactional else None,
        )
    )
    connection = resolve_connection(settings)
    _say_types(what)
    _check_topics(what, connection, settings, create)
    with _summary(output) as progress:
        progress(load(what, connection, progress))


def _template(
    key: str | None,
    header: list[str] | None,
    timestamp: str | None,
    partition: int | None,
    partitioner: str | None,
) -> "RecordTemplate":
    from tallygate.kafka.record_template import RecordTemplate, load_function, round_robin

    if partition is not None and partitioner is not None:
        raise ConfigError("--partition and --partitioner exclude each other.")
    chosen: Any = None
    if partitioner == "round-robin":
        chosen = round_robin()
    elif partitioner not in (None, "murmur2"):
        chosen = load_function(partitioner, "--partitioner")
    headers = pairs(header, "--header") or None
    return RecordTemplate(
        key=key,
        headers=headers,
        timestamp=timestamp,
        partition=partition,
        partitioner=chosen,
    )


def _cells(
    kind: "FileFormat", schema: str | None, null: list[str] | None, *, as_text: bool
) -> "Cells":
    from tallygate.kafka.csv_cells import Cells, parse_types

    if kind.value != "csv" and (schema or null or as_text):
        raise ConfigError(
            f"--schema, --null and --as-text are for the cells of CSV, and this is {kind.value}; "
            "say --format csv if it is not."
        )
    if as_text and (schema or null):
        raise ConfigError(
            "--as-text leaves all cells as they are; it excludes --schema and --null."
        )
    named = parse_types(schema) if schema is not None else {}
    return Cells(as_text=as_text, named=named, nulls=frozenset(null or ()))


def _say_types(what: "Load") -> None:
    from tallygate.kafka.record_files import notes_on_cells

    if what.kind.value == "csv" and what.file != "-":
        for note in notes_on_cells(what.file, what.cells):
            print(f"note: {printable(note)}", file=sys.stderr)


def _encode(avro_schema: str | None) -> Any:
    if avro_schema is None:
        return None
    from tallygate.core.avro import encoder

    return encoder(avro_schema)


def _check_topics(
    what: "Load", connection: "Connection", settings: "Settings", create: int | None
) -> None:
    """The topics must be there before a line is read; one that is not can be created."""
    from tallygate.kafka.topics import Topics

    topics = Topics(connection, settings)
    known = topics.partition_counts()
    if what.topic not in known:
        partitions = create
        if partitions is None and what.file != "-" and sys.stdin.isatty():
            typer.confirm(f"There is no topic {what.topic!r}. Create it?", abort=True)
            partitions = typer.prompt("How many partitions", type=int, default=3)
        if partitions is None:
            raise TopicError(
                f"there is no topic {what.topic!r}; create it with --create PARTITIONS or "
                "`tallygate topic create`."
            )
        topics.create(what.topic, partitions=partitions)
        known[what.topic] = partitions
    if what.dead_letters is not None and what.dead_letters not in known:
        topics.create(what.dead_letters)
    count = known[what.topic]
    if what.template.partition is not None and what.template.partition >= count:
        raise TopicError(f"topic {what.topic!r} has partitions 0 to {count - 1} only.")


@contextmanager
def _summary(output: Format) -> Iterator[Any]:
    """Live progress, and at the end, however it comes about, what became of the records."""
    started = time.monotonic()
    latest: LoadSummary | None = None
    with progress_display() as display:

        def progress(summary: "LoadSummary") -> None:
            nonlocal latest
            latest = summary
            seconds = max(time.monotonic() - started, 1e-6)
            display(
                f"{summary.acknowledged:,} acknowledged, {human_size(summary.bytes)} read, "
                f"{summary.acknowledged / seconds:,.0f}/s, {summary.failed} failed"
            )

        try:
            yield progress
        except TallygateError:
            if latest is not None:
                _print(latest, output, time.monotonic() - started)
            raise
    if latest is not None:
        _print(latest, output, time.monotonic() - started)


def _print(summary: "LoadSummary", output: Format, seconds: float) -> None:
    import dataclasses

    value = dataclasses.asdict(summary)
    value["offsets"] = {
        str(partition): {"before": before, "after": after}
        for partition, (before, after) in sorted(summary.offsets.items())
    }
    value["seconds"] = round(seconds, 3)

    def table() -> None:
        if summary.resumed_from:
            print(f"Resumed after {summary.resumed_from:,} records that were there already.")
        print(
            f"{summary.acknowledged:,} acknowledged, {summary.failed:,} failed, "
            f"{summary.retried:,} requests retried, {summary.dead_letters:,} dead letters, "
            f"{human_size(summary.bytes)} in {seconds:.1f} s."
        )
        for partition, (before, after) in sorted(summary.offsets.items()):
            print(f"  partition {partition}: from offset {before:,} to {after:,}")

    show(value, output, table)
