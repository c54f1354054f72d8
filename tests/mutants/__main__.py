"""Apply each mutant to a copy of the project, and have the tests that must see it run there.

A mutant is caught if a test fails. One that survives says that the suite would not see the
guarantee break. The same tests are run without any mutant first: a test that fails anyway catches
nothing.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from mutants.catalogue import MUTANTS
from mutants.mutant import ROOT, SOURCE, Mutant

COPIED = ("src", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
TIME_LIMIT = 400
"""Seconds that the tests of one mutant may take; a breakage that makes them hang is seen, too."""
T = TypeVar("T")
PASSED, FAILED = 0, 1
"""What pytest says by its exit code; anything else is no verdict of a test."""


@dataclass(frozen=True)
class Copy:
    """The project, to be broken."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> "Copy":
        ignored = shutil.ignore_patterns("__pycache__", "results")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, root / name)
        return cls(root)

    def put(self, file: str, text: str) -> None:
        """Python knows a stale module by its time and size, which two mutants may share."""
        path = self.root / SOURCE / file
        path.write_text(text)
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            cached.unlink()

    def test(self, arguments: Sequence[str]) -> tuple[int | None, str]:
        """Pytest's exit code, or None if it had to be ended; and what it said."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not system", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        with tempfile.TemporaryFile("w+") as output:
            running = subprocess.Popen(
                command,
                cwd=self.root / "tests",
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code: int | None = running.wait(TIME_LIMIT)
            except subprocess.TimeoutExpired:
                running.terminate()
                running.wait(60)
                code = None
            output.seek(0)
            return code, output.read()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("-k", dest="only", default="", help="those whose guarantee has this text")
    parser.add_argument("--trust", action="store_true", help="do not run the tests unbroken first")
    parser.add_argument("-n", dest="copies", type=int, default=3, help="how many at once")
    given = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if given.only.lower() in each.guarantee.lower()]
    with tempfile.TemporaryDirectory(prefix="tallygate-mutants-") as folder:
        copies = Copies(Path(folder), given.copies)
        if not given.trust:
            tests = sorted({each.tests for each in chosen})
            if not all(copies.each(_passes_unbroken, tests)):
                return 1
        caught = copies.each(_is_caught, chosen)
    survivors = [each for each, is_caught in zip(chosen, caught, strict=True) if not is_caught]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants are caught.")
    for each in survivors:
        print(f"  not caught: {each.guarantee} ({each.file})")
    return 1 if survivors else 0


class Copies:
    """Several copies, each with one breakage at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._count, self._idle = count, SimpleQueue[Copy]()
        for number in range(count):
            root = folder / str(number)
            root.mkdir()
            self._idle.put(Copy.at(root))

    def each(self, act: Callable[[Copy, T], bool], values: Sequence[T]) -> list[bool]:
        """Act on each of the values, each time in a copy that is idle."""

        def acted(value: T) -> bool:
            copy = self._idle.get()
            try:
                return act(copy, value)
            finally:
                self._idle.put(copy)

        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(acted, values))


def _passes_unbroken(copy: Copy, tests: str) -> bool:
    code, said = copy.test(shlex.split(tests))
    if code != PASSED:
        print(f"{tests}: does not pass on the unbroken copy:\n{said[-3000:]}", flush=True)
    return code == PASSED


def _is_caught(copy: Copy, mutant: Mutant) -> bool:
    whole, began = (copy.root / SOURCE / mutant.file).read_text(), time.monotonic()
    copy.put(mutant.file, mutant.applied(copy.root))
    try:
        code, said = copy.test(shlex.split(mutant.tests))
    finally:
        copy.put(mutant.file, whole)
    caught = code in (FAILED, None)
    verdict = "caught" if caught else "NOT CAUGHT"
    print(f"{verdict:>10}  {time.monotonic() - began:5.1f} s  {mutant.guarantee}", flush=True)
    if not caught:
        print(said[-1500:], flush=True)
    return caught


if __name__ == "__main__":
    sys.exit(main())
