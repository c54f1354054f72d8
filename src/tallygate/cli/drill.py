"""`tallygate drill`: faults on purpose, on a stack of their own, with a verdict for each."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import Set, resolve_settings
from tallygate.cli.output import progress_display, show_table, stop_well
from tallygate.errors import ConfigError

if TYPE_CHECKING:
    from tallygate.lab.drills.outcome import Outcome

app = typer.Typer(help="Faults on purpose, each followed by an audit.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="An object for each drill.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Where the run is kept.", show_default="drills/TIME in the state folder"
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="For the random mix: the same seed, the same faults.")
]
Pipeline = Annotated[
    Path | None, typer.Option(help="The YAML file of a pipeline of yours, to be put through them.")
]
Sample = Annotated[
    Path | None, typer.Option(help="For --pipeline: its records, one a line, instead of made ones.")
]
Rounds = Annotated[int, typer.Option(min=1, help="How often the random mix is played.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """Name every drill, and say what must hold in it."""
    from tallygate.lab.drills.catalogue import DRILLS

    rows = [{"name": name, "must_hold": each.must_hold} for name, each in DRILLS.items()]
    if json_:
        for row in rows:
            print(json.dumps(row))
    else:
        show_table(rows, {"name": "drill", "must_hold": "what must hold"})


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The drills to play.")],
    json_: Json = False,
    folder: Folder = None,
    seed: Seed = None,
    rounds: Rounds = 1,
    pipeline: Pipeline = None,
    sample: Sample = None,
    sets: Set = None,
) -> None:
    """Play some drills on a local stack of their own; exit 0 valid, 1 not, 2 unknown."""
    _play(names, json_, folder, seed, rounds, sets, pipeline, sample)


@app.command("all")
def all_(
    json_: Json = False,
    folder: Folder = None,
    seed: Seed = None,
    rounds: Rounds = 1,
    pipeline: Pipeline = None,
    sample: Sample = None,
    sets: Set = None,
) -> None:
    """Play every drill, or with --pipeline every one that takes it; exit 0 valid, 1 not,
    2 unknown."""
    from tallygate.lab.drills.catalogue import DRILLS, OURS

    names = [name for name in DRILLS if pipeline is None or name not in OURS]
    _play(names, json_, folder, seed, rounds, sets, pipeline, sample)


def _play(
    names: list[str],
    json_: bool,
    folder: Path | None,
    seed: int | None,
    rounds: int,
    sets: list[str] | None,
    pipeline: Path | None,
    sample: Path | None,
) -> None:
    from tallygate.auditing.verdict import worst
    from tallygate.lab.drills.catalogue import chosen
    from tallygate.lab.drills.report.page import write_report
    from tallygate.lab.drills.running import PAYMENTS, facts, new_folder, play_all
    from tallygate.lab.drills.subject import OwnPipeline

    if sample is not None and pipeline is None:
        raise ConfigError("--sample is the records of a pipeline of yours: give --pipeline too.")
    stop_well()
    settings = resolve_settings(sets=sets)
    drills = chosen(names, seed, rounds, own=pipeline is not None)
    subject = PAYMENTS if pipeline is None else OwnPipeline.load(pipeline, sample)
    place = folder or new_folder(settings)
    outcomes: list[Outcome] = []
    with progress_display() as progress:
        for outcome in play_all(drills, place, settings, progress, subject=subject):
            outcomes.append(outcome)
            write_report(outcomes, place, facts=facts())
            if json_:
                print(json.dumps(_short(outcome)), flush=True)
    if not json_:
        _show(outcomes)
        print(f"Report: {place / 'report.html'}")
    raise typer.Exit(worst(each.verdict for each in outcomes).exit_code)


def _short(outcome: "Outcome") -> dict[str, Any]:
    """Without what only the report draws."""
    return {k: v for k, v in outcome.as_dict().items() if k not in ("samples", "events")}


def _show(outcomes: "list[Outcome]") -> None:
    rows = [
        {
            "name": each.name,
            "verdict": each.verdict.value,
            "acknowledged": each.acknowledged,
            "lost": each.lost,
            "duplicated": each.duplicated,
            "recovery": each.pipeline_seconds,
            "controls": [_control(control) for control in each.controls],
        }
        for each in outcomes
    ]
    columns = {
        "name": "drill",
        "verdict": "verdict",
        "acknowledged": "acknowledged",
        "lost": "lost",
        "duplicated": "duplicated",
        "recovery": "commits again after s",
        "controls": "controls",
    }
    show_table(rows, columns)
    for each in outcomes:
        for text in (*each.wrong, *each.unknown):
            print(f"{each.name}: {text}")


def _control(control: Any) -> str:
    how = f"{control.lost:,} lost, {control.duplicated:,} repeated"
    return f"{control.name}: {how}" + ("" if control.failed else " (should have failed)")
