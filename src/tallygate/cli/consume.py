"""`tallygate consume`: topics onto the terminal or into a file."""

import dataclasses
import functools
import json
import re
import signal
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import resolve_connection, with_settings
from tallygate.errors import ConfigError, InputError
from tallygate.gc_tuning import collect_seldom
from tallygate.printable import printable
from tallygate.units import time_ms

if TYPE_CHECKING:
    from tallygate.kafka.read import Reading
    from tallygate.settings import Settings


class Shown(StrEnum):
    table = "table"
    json = "json"
    raw = "raw"


class Decode(StrEnum):
    text = "text"
    json = "json"
    avro = "avro"


class Isolation(StrEnum):
    committed = "committed"
    uncommitted = "uncommitted"


@with_settings
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="beginning, end, an offset, or a time (2026-01-31T12:00:00Z).",
            show_default="end; beginning with --exit",
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=1, help="The last records of each partition, and on.")
    ] = None,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop at the end, as it is when reading begins.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Read as this group, and commit what was printed.")
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option(help="Whether records of open transactions are seen.")
    ] = Isolation.committed,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition.")] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    decode: Annotated[Decode, typer.Option(help="How values are read.")] = Decode.text,
    avro_schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="The schema, for Avro.")
    ] = None,
    output: Annotated[
        Shown,
        typer.Option("--output", "-o", help="raw: values alone, a line each."),
    ] = Shown.table,
    *,
    settings: "Settings",
) -> None:
    """Read topics; Ctrl-C ends cleanly."""
    collect_seldom()
    from tallygate.kafka.read import read

    if group is not None and key is not None and limit is not None:
        raise ConfigError("--group, --key and --limit together would skip records: leave one out.")
    what = _reading(topics, from_, tail, exit_, group, isolation, partition)
    if key is None:
        what = dataclasses.replace(what, limit=limit)
    printer = _Printer(output, _decoder(decode, avro_schema), key, limit)
    connection = resolve_connection(settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    batches = read(what, connection)
    try:
        for batch in batches:
            if not printer.show(batch):
                break
    except KeyboardInterrupt:
        pass
    finally:
        batches.close()  # type: ignore[attr-defined]
        sys.stdout.flush()


def _reading(
    topics: list[str],
    from_: str | None,
    tail: int | None,
    exit_: bool,
    group: str | None,
    isolation: Isolation,
    partitions: list[int] | None,
) -> "Reading":
    from tallygate.kafka.read import From, Reading

    if tail is not None and from_ is not None:
        raise ConfigError("--from and --tail exclude each other.")
    if group is not None and (from_ or tail or partitions):
        raise ConfigError(
            "a group has offsets of its own: leave out --from, --tail and --partition."
        )
    start, value = (From.beginning, 0) if exit_ else (From.end, 0)
    if tail is not None:
        start, value = From.tail, tail
    elif from_ in ("beginning", "end"):
        start = From(from_)
    elif from_ is not None and re.fullmatch("[0-9]{1,12}", from_):
        start, value = From.offset, int(from_)
    elif from_ is not None:
        start, value = From.timestamp, time_ms(from_)
    return Reading(
        topics,
        start,
        value,
        group,
        partitions,
        exit_at_end=exit_,
        committed_only=isolation is Isolation.committed,
    )


def _decoder(decode: Decode, avro_schema: str | None) -> Any:
    if (decode is Decode.avro) != (avro_schema is not None):
        raise ConfigError("--decode avro and --avro-schema FILE go together.")
    if decode is Decode.json:
        return functools.partial(json.loads, parse_constant=_no_constant)
    if decode is Decode.avro:
        from tallygate.core.avro import decoder

        return decoder(avro_schema or "")
    return lambda value: value.decode(errors="replace")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Printer:
    def __init__(self, shown: Shown, decode: Any, key: str | None, limit: int | None) -> None:
        self._shown, self._decode = shown, decode
        self._key = None if key is None else key.encode()
        self._left = limit
        self._headed = False

    def show(self, batch: list[Any]) -> bool:
        """Print a batch; False when the limit is reached."""
        if self._key is not None:
            batch = [message for message in batch if message.key() == self._key]
        if self._left is not None:
            batch = batch[: self._left]
            self._left -= len(batch)
        if batch:
            if self._shown is Shown.raw:
                self._raw(batch)
            else:
                self._rows(batch)
            sys.stdout.flush()
        return self._left != 0

    def _raw(self, batch: list[Any]) -> None:
        out = sys.stdout.buffer
        out.write(b"\n".join([message.value() or b"" for message in batch]))
        out.write(b"\n")

    def _rows(self, batch: list[Any]) -> None:
        from tallygate.kafka.read import to_record

        for message in batch:
            record = to_record(message)
            fields: dict[str, Any] = {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": None if record.key is None else record.key.decode(errors="replace"),
                "headers": {
                    name: None if text is None else text.decode(errors="replace")
                    for name, text in record.headers
                },
            }
            write = self._json if self._shown is Shown.json else self._line
            try:
                value = None if record.value is None else self._decode(record.value)
                write({**fields, "value": value})
            except (InputError, ValueError, TypeError, RecursionError) as error:
                # A record that is not what it should be is shown as it is; others come after it.
                text = (record.value or b"").decode(errors="replace")
                write({**fields, "value": text, "error": str(error) or type(error).__name__})

    def _json(self, fields: dict[str, Any]) -> None:
        from tallygate.kafka.record_files import dump_json, plain

        try:
            line = dump_json(fields)
        except TypeError:  # an integer beyond 64 bits, or half a character
            line = json.dumps(fields, default=plain, allow_nan=False).encode()
        sys.stdout.buffer.write(line + b"\n")

    def _line(self, fields: dict[str, Any]) -> None:
        from tallygate.kafka.record_files import plain

        value = fields["value"]
        text = value if isinstance(value, str) else json.dumps(value, default=plain)
        headers = f"  {fields['headers']}" if fields["headers"] else ""
        error = f"  error: {fields['error']}" if "error" in fields else ""
        key = "-" if fields["key"] is None else fields["key"]
        if not self._headed:
            print(f"{'partition':>9}  {'offset':>10}  {'key':<16}  value")
            self._headed = True
        print(
            printable(
                f"{fields['partition']:>9}  {fields['offset']:>10}  {key:<16}  "
                f"{text}{headers}{error}"
            )
        )
