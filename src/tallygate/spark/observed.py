"""What Spark counted while it wrote: known once the write has taken place, and never before."""

import time
from typing import Any

from pyspark.sql import Observation

from tallygate.errors import UnreachableError

LONGEST = 30.0
"""The count comes from a listener, a moment after the write. `Observation.get` waits for ever, and
a write that the store has left out computes nothing that could be counted."""


def observed_count(observation: Observation, name: str) -> int:
    """The count of that name, of a write that has ended."""
    inner: Any = observation._jo
    deadline = time.monotonic() + LONGEST
    while not inner.future().isCompleted():
        if time.monotonic() > deadline:
            raise UnreachableError("Spark does not say how many rows it wrote")
        time.sleep(0.01)
    return int(observation.get[name])
