"""`tallygate doctor`, `config`, `jars`, `demo`: this machine and its settings."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tallygate.cli.options import Output, Set, resolve_settings, with_settings
from tallygate.cli.output import Format, progress_display, show, show_table, stop_well
from tallygate.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from tallygate.progress import Progress
    from tallygate.settings import Settings

jars = typer.Typer(help="The jars of Kafka and of Spark's connectors.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command("config")(config_)
    app.add_typer(jars, name="jars")


@with_settings
def doctor(
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """Check that everything needed is there; exit code 1 when something is not."""
    from tallygate.lab.doctor import Health, examine

    with progress_display() as progress:
        findings = []
        for finding in examine(settings):
            progress(f"{finding.check}: {finding.health.value}")
            findings.append(finding)
    rows = [
        {"check": f.check, "health": f.health.value, "detail": f.detail, "advice": f.advice}
        for f in findings
    ]
    columns = {"check": "check", "health": "health", "detail": "found", "advice": "what to do"}
    show(rows, output, lambda: show_table(rows, columns))
    if any(finding.health is Health.PROBLEM for finding in findings):
        raise typer.Exit(1)


@with_settings
def config_(
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """Show every setting that has a value, and where it comes from; secrets stay hidden."""
    rows = [
        {"setting": key, "value": str(value), "origin": value.origin}
        for key, value in sorted(settings.values.items())
    ]
    columns = {"setting": "setting", "value": "value", "origin": "from"}
    show(rows, output, lambda: show_table(rows, columns))


@jars.command()
def fetch(
    again: Annotated[
        str | None, typer.Option(metavar="SET", help="Fetch this set again: kafka, spark or delta.")
    ] = None,
    sets: Set = None,
) -> None:
    """Fetch the jars that are not in the cache yet, and keep their classes for faster starts."""
    from concurrent.futures import ThreadPoolExecutor

    from tallygate.jvm.class_archive import wanted
    from tallygate.jvm.jars import all_sets, jar_paths

    settings = resolve_settings(sets=sets)
    known = all_sets()
    if again is not None:
        _check_sets([again], known)
    with progress_display() as progress, ThreadPoolExecutor() as pool:
        fetched = {
            name: pool.submit(jar_paths, name, settings, progress, again=again == name)
            for name in known
        }
        counts = {name: len(future.result()) for name, future in fetched.items()}
        classes = [_kept(name, settings, progress) for name in wanted()]
    for name, count in counts.items():
        print(f"{name}: {count} jars in {known[name].folder(settings)}")
    for said in classes:
        print(f"classes: {said}")


@jars.command()
def paths(
    which: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SET…]", help="The sets, as `spark delta`; by default spark."),
    ] = None,
    sets: Set = None,
) -> None:
    """Print the jars of sets with commas between them, as spark-submit takes them by `--jars`;
    what is not in the cache yet is fetched."""
    from tallygate.jvm.jars import all_sets, jar_paths

    settings, wanted = resolve_settings(sets=sets), which or ["spark"]
    _check_sets(wanted, all_sets())
    with progress_display() as progress:
        found = [path for name in wanted for path in jar_paths(name, settings, progress)]
    print(",".join({path.name: str(path) for path in found}.values()))


def _check_sets(names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no set of jars {name!r}; there are {' and '.join(known)}.")


def _kept(name: str, settings: "Settings", progress: "Progress") -> str:
    """Where the classes are, or why they are not: then starts are slower, and all else is well."""
    from tallygate.jvm.class_archive import keep_classes

    try:
        return str(keep_classes(name, settings, progress))
    except MachineError as error:
        return str(error)


@jars.command("list")
def list_(output: Output = Format.table, sets: Set = None) -> None:
    """List the sets of jars: what they are made of, whether they are in the cache, and where."""
    from tallygate.jvm.jars import all_sets

    settings = resolve_settings(sets=sets)
    rows = [
        {
            "set": name,
            "cached": jar_set.is_cached(settings),
            "folder": str(jar_set.folder(settings)),
            "coordinates": [str(coordinate) for coordinate in jar_set.coordinates],
        }
        for name, jar_set in all_sets().items()
    ]
    columns = {
        "set": "set",
        "cached": "in the cache",
        "folder": "folder",
        "coordinates": "coordinates",
    }
    show(rows, output, lambda: show_table(rows, columns))


def demo(
    events: Annotated[
        int, typer.Option(min=1, help="How many events are there before the load begins.")
    ] = 50_000,
    sets: Set = None,
) -> None:
    """Kill a broker and the driver under load, beside a plain Spark job, and count."""
    from tallygate.lab.demo import run

    stop_well()
    with progress_display() as progress:
        for line in run(events, resolve_settings(sets=sets), progress, _say):
            print(line, flush=True)


def _say(line: str) -> None:
    print(line, flush=True)
