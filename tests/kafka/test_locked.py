"""A cluster that refuses strangers: each gets a clear error, in the time that was set."""

import time
from pathlib import Path

import pytest

from fixtures.commands import Tallygate
from fixtures.locked import credentials
from tallygate.errors import UnreachableError


def _login(user: str, password: str, timeout: int = 10) -> list[str]:
    words = ["--set", f"timeout={timeout}"]
    for name, text in credentials(user, password).items():
        words += ["--set", f"kafka.{name.replace('_', '.')}={text}"]
    return words


@pytest.fixture
def line(tmp_path: Path) -> str:
    path = tmp_path / "one.txt"
    path.write_text("one line\n")
    return str(path)


def test_the_right_credentials_open(locked: str, tallygate: Tallygate, line: str) -> None:
    admin = ["-b", locked, *_login("admin", "right")]
    assert "vault" in tallygate("topic", "list", *admin).stdout
    tallygate("topic", "describe", "vault", *admin)
    tallygate("produce", "vault", line, *admin)
    assert tallygate("consume", "vault", "--exit", "-o", "raw", *admin).stdout == "one line\n"


@pytest.mark.parametrize(
    "command", ["topic list", "produce vault LINE", "consume vault --exit", "doctor"]
)
def test_wrong_credentials_are_named_and_never_shown(
    locked: str, tallygate: Tallygate, line: str, command: str
) -> None:
    words = [line if word == "LINE" else word for word in command.split()]
    started = time.monotonic()
    code = 1 if command == "doctor" else UnreachableError.exit_code
    done = tallygate(*words, "-b", locked, *_login("admin", "hunter2", 3), code=code)
    assert "refused the credentials" in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert time.monotonic() - started < 60


def test_what_is_not_permitted_is_said(locked: str, tallygate: Tallygate, line: str) -> None:
    guest = ["-b", locked, *_login("guest", "guest")]
    for words in (["produce", "vault", line], ["topic", "create", "own"], ["consume", "vault"]):
        done = tallygate(*words, *guest, code=9)
        assert "vault" in done.stderr or "uthoriz" in done.stderr
