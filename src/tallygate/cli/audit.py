"""`tallygate audit` and `tallygate trace`: what the sink holds against what the source implies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import with_settings
from tallygate.cli.output import progress_display
from tallygate.errors import TallygateError

if TYPE_CHECKING:
    from tallygate.auditing.trace import Trace
    from tallygate.auditing.verdict import Report
    from tallygate.settings import Settings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(audit)
    app.command()(trace)


class CrashedError(TallygateError):
    """**A check that crashed has not passed**, and has not failed either: it is unknown."""

    exit_code = 2


File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.")]


@with_settings
def audit(
    file: File,
    since: Annotated[
        str | None,
        typer.Option(help="Only records from a time on: 2026-01-31T12:00:00Z, or 2h for 2h ago."),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(help="Only some records, chosen by lot: a number, or a share as 1%."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One object with everything.")] = False,
    *,
    settings: "Settings",
) -> None:
    """Recompute a pipeline's rows from its source and compare; exit 0 valid, 1 not, 2 unknown."""
    import json

    from tallygate.auditing.audit import audit as check
    from tallygate.auditing.scope import Sample, begin_ms

    since_ms = None if since is None else begin_ms(since)
    chosen = None if sample is None else Sample.parse(sample)
    report: Report = _with_spark(
        file,
        "audit",
        settings,
        lambda pipeline, spark: check(
            pipeline, settings=settings, spark=spark, since_ms=since_ms, sample=chosen
        ),
    )
    if json_:
        print(json.dumps(report.as_dict(), default=str))
    else:
        _show(report)
    raise typer.Exit(report.verdict.exit_code)


@with_settings
def trace(
    file: File,
    topic: Annotated[
        str | None, typer.Option(help="The record's topic; needed if the pipeline reads several.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The record's partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="The record's offset.")] = None,
    where: Annotated[
        str | None, typer.Option(help="The rows to follow back, as a condition in SQL.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One object for each record.")] = False,
    *,
    settings: "Settings",
) -> None:
    """Follow one record from its topic to its row, or rows back to their records; exit 1 if a row
    is missing or wrong."""
    import json

    from tallygate.auditing.trace import trace_record, trace_rows
    from tallygate.errors import ConfigError

    if (where is None) == (partition is None or offset is None):
        raise ConfigError("name a record by --partition and --offset, or rows by --where.")

    def follow(pipeline: Any, spark: Any) -> list["Trace"]:
        if where is not None:
            return trace_rows(pipeline, where, settings=settings, spark=spark)
        assert partition is not None
        assert offset is not None
        at = _topic(pipeline, topic), partition, offset
        return [trace_record(pipeline, at, settings=settings, spark=spark)]

    found: list[Trace] = _with_spark(file, "trace", settings, follow)
    for each in found:
        if json_:
            print(json.dumps(each.as_dict(), default=str))
        else:
            _show_trace(each)
    if not found and not json_:
        print("no row fits, or those that do name no record")
    raise typer.Exit(0 if found and all(each.right for each in found) else 1)


def _with_spark(file: Path, doing: str, settings: "Settings", work: Any) -> Any:
    """Do something with a pipeline and a session of its own."""
    from tallygate.engine.pipeline import Pipeline
    from tallygate.spark.session import session

    pipeline = Pipeline.load(file)
    with progress_display() as progress, _crashes_told(doing):
        name = f"tallygate {doing} {pipeline.name}"
        spark = session(name, settings=settings, progress=progress, delta=pipeline.needs_delta)
        try:
            progress("Reading")
            return work(pipeline, spark)
        finally:
            spark.stop()


@contextmanager
def _crashes_told(doing: str) -> Iterator[None]:
    """An error that is not ours would end as 1, which stands for something wrong in the sink."""
    from tallygate.spark.error_text import reason

    try:
        yield
    except TallygateError:
        raise
    except Exception as error:
        raise CrashedError(
            f"the {doing} could not be finished, so it has found nothing out: "
            f"{type(error).__name__}: {reason(error)} (--debug shows where)"
        ) from error


def _topic(pipeline: Any, given: str | None) -> str:
    from tallygate.engine.factory import read_topics
    from tallygate.errors import ConfigError

    topics = read_topics(pipeline)
    if given is None and len(topics) == 1:
        return topics[0]
    if given is None:
        raise ConfigError(f"the pipeline reads {len(topics)} topics by name; say which by --topic.")
    return given


def _show(report: "Report") -> None:
    print(f"{report.pipeline}: {report.verdict.value}")
    filtered = "" if report.filtered is None else f"{report.filtered:,} filtered, "
    print(
        f"  {report.records:,} records, {report.rows:,} rows, {filtered}"
        f"{report.letters:,} dead letters, {report.lost:,} lost; {report.seconds:.1f} s"
    )
    if report.scope:
        print(f"  only {report.scope}")
    for each in report.anomalies:
        print(f"  {each.kind}: {each.count:,}")
        for example in each.examples:
            print(f"    {example}")
    if report.not_compared:
        print(f"  not compared: {', '.join(report.not_compared)}")
    for text in report.unknown:
        print(f"  unknown: {text}")


def _show_trace(trace: "Trace") -> None:
    import json

    print(f"{trace.topic}/{trace.partition}@{trace.offset}: {trace.became}")
    if trace.time is not None:
        print(f"  record: {trace.time}, key {trace.key}, value {trace.value}")
    if trace.commit is not None:
        commit = trace.commit
        batch = "no batch" if commit.batch is None else f"batch {commit.batch}"
        at = f", {commit.at}" if commit.at else ""
        print(f"  commit: {commit.number} by run {commit.run}, {batch}{at}")
    if trace.cause is not None:
        print(f"  cause: {trace.cause}")
    for row in trace.rows:
        print(f"  row: {json.dumps(row)}")
    if not trace.right:
        for row in trace.expected:
            print(f"  should be: {json.dumps(row)}")
