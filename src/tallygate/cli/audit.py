"""`tallygate audit` and `tallygate trace`: what the sink holds against what the source implies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallygate.cli.options import with_settings
from tallygate.cli.output import progress_display
from tallygate.cli.own_session import own_session
from tallygate.errors import TallygateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallygate.engine.pipeline import Pipeline
    from tallygate.settings import Settings


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

    import tallygate
    from tallygate.auditing.scope import Sample, since_time

    begin = None if since is None else since_time(since)
    chosen = None if sample is None else Sample.parse(sample)
    with _opened(file, "audit", settings) as (pipeline, spark):
        result = tallygate.audit(
            pipeline, since=begin, sample=chosen, settings=settings, spark=spark
        )
    said = str(result)
    print(json.dumps(result.as_dict(), default=str) if json_ else said)
    raise typer.Exit(result.verdict.exit_code)


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

    import tallygate
    from tallygate.errors import ConfigError

    at: tuple[str, int, int] | tuple[int, int] | None = None
    if partition is not None and offset is not None:
        at = (partition, offset) if topic is None else (topic, partition, offset)
    if (where is None) == (at is None):
        raise ConfigError("name a record by --partition and --offset, or rows by --where.")
    with _opened(file, "trace", settings) as (pipeline, spark):
        found = tallygate.trace(pipeline, at, where=where, settings=settings, spark=spark)
    for each in found:
        said = str(each)
        print(json.dumps(each.as_dict(), default=str) if json_ else said)
    if not found and not json_:
        print("no row matches, or the rows that match name no record")
    raise typer.Exit(0 if found and all(found) else 1)


@contextmanager
def _opened(
    file: Path, doing: str, settings: "Settings"
) -> Iterator[tuple["Pipeline", "SparkSession"]]:
    """A pipeline, and a session that ends with the command."""
    with (
        _crashes_told(doing),
        own_session(file, settings, doing) as (pipeline, spark),
        progress_display() as progress,
    ):
        progress("Reading")
        yield pipeline, spark


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
            f"the {doing} could not be finished, so its result is unknown: "
            f"{type(error).__name__}: {reason(error)} (--debug shows where)"
        ) from error
