"""Placing partitions: how many there should be, and which brokers should hold them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tallygate.errors import ConfigError, TopicError

MOST_PER_BROKER = 4000


@dataclass(frozen=True)
class Advice:
    partitions: int
    reasoning: tuple[str, ...]


def advise(
    target: float,
    consumer: float,
    *,
    producer: float | None = None,
    brokers: int = 3,
    replication: int = 3,
    headroom: float = 1.5,
) -> Advice:
    """How many partitions carry `target`, when one consumer manages `consumer` of the same unit.

    Within a group a partition is read by one consumer only, so the slowest step that works
    partition by partition sets the least count; headroom covers growth and catching up after an
    outage, and a multiple of the brokers spreads the leaders evenly.
    """
    for name, rate in (("target", target), ("consumer", consumer), ("producer", producer)):
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"the {name} rate is {rate:g}; it must be a number more than 0.")
    if brokers < 1 or not 1 <= replication <= brokers:
        raise ConfigError(f"replication {replication} does not fit {brokers} brokers.")
    if headroom < 1:
        raise ConfigError(f"the headroom is {headroom:g}; it must be 1 or more.")
    wanted = target * headroom
    reasons = [f"{target:g} a second with headroom {headroom:g} makes {wanted:g}."]
    least = math.ceil(wanted / consumer)
    reasons.append(f"One consumer manages {consumer:g}, so {least} must share the reading.")
    if producer is not None:
        writing = math.ceil(wanted / producer)
        reasons.append(f"One partition takes {producer:g}, so {writing} must share the writing.")
        least = max(least, writing)
    partitions = math.ceil(least / brokers) * brokers
    reasons.append(f"{partitions} spreads the leaders evenly over {brokers} brokers.")
    held = math.ceil(partitions * replication / brokers)
    reasons.append(f"With replication {replication} each broker holds {held} replicas.")
    if held > MOST_PER_BROKER:
        reasons.append(
            f"That is above {MOST_PER_BROKER} a broker, where failover gets slow: add brokers or "
            "make the consumer faster."
        )
    reasons.append("Adding partitions later moves keys to other partitions: choose once.")
    return Advice(partitions, tuple(reasons))


def assign(
    current: Sequence[Sequence[int]],
    brokers: Mapping[int, str | None],
    replication: int | None = None,
) -> list[list[int]]:
    """Replicas for each partition on `brokers` (number to rack), the preferred leader first.

    Replicas that are in place stay; missing ones go to the emptiest broker, on a rack that the
    partition does not use yet where there is one. Then single replicas move from the fullest
    broker to the emptiest until none holds two more than another, and each partition is led by
    the broker among its replicas that leads least.
    """
    size = replication or max(len(replicas) for replicas in current)
    if size > len(brokers):
        raise TopicError(f"replication {size} needs {size} brokers, but {len(brokers)} are given.")
    placed = [[b for b in replicas if b in brokers][:size] for replicas in current]
    held = Counter(dict.fromkeys(brokers, 0))
    held.update(b for replicas in placed for b in replicas)
    for replicas in placed:
        while len(replicas) < size:
            free = [b for b in brokers if b not in replicas]
            best = min(free, key=lambda b: (_shares_rack(b, replicas, brokers), held[b], b))
            replicas.append(best)
            held[best] += 1
    while _move_one(placed, held, brokers):
        pass
    leads: Counter[int] = Counter()
    for replicas in placed:
        leader = min(replicas, key=lambda b: (leads[b], replicas.index(b)))
        leads[leader] += 1
        replicas.remove(leader)
        replicas.insert(0, leader)
    return placed


def _move_one(
    placed: list[list[int]], held: Counter[int], brokers: Mapping[int, str | None]
) -> bool:
    """Move one replica from a fuller broker to an emptier one, if that evens the load."""
    for full in sorted(held, key=lambda b: -held[b]):
        for empty in sorted(held, key=lambda b: held[b]):
            if held[full] - held[empty] < 2:
                break
            for replicas in placed:
                if full not in replicas or empty in replicas:
                    continue
                others = [b for b in replicas if b != full]
                if _shares_rack(empty, others, brokers) <= _shares_rack(full, others, brokers):
                    replicas[replicas.index(full)] = empty
                    held[full] -= 1
                    held[empty] += 1
                    return True
    return False


def _shares_rack(broker: int, replicas: Sequence[int], brokers: Mapping[int, str | None]) -> bool:
    rack = brokers[broker]
    return rack is not None and any(brokers[other] == rack for other in replicas)
