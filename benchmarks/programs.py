"""Contenders that are programs of their own.

Some come in an environment each, made on first use in the cache folder: their packages do not go
together with ours.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import peers
from tallygate.errors import TallygateError
from tallygate.settings import Settings

__all__ = ["COLUMNS", "environment", "program", "run_programs"]

LONGEST = 900.0
COLUMNS = "id BIGINT, account BIGINT, amount DOUBLE PRECISION, at TEXT, note TEXT"
"""Of the table, for those that do not make it themselves."""


def run_programs(
    commands: Sequence[Sequence[str]], variables: Mapping[str, str] | None = None
) -> None:
    """All at once; if one fails, its last words are the error."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(number) for number in range(len(commands))]
        running = []
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("wb") as out:
                    running.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            env={**os.environ, **(variables or {})},
                        )
                    )
            for command, process, log in zip(commands, running, logs, strict=True):
                if process.wait(LONGEST):
                    said = log.read_text(errors="replace")[-1500:]
                    raise TallygateError(f"{Path(command[1]).name} failed: {said}")
        finally:
            for process in running:
                process.kill()
                process.wait()


def program(name: str) -> str:
    return str(Path(peers.__path__[0]) / name)


def environment(name: str, package: str, settings: Settings) -> str:
    """The Python of an environment in which the package is installed; made if it is not there."""
    folder = settings.cache_dir / "environments" / f"{name}-{package.rpartition('=')[2]}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        commands = [
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", package],
        ]
        for command in commands:
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                raise TallygateError(f"{package} cannot be installed: {ran.stderr[-500:]}")
        done.touch()
    return str(python)
