"""The loop of a fuzzer: inputs by chance until its time is over.

Each is made from a seed and its number alone, so that what was found can be found again:
`FUZZ_SEED=SEED make fuzz`. `FUZZ_SECONDS` says how long each fuzzer runs.
"""

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from tallygate.errors import TallygateError

T = TypeVar("T")
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0.5"))
LONGEST = 20.0
"""Seconds that no input may take."""


def fuzz(
    made: Callable[[random.Random], T],
    act: Callable[[T], None],
    *answers: type[TallygateError],
) -> None:
    """Act on inputs that are made by chance. Errors that are `answers` are no failure."""
    seed = os.environ.get("FUZZ_SEED") or f"{random.randrange(1 << 32)}"
    until, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        given = made(random.Random(f"{seed}/{number}"))
        began = time.monotonic()
        try:
            act(given)
        except answers:
            pass
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            pytest.fail(f"seed {seed}, input {number}: {said[:500]}\n{repr(given)[:2000]}")
        took = time.monotonic() - began
        assert took < LONGEST, f"seed {seed}, input {number} took {took:.0f} s: {given!r:.2000}"
        number += 1
    print(f"seed {seed}: {number} inputs")


def damaged(content: bytes, chance: random.Random, tokens: tuple[bytes, ...] = ()) -> bytes:
    """The bytes with some of them changed, removed, repeated, or put elsewhere."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3, 8, 30))):
        at = chance.randrange(len(found) + 1)
        size = chance.choice((1, 1, 2, 4, 16, 64))
        kind = chance.randrange(6 if tokens else 5)
        if kind == 0:
            found[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size] * chance.choice((1, 2, 100))
        elif kind == 3:
            found[at : at + size] = chance.choice((b"\0", b"\xff", b"\x80")) * size
        elif kind == 4:
            start = chance.randrange(len(found) + 1)
            found[at:at] = found[start : start + size]
        else:
            found[at:at] = chance.choice(tokens)
    return bytes(found[: 1 << 20])
