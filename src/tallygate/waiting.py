"""The one way to wait: for a condition, with a limit, and with words for when it is missed."""

import time
from collections.abc import Callable
from typing import TypeVar

from tallygate.errors import TallygateError

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout: float,
    message: str | Callable[[], str],
    *,
    error: type[Exception] = TallygateError,
    every: float = 0.1,
) -> T:
    """Call `condition` until what it returns is true, and return that.

    Past `timeout` seconds `error` is raised with `message`, which may be a function so that
    it can say how far things had come. An exception from `condition` ends the wait at once.
    """
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() >= deadline:
            raise error(message() if callable(message) else message)
        time.sleep(every)
    return result
