"""Topics that stand for those of a source, which the target's cluster does not know: Kafka takes
offsets of topics that it has."""

from collections.abc import Iterable

from tallygate.core.offsets import is_topic
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.topics import Topics
from tallygate.settings import Settings
from tallygate.targets.kafka.ledger import STAND_IN, Names, committed, kept_as


def has_stand_ins(names: Names, source: Connection | None, target: Connection) -> bool:
    """Whether offsets are kept for stand-ins of the source's topics: as in the ledger that is
    there; without one, if the source is on another cluster than the target. A cluster may be
    reached by many addresses, and is known by its id."""
    for group in (names.group, names.lane_group(0)):
        kept = [topic for topic, _ in committed(target, group, stand_in=False) if is_topic(topic)]
        if kept:
            return all(topic.startswith(STAND_IN) for topic in kept)
    return source is None or not clients.is_same_cluster(source, target)


def make_stand_ins(
    read: Iterable[str], source: Connection | None, topics: Topics, settings: Settings
) -> None:
    """Make those of what is read, with as many partitions. Without a `source` these are topics of
    the cluster itself, and what is no topic has one partition."""
    there, wanted = topics.partition_counts(), set(read)
    sizes = {name: 1 for name in wanted if not is_topic(name)}
    if source is not None:
        known = Topics(source, settings).partition_counts()
        sizes |= {name: known[name] for name in wanted & known.keys()}
    for topic, size in sizes.items():
        name = kept_as(topic, stand_in=source is not None)
        if name not in there:
            topics.create(name, partitions=size)
        elif there[name] < size:
            topics.alter(name, partitions=size)
