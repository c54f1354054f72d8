"""`tallygate dead-letters`: look at what failed for good, and put it back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import (
    Output,
    resolve_connection,
    with_settings,
)
from tallygate.cli.output import Format, show, show_table
from tallygate.cli.own_session import own_session
from tallygate.errors import TopicError
from tallygate.printable import printable

if TYPE_CHECKING:
    from tallygate.core.letters import DeadLetter
    from tallygate.settings import Settings

app = typer.Typer(help="Look at dead letters, and put them back.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
PIPELINE_FILES = (".yaml", ".yml")


@app.command("list")
@with_settings
def list_(
    place: Annotated[
        str,
        typer.Argument(metavar="TOPIC|FILE.yaml", help="A dead-letter topic, or a pipeline."),
    ],
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """List the dead letters of a topic, or of a pipeline into any sink: where each came from, why,
    and, in a topic, whether it was put back."""
    if place.endswith(PIPELINE_FILES):
        rows = [_origin(letter) for letter in _of_file(Path(place), settings)]
        columns = {"from": "from", "time": "time", "cause": "cause"}
    else:
        import tallygate

        rows = [_row(each) for each in tallygate.dead_letters(topic=place, settings=settings)]
        columns = {
            "partition": "partition",
            "offset": "offset",
            "from": "from",
            "tries": "tries",
            "replayed": "put back",
            "cause": "cause",
        }
    show(rows, output, lambda: show_table(rows, columns) if rows else print("No dead letters."))


def _of_file(file: Path, settings: "Settings") -> "list[DeadLetter]":
    """Only a Delta table is read by Spark, in a session that ends with the command."""
    import tallygate
    from tallygate.spec import load_spec

    if not load_spec(file).sink.needs_delta:
        return tallygate.dead_letters(file, settings=settings)
    with own_session(file, settings, "dead letters") as (pipeline, spark):
        return tallygate.dead_letters(pipeline, settings=settings, spark=spark)


@app.command("show")
@with_settings
def show_(
    topic: TopicName,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="Its offset in the topic.")],
    partition: Annotated[int, typer.Option(help="Its partition.")] = 0,
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """Show one dead letter whole: value, headers and the stack of its failure."""
    import tallygate

    letters = tallygate.dead_letters(topic=topic, settings=settings)
    found = {(each.record.partition, each.record.offset): each for each in letters}
    if (partition, offset) not in found:
        raise TopicError(f"{topic!r} has no dead letter at partition {partition}, offset {offset}.")
    letter = found[partition, offset]
    value = {**_row(letter), **_whole(letter)}
    show(value, output, lambda: _print(value))


@app.command()
@with_settings
def replay(
    topic: TopicName,
    offset: Annotated[
        list[int] | None, typer.Option(help="Only this one; may be given again.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Only those of this partition.")] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="A topic that they may go back to; may be given again."),
    ] = None,
    *,
    settings: "Settings",
) -> None:
    """Put dead letters back into the topics they came from, each once; only into those named."""
    from tallygate.consumer.replay import replay as put_back

    connection = resolve_connection(settings)

    def wanted(letter: "DeadLetter") -> bool:
        return (offset is None or letter.record.offset in offset) and (
            partition is None or letter.record.partition == partition
        )

    done = put_back(topic, connection, wanted, into=into or ())
    print(f"{done.count} dead letters of {topic!r} were put back.")
    if done.left:
        print(f"{done.left} name topics that --into does not, and stay.")


def _origin(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "from": letter.coordinates,
        "time": letter.time and letter.time.isoformat(),
        "cause": letter.cause,
    }


def _row(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "partition": letter.record.partition,
        "offset": letter.record.offset,
        "from": letter.coordinates,
        "tries": letter.tries,
        "replayed": letter.replayed,
        "cause": letter.cause,
    }


def _whole(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "key": _text(letter.key),
        "value": _text(letter.value),
        "headers": {name: _text(content) for name, content in letter.headers},
        "stack": letter.stack,
    }


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _print(value: dict[str, Any]) -> None:
    for name, content in value.items():
        if name != "stack":
            print(f"{name:<10} {printable(str(content))}")
    print(printable(value["stack"], lines=True))
