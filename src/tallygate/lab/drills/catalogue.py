"""Every drill there is, by name."""

import secrets
from collections.abc import Sequence

from tallygate.errors import ConfigError
from tallygate.lab.drills.drill import Drill
from tallygate.lab.drills.faults import (
    brokers,
    clocks,
    consumers,
    database,
    drivers,
    network,
    records,
    transactions,
)
from tallygate.lab.drills.faults.mix import MIX, mix
from tallygate.settings import nearest

DRILLS: dict[str, Drill] = {
    **brokers.DRILLS,
    **network.DRILLS,
    **transactions.DRILLS,
    **consumers.DRILLS,
    **drivers.DRILLS,
    **database.DRILLS,
    **records.DRILLS,
    **clocks.DRILLS,
    MIX: mix(0),
}
OURS = {
    *records.DRILLS,
    *clocks.DRILLS,
    *consumers.DRILLS,
    *transactions.DRILLS,
    "kafka-driver-kill",
}
"""Drills that put certain records into the topic, or have no pipeline."""


def chosen(
    names: Sequence[str], seed: int | None, rounds: int, *, own: bool = False
) -> list[Drill]:
    """Drills by their names; `own` if they are for a pipeline of the user's."""
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        raise ConfigError(
            f"there is no drill {unknown[0]!r}{nearest(unknown[0], DRILLS)}; see `tallygate drill "
            "list`."
        )
    tied = [name for name in names if name in OURS]
    if own and tied:
        raise ConfigError(f"drill {tied[0]!r} needs records of its own, so it takes no --pipeline.")
    first = secrets.randbelow(1_000_000) if seed is None else seed
    mixes = [mix(first + number) for number in range(rounds)]
    return [
        each for name in dict.fromkeys(names) for each in (mixes if name == MIX else [DRILLS[name]])
    ]
