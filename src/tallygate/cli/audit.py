"""`tallygate audit`: what the sink holds against what the source implies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import with_settings
from tallygate.cli.output import progress_display

if TYPE_CHECKING:
    from tallygate.settings import Settings

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(audit)


@with_settings
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.")],
    json_: Annotated[bool, typer.Option("--json", help="One object with everything.")] = False,
    *,
    settings: "Settings",
) -> None:
    """Recompute a pipeline's rows from its source and compare; exit 0 valid, 1 not, 2 unknown."""
    import json

    from tallygate.audit.audit import audit as check
    from tallygate.pipeline.pipeline import Pipeline
    from tallygate.spark.session import session

    pipeline = Pipeline.load(file)
    with progress_display() as progress:
        spark = session(f"tallygate audit {pipeline.name}", settings=settings, progress=progress)
        try:
            progress("Auditing")
            report = check(pipeline, settings=settings, spark=spark)
        finally:
            spark.stop()
    if json_:
        print(json.dumps(report.as_dict(), default=str))
    else:
        _show(report)
    raise typer.Exit(report.verdict.exit_code)


def _show(report: Any) -> None:
    print(f"{report.pipeline}: {report.verdict.value}")
    print(
        f"  {report.records:,} records, {report.rows:,} rows, {report.letters:,} dead letters, "
        f"{report.lost:,} lost; {report.seconds:.1f} s"
    )
    for each in report.anomalies:
        print(f"  {each.kind}: {each.count:,}")
        for example in each.examples:
            print(f"    {example}")
    for text in report.unknown:
        print(f"  unknown: {text}")
