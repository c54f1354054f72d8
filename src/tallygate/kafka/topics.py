"""Topics: create, list, describe, alter, delete, move.

Every refusal that can be made before Kafka is asked to change anything is made here, with the
reason; what only Kafka can judge (a config's name or value) is asked with `validate_only` first,
so that an alteration of several things happens whole or not at all.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tallygate.errors import TallygateError, TopicError, UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.kafka.placement import assign
from tallygate.kafka.producer import LARGEST
from tallygate.kafka.tools import Tools
from tallygate.kafka.topic_state import Broker, Partition, Topic
from tallygate.progress import Progress, silent
from tallygate.settings import Settings, nearest
from tallygate.waiting import wait_until

LAG = 3.0  # seconds that a broker may be behind the others before its word is taken
_KEEPING = {"cleanup.policy": "delete"}
"""A compacted topic refuses dead letters without a key, and forgets all but the last of a key."""


class Topics:
    """The topics of one cluster."""

    def __init__(self, connection: Connection, settings: Settings | None = None) -> None:
        self.connection = connection
        self._settings = settings or Settings.load()
        self._timeout = self._settings.timeout
        self._admin: AdminClient = clients.shared_admin(connection)

    def brokers(self) -> list[Broker]:
        with clients.explain_errors(self.connection, "asking for the brokers"):
            nodes = self._admin.describe_cluster(request_timeout=self._timeout).result().nodes
        return sorted(
            (Broker(node.id, f"{node.host}:{node.port}", node.rack) for node in nodes),
            key=lambda broker: broker.id,
        )

    def names(self, *, internal: bool = False) -> list[str]:
        found = sorted(self._metadata().topics)
        return [name for name in found if internal or not name.startswith("__")]

    def partition_counts(self) -> dict[str, int]:
        """Every topic and how many partitions it has, with one question to the cluster."""
        return {name: len(t.partitions) for name, t in self._metadata().topics.items()}

    def all(self, *, internal: bool = False) -> list[Topic]:
        return self._describe(self.names(internal=internal), sizes={})

    def describe(self, name: str, *, sizes: bool = True) -> Topic:
        self.check_exists(name)
        return self._describe([name], self._sizes(name) if sizes else {})[0]

    def effective_configs(self, name: str) -> dict[str, str]:
        """All configs that hold for a topic, the broker's defaults included."""
        return {key: entry.value or "" for key, entry in self._configs([name])[name].items()}

    def _sizes(self, name: str) -> dict[tuple[str, int], int]:
        """The sizes, or none of them where this user may not ask for them."""
        try:
            return self._tools.sizes([name])
        except TopicError:
            return {}

    def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every partition has a leader."""
        if name in self._metadata().topics:
            raise TopicError(f"topic {name!r} exists already; change it with `topic alter`.")
        if partitions < 1:
            raise TopicError(
                f"topic {name!r} cannot have {partitions} partitions; it needs 1 or more."
            )
        brokers = len(self.brokers())
        replication = min(3, brokers) if replication is None else replication
        self._check_replication(name, replication, brokers, configs or {})
        new = NewTopic(name, partitions, replication, config=dict(configs or {}))
        doing = f"creating topic {name!r}"
        self._explain_configs(
            lambda: clients.answer(
                self._admin.create_topics([new], request_timeout=self._timeout),
                self.connection,
                doing,
            ),
            configs or {},
        )
        wait_until(
            lambda: all(_is_led(known.get(name), partitions) for known in self._by_broker()),
            self._timeout,
            f"topic {name!r} was created, but not every broker knows leaders for it yet.",
            error=UnreachableError,
        )

    def create_for_letters(self, name: str) -> None:
        """Create a topic for dead letters, some of which were too large for another topic. A
        cluster may not allow that much; then the topic is created as others are."""
        try:
            self.create(name, configs={**_KEEPING, "max.message.bytes": str(LARGEST)})
        except TopicError:
            if name not in self.names():  # or another program has just created it
                self.create(name, configs=_KEEPING)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.check_exists(name)
            if name.startswith("__"):
                raise TopicError(f"{name!r} is Kafka's own topic and is not deleted here.")
        deleted = self._admin.delete_topics(list(names), request_timeout=self._timeout)
        clients.answer(deleted, self.connection, f"deleting {', '.join(names)}")
        wait_until(
            lambda: not any(set(names) & set(known) for known in self._by_broker()),
            self._timeout,
            f"deleting {', '.join(names)} was accepted, but not every broker has heard of it yet.",
            error=UnreachableError,
        )

    def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change what is given; a config of None goes back to the broker's default.

        Configs and partitions change together or not at all; replicas move after that.
        """
        self.check_exists(name)
        there = len(self._topic(name).partitions)
        if partitions is not None and partitions <= there:
            raise TopicError(
                f"topic {name!r} has {there} partitions, and Kafka cannot take partitions away "
                "or keep the count: ask for more, or create a new topic and copy the records."
            )
        if replication is not None:
            self._check_replication(name, replication, len(self.brokers()), configs or {})
        wanted = partitions and NewPartitions(name, partitions)
        for trial in (True, False):
            if configs:
                self._alter_configs(name, configs, trial)
            if wanted:
                grown = self._admin.create_partitions(
                    [wanted], validate_only=trial, request_timeout=self._timeout
                )
                clients.answer(grown, self.connection, f"adding partitions to {name!r}")
        if partitions:
            wait_until(
                lambda: self._has_leaders(name, partitions),
                self._timeout,
                f"topic {name!r} has new partitions without a leader.",
                error=UnreachableError,
            )
        if replication is not None:
            self.reassign(name, replication=replication)

    def reassign(
        self,
        name: str,
        brokers: Sequence[int] | None = None,
        *,
        replication: int | None = None,
        throttle: int | None = None,
        timeout: float | None = 600,
        progress: Progress = silent,
    ) -> dict[int, list[int]]:
        """Move a topic's replicas onto `brokers`, evenly and with few moves.

        Waits until the data has moved and the preferred leaders lead, unless `timeout` is None.
        """
        self.check_exists(name)
        if throttle is not None and (throttle <= 0 or timeout is None):
            raise TopicError(
                "a throttle must be more than 0, and is lifted only when the move is waited for."
            )
        racks = {broker.id: broker.rack for broker in self.brokers()}
        if replication is not None:
            self._check_replication(name, replication, len(brokers or racks), {})
        unknown = set(brokers or ()) - set(racks)
        if unknown:
            raise TopicError(
                f"there is no broker {min(unknown)}; the brokers are "
                f"{', '.join(map(str, sorted(racks)))}."
            )
        chosen = {number: racks[number] for number in brokers or racks}
        found = self._topic(name).partitions
        current = [list(found[number].replicas) for number in sorted(found)]
        target = dict(enumerate(assign(current, chosen, replication)))
        plan = {(name, number): replicas for number, replicas in target.items()}
        self._tools.reassign(plan, throttle)
        if timeout is None:
            return target
        wait_until(
            lambda: self._moved(name, target, progress),
            timeout,
            f"the replicas of {name!r} have not all moved within {timeout:.0f} s; Kafka goes on.",
            error=UnreachableError,
            every=0.3,
        )
        self._tools.finish_reassign(plan)
        self.elect_preferred(name)
        leaders = {number: replicas[0] for number, replicas in target.items()}
        wait_until(
            lambda: self._leaders(name) == leaders,
            self._timeout,
            f"the replicas of {name!r} have moved, but not all preferred leaders lead yet.",
            error=UnreachableError,
        )
        return target

    def elect_preferred(self, name: str) -> None:
        """Give each partition back to its preferred leader where that one is in sync."""
        partitions = [TopicPartition(name, n) for n in self._topic(name).partitions]
        with clients.explain_errors(self.connection, f"electing the preferred leaders of {name!r}"):
            # confluent-kafka fails on a request_timeout here, so the client's own limit holds.
            self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result()

    @property
    def _tools(self) -> Tools:
        return Tools(self.connection, self._settings)

    def _metadata(self) -> Any:
        with clients.explain_errors(self.connection, "asking for the topics"):
            return self._admin.list_topics(timeout=self._timeout)

    def check_exists(self, name: str) -> None:
        """Refuse a name that no topic has, with the nearest that one has."""
        self._topic(name)

    def _topic(self, name: str) -> Any:
        """A topic's metadata. Any broker may answer, and one that is a little behind does not know
        a new topic yet: it is asked again for a moment before the name is refused."""
        try:
            return wait_until(
                lambda: self._metadata().topics.get(name), LAG, "", error=TimeoutError
            )
        except TimeoutError:
            known = self._metadata().topics
            raise TopicError(f"there is no topic {name!r}{nearest(name, known)}") from None

    def _check_replication(
        self, name: str, replication: int, brokers: int, configs: Mapping[str, str | None]
    ) -> None:
        if not 1 <= replication <= brokers:
            raise TopicError(
                f"topic {name!r} cannot have replication {replication}: the cluster has "
                f"{brokers} brokers, and each holds at most one replica of a partition."
            )
        in_sync = configs.get("min.insync.replicas")
        if in_sync and in_sync.isdigit() and int(in_sync) > replication:
            raise TopicError(
                f"topic {name!r} cannot ask for {in_sync} in-sync replicas of {replication}: "
                f"Kafka would take it for {replication}, and one lost replica would stop writes."
            )

    def _leaders(self, name: str) -> dict[int, int]:
        found = self._topic(name).partitions
        return {number: partition.leader for number, partition in found.items()}

    def _by_broker(self) -> Iterator[Any]:
        """The topics as each broker knows them: one may be behind another. A client of its own for
        each, since one that knows them all asks whichever it likes."""
        for broker in self.brokers():
            alone = {**self.connection.properties, "bootstrap.servers": broker.address}
            admin = clients.admin(dataclasses.replace(self.connection, properties=alone))
            with clients.explain_errors(
                self.connection, f"asking broker {broker.id} for the topics"
            ):
                yield admin.list_topics(timeout=self._timeout).topics

    def _has_leaders(self, name: str, partitions: int) -> bool:
        return _is_led(self._metadata().topics.get(name), partitions)

    def _moved(self, name: str, target: Mapping[int, Sequence[int]], progress: Progress) -> bool:
        found = self._topic(name).partitions
        done = sum(
            list(found[number].replicas) == list(replicas)
            and set(found[number].isrs) == set(replicas)
            for number, replicas in target.items()
        )
        progress(f"{name}: {done} of {len(target)} partitions in place")
        return done == len(target)

    def _alter_configs(self, name: str, configs: Mapping[str, str | None], trial: bool) -> None:
        entries = [
            ConfigEntry(
                key,
                value or "",
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        altered = self._admin.incremental_alter_configs(
            [resource], validate_only=trial, request_timeout=self._timeout
        )
        self._explain_configs(
            lambda: clients.answer(altered, self.connection, f"altering topic {name!r}"), configs
        )

    def _explain_configs(self, ask: Callable[[], Any], configs: Mapping[str, Any]) -> None:
        """Ask Kafka, and when it does not know a config, say which known one is nearest."""
        try:
            ask()
        except TopicError as error:
            known = self._config_names()
            strange = [key for key in configs if known and key not in known]
            if not strange:
                raise
            raise TopicError(
                f"{strange[0]!r} is not a topic config{nearest(strange[0], known)}"
            ) from error

    def _config_names(self) -> Sequence[str]:
        some = next(iter(self.names(internal=True)), None)
        return [] if some is None else list(self._configs([some])[some])

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The configs of topics that are known to exist: a broker that does not know one yet is
        behind, and is asked again."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]

        def ask() -> dict[Any, Any] | None:
            described = self._admin.describe_configs(resources, request_timeout=self._timeout)
            try:
                return {resource: future.result() for resource, future in described.items()}
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                doing = "asking for topic configs"
                raise clients.translate(error.args[0], self.connection, doing) from error

        answers = wait_until(
            ask,
            self._timeout,
            f"{', '.join(names)}: the brokers disagree on whether such a topic exists.",
            error=TopicError,
        )
        assert answers is not None
        return {resource.name: entries for resource, entries in answers.items()}

    def _offsets(
        self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        """One end of each partition; a partition that has no leader is left out."""
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}
        offsets = {}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout) if asked else {}
        for where, future in futures.items():
            try:
                found = clients.answer({where: future}, self.connection, "asking for offsets")
            except TallygateError:
                continue
            offsets[where.topic, where.partition] = found[where].offset
        return offsets

    def _describe(self, names: Sequence[str], sizes: Mapping[tuple[str, int], int]) -> list[Topic]:
        if not names:
            return []
        known, configs = self._metadata().topics, self._configs(names)
        metadata = {name: known.get(name) or self._topic(name) for name in names}
        led = [
            (name, number)
            for name in names
            for number, partition in metadata[name].partitions.items()
            if partition.leader >= 0
        ]
        begins = self._offsets(led, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(led, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        topics = []
        for name in names:
            min_in_sync = int(configs[name]["min.insync.replicas"].value or 1)
            partitions = tuple(
                Partition(
                    id=number,
                    leader=found.leader if found.leader >= 0 else None,
                    replicas=tuple(found.replicas),
                    in_sync=tuple(sorted(found.isrs)),
                    begin=begins.get((name, number)),
                    end=ends.get((name, number)),
                    size=sizes.get((name, number)),
                    min_in_sync=min_in_sync,
                )
                for number, found in sorted(metadata[name].partitions.items())
            )
            own = {
                key: entry.value or ""
                for key, entry in configs[name].items()
                if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
            }
            topics.append(Topic(name, partitions, own, min_in_sync))
        return topics


def _is_led(found: Any, partitions: int) -> bool:
    return (
        found is not None
        and len(found.partitions) == partitions
        and all(partition.leader >= 0 for partition in found.partitions.values())
    )
