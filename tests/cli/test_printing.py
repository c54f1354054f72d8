"""What commands print of records: nothing that a terminal obeys, and no record ends the rest."""

import json
import sys
from typing import Any

import pytest
from confluent_kafka import Message

from tallygate import cli
from tallygate.auditing.trace import Trace
from tallygate.auditing.verdict import Anomaly, AuditResult
from tallygate.cli import dead_letters
from tallygate.cli.consume import Decode, Shown, _decoder, _Printer
from tallygate.cli.output import progress_display, show_table
from tallygate.cli.pipeline import _view
from tallygate.errors import ConfigError

EVIL = "\x1b]0;owned\x07\u202e\r\n[bold]"
SHOWN = r"\x1b]0;owned\x07\u202e\x0d\x0a[bold]"


def _message(value: bytes | None, key: str = "k", headers: Any = None) -> Message:
    return Message(topic="t", partition=1, offset=2, key=key.encode(), value=value, headers=headers)


def _consumed(
    capsys: pytest.CaptureFixture[str], shown: Shown, decode: Decode, *values: Any
) -> str:
    printer = _Printer(shown, _decoder(decode, None), None, None)
    assert printer.show([each if isinstance(each, Message) else _message(each) for each in values])
    return capsys.readouterr().out


def test_a_record_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    record = _message(EVIL.encode(), EVIL, [(EVIL, EVIL.encode())])
    heading, line = _consumed(capsys, Shown.table, Decode.text, record).splitlines()
    assert line.count(SHOWN) == 2  # the headers are escaped as Python's own text is
    assert not set(line) & set("\x1b\x07\r\u202e")
    assert heading.split() == ["partition", "offset", "key", "value"]


@pytest.mark.parametrize("bad", [b"no json", b"\xff", b"", b"[" * 100_000, b"9" * 5000, b"[NaN]"])
def test_a_record_that_is_no_json_is_shown_and_the_next_ones_too(
    capsys: pytest.CaptureFixture[str], bad: bytes
) -> None:
    lines = _consumed(capsys, Shown.json, Decode.json, b"1", bad, b'{"a": 2}', None).splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["value"] for each in found] == [1, bad.decode(errors="replace"), {"a": 2}, None]
    assert ["error" in each for each in found] == [False, True, False, False]
    assert found[1]["error"]
    table = _consumed(capsys, Shown.table, Decode.json, b"1", bad, b'{"a": 2}').splitlines()
    assert len(table) == 4
    assert f"  error: {found[1]['error']}" in table[2]


@pytest.mark.parametrize("value", [b"1" * 30, rb'["\ud800"]', rb'{"\udfff": [1, "\u001b"]}'])
def test_json_that_only_python_holds_is_shown(
    capsys: pytest.CaptureFixture[str], value: bytes
) -> None:
    line = _consumed(capsys, Shown.json, Decode.json, value)
    assert json.loads(line)["value"] == json.loads(value)
    assert json.dumps(json.loads(value)) in _consumed(capsys, Shown.table, Decode.json, value)


def test_raw_values_and_json_stay_as_they_are(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = _Printer(Shown.raw, _decoder(Decode.json, None), None, None)
    assert printer.show([_message(EVIL.encode())])
    assert capsysbinary.readouterr().out == EVIL.encode() + b"\n"
    printer = _Printer(Shown.json, _decoder(Decode.text, None), None, None)
    assert printer.show([_message(EVIL.encode())])
    assert json.loads(capsysbinary.readouterr().out)["value"] == EVIL


def test_a_table_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([{"cause": EVIL, "names": [EVIL, 5]}], {"cause": "cause", "names": "names"})
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split("  ")[0] == SHOWN
    assert f"{SHOWN}, 5" in last


def test_a_dead_letter_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    dead_letters._print({"cause": EVIL, "value": EVIL, "stack": f"a\n{EVIL}"})
    out = capsys.readouterr().out
    assert f"cause      {SHOWN}\nvalue      {SHOWN}\na\n" in out
    assert not set(out) & set("\x1b\x07\r\u202e")


def test_an_error_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ConfigError(EVIL), ValueError(EVIL)):

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(cli, "app", fail)
        with pytest.raises(SystemExit):
            cli.main()
        said = capsys.readouterr().err
        assert "owned" in said
        assert not set(said) & set("\x1b\x07\r\u202e")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_text_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys.stderr, "isatty", lambda: terminal)
        with progress_display() as display:
            display(f"[/nonsense] {EVIL} [red]")
    said = capsys.readouterr().err
    assert "\x1b]0" not in said
    assert "\u202e" not in said
    if not terminal:
        assert said == f"[/nonsense] {SHOWN} [red]\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_is_text_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys.stdout, "isatty", lambda: terminal)
        with _view("p", as_json=False) as (_, note):
            note(f"[/nonsense] {EVIL}")
    said = capsys.readouterr().out
    assert f"[/nonsense] {SHOWN}" in said
    assert "\x1b]0" not in said


def test_a_record_forges_no_line_of_its_trace() -> None:
    forged = "x\nt/0@2: missing"
    place: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 1}
    found = Trace(**place, became="row", key=EVIL, value=forged, time="now", cause=EVIL)
    said = str(found).splitlines()
    assert len(said) == 3
    assert said[2] == f"  cause: {SHOWN}"


def test_a_row_forges_no_line_of_an_audit() -> None:
    wrong = Anomaly("unexpected", 1, (EVIL,))
    found = AuditResult(pipeline="p", target="t", records=1, rows=1, anomalies=(wrong,))
    assert f"    {SHOWN}" in str(found).splitlines()
    assert SHOWN in repr(found)
