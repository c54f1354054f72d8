"""`tallygate init`, `check`, `run`, `stop`, `rebuild`, `forget-topic`: pipelines in YAML files."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import resolve_connection, with_settings
from tallygate.cli.own_session import own_session
from tallygate.errors import ConfigError, DeadLettersError
from tallygate.printable import printable

if TYPE_CHECKING:
    from tallygate.engine.pipeline import Pipeline
    from tallygate.engine.progress import Progress
    from tallygate.settings import Settings

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.")]


class Until(StrEnum):
    stopped = "stopped"
    available = "available"


def register(app: typer.Typer) -> None:
    for command in (init, check, run, stop, rebuild, forget_topic):
        app.command()(command)


@with_settings
def init(
    pipeline: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")],
    topic: Annotated[str, typer.Option(help="The topic to read.")],
    table: Annotated[
        str | None, typer.Option(help="The table to write.", show_default="the name")
    ] = None,
    *,
    settings: "Settings",
) -> None:
    """Write NAME.yaml for a topic, with a schema guessed from a sample of its records."""
    from tallygate.engine.scaffold import new_pipeline

    path = Path(f"{pipeline}.yaml")
    if path.exists():
        raise ConfigError(f"{path} exists already; remove it, or choose another name.")
    connection = resolve_connection(settings)
    path.write_text(new_pipeline(pipeline, topic, table or pipeline, connection, note=print))
    print(f"{path} is written; look at it, then `tallygate check {path}` and `run {path}`.")


@with_settings
def check(file: File, *, settings: "Settings") -> None:
    """Check a pipeline without touching Kafka or the store, and show how it will be written."""
    with own_session(file, settings, "check") as (pipeline, spark):
        seen = pipeline.look(spark, settings)
    print(f"{file} is a valid pipeline.")
    for name, text in seen.items():
        print(f"  {name:<10} {printable(text)}")


@with_settings
def run(
    file: File,
    until: Annotated[
        Until, typer.Option(help="stopped: go on and on; available: what is there now.")
    ] = Until.stopped,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on past records that the source has lost."),
    ] = False,
    accept_new_target: Annotated[
        bool,
        typer.Option(
            "--accept-new-target",
            help="Go on into another table or topic than before, without what came before.",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="An object for each batch.")] = False,
    *,
    settings: "Settings",
) -> None:
    """Run a pipeline; Ctrl-C or SIGTERM finish the batch and stop."""
    _quiet()
    with (
        own_session(file, settings) as (pipeline, spark),
        _view(pipeline.name, json_) as (on_progress, note),
    ):
        done = pipeline.run(
            until=until.value,
            settings=settings,
            spark=spark,
            accept_loss=accept_loss,
            accept_new_target=accept_new_target,
            on_progress=on_progress,
            note=note,
        )
    if json_:
        _event("end", outcome=done.outcome, batches=done.batches, rows=done.rows, late=done.late)
    else:
        print(
            f"{pipeline.name}: {done.outcome}; {done.batches} batches, {done.records:,} records, "
            f"{done.rows:,} rows, {done.letters:,} dead letters in {done.seconds:.1f} s."
        )
        if done.late:
            late = f"{done.late:,} rows came after the watermark had passed them"
            print(f"{late}; no result has them.")
    if until is Until.available and done.only_dead_letters:
        raise _no_row(pipeline, file, done.new_letters)


def _no_row(pipeline: "Pipeline", file: Path, letters: int) -> DeadLettersError:
    lists = pipeline.lists_letters
    shown = f"`{lists}` shows why" if lists else "the state folder keeps them with their causes"
    again = f"`tallygate rebuild {file}` reads them again"
    if pipeline.sink.is_topic or not pipeline.sink.keeps_ledger:
        again = "a pipeline of another name reads them again"
    return DeadLettersError(
        f"{pipeline.name} wrote no row: the {letters:,} records that it read are dead letters, and "
        f"{shown}. Correct the schema or the transform; then {again}."
    )


@with_settings
def stop(
    pipeline: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")],
    *,
    settings: "Settings",
) -> None:
    """Ask the running pipeline NAME to finish its batch and stop."""
    from tallygate.engine.status import request_stop

    number = request_stop(pipeline, settings)
    print(f"Run {number} of {pipeline} is asked to stop after its batch.")


@with_settings
def rebuild(file: File, *, settings: "Settings") -> None:
    """Recompute a table or folder from the earliest record, then swap it in at once."""
    import tallygate

    _quiet()
    with (
        own_session(file, settings) as (pipeline, spark),
        _view(f"{pipeline.name} (rebuild)", False) as (on_progress, _),
    ):
        done = tallygate.rebuild(pipeline, settings=settings, spark=spark, on_progress=on_progress)
    print(f"{pipeline.name} is rebuilt from {done.summary.records:,} records.")
    if done.before is not None:
        print(f"What it replaces is kept as {done.before}.")


@with_settings
def forget_topic(
    file: File,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    *,
    settings: "Settings",
) -> None:
    """Go on without a topic that is gone or not to be read any more. The ledger keeps how far it
    was read, and rows stay as they are."""
    import tallygate

    with own_session(file, settings, "forget-topic") as (pipeline, spark):
        done = tallygate.forget_topic(pipeline, topic, settings=settings, spark=spark)
    read = ", ".join(f"{topic}/{number} up to {until:,}" for number, until in done.items())
    print(f"{pipeline.name} has forgotten {topic}, which it has read: {read}.")


def _quiet() -> None:
    """Py4J logs every error that a batch raises, with its traceback; the command prints it once."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def _view(
    name: str, as_json: bool
) -> Iterator[tuple[Callable[["Progress"], None], Callable[[str], None]]]:
    """How a run is shown: JSON for programs, a table that changes on a terminal, else lines."""
    if as_json:
        yield _json_batch, lambda text: _event("note", text=text)
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            window = _Window(name)
            yield (
                lambda progress: live.update(window.table(progress)),
                lambda text: live.console.print(printable(text), markup=False, highlight=False),
            )
    else:
        yield _line, lambda text: print(f"note: {printable(text)}", flush=True)


def _event(kind: str, **fields: Any) -> None:
    print(json.dumps({"event": kind, "time": time.time(), **fields}), flush=True)


def _json_batch(progress: "Progress") -> None:
    _event(
        "batch",
        batch=progress.batch,
        records=progress.records,
        rows=progress.written.rows,
        strategy=progress.written.strategy,
        seconds=progress.seconds,
        parts=dict(progress.written.seconds),
        letters=progress.letters,
        lag=sum(progress.lag.values()),
        state=dict(progress.state),
        positions={f"{topic}/{number}": at for (topic, number), at in progress.positions.items()},
    )


def _parts(progress: "Progress") -> str:
    return ", ".join(f"{name} {took:.2f}" for name, took in progress.written.seconds.items())


def _state(progress: "Progress") -> str:
    """The watermark and the size of the state, of pipelines that have such."""
    if not progress.state:
        return ""
    size = f"{progress.state['rows']:,} rows of state ({progress.state['bytes'] / 2**20:.1f} MiB)"
    late = f", {progress.state['late']:,} too late" if progress.state["late"] else ""
    return f"{size}, watermark {progress.state['watermark'] or 'none'}{late}"


def _line(progress: "Progress") -> None:
    print(
        f"batch {progress.batch}: {progress.records:,} records, {progress.written.rows:,} rows by "
        f"{progress.written.strategy} in {progress.seconds:.2f} s ({_parts(progress)}); "
        f"lag {sum(progress.lag.values()):,}, {progress.letters:,} dead letters"
        + (f"; {_state(progress)}" if progress.state else ""),
        flush=True,
    )


class _Window:
    """What a terminal shows of a run: the rate of the last batches, and where each partition is."""

    KEPT = 20

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: list[tuple[float, int]] = []

    def table(self, progress: "Progress") -> Any:
        from rich import box
        from rich.table import Table

        self._last = [*self._last, (time.monotonic(), progress.records)][-self.KEPT :]
        took = self._last[-1][0] - self._last[0][0]
        rate = sum(count for _, count in self._last[1:]) / took if took else 0
        table = Table(box=box.SIMPLE_HEAD, title=f"{self._name}: batch {progress.batch}")
        table.caption = (
            f"{rate:,.0f} records/s · {progress.written.strategy} · {progress.seconds:.2f} s "
            f"({_parts(progress)}) · {progress.letters:,} dead letters"
            + (f"\n{_state(progress)}" if progress.state else "")
        )
        table.add_column("partition")
        table.add_column("next offset", justify="right")
        table.add_column("lag", justify="right")
        for partition, at in sorted(progress.positions.items()):
            table.add_row(
                f"{partition[0]}/{partition[1]}", f"{at:,}", f"{progress.lag.get(partition, 0):,}"
            )
        return table
