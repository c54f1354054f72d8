"""The one way to make a Kafka client, and to turn what one raises into an error for people.

librdkafka reports connection trouble on stderr by itself; here it goes to the logger
`tallygate.librdkafka`, which is silent unless it has a handler.
"""

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tallygate.errors import ConfigError, TallygateError, TopicError, UnreachableError
from tallygate.kafka.connection import Connection
from tallygate.waiting import wait_until

T = TypeVar("T")
REFUSAL_TIMEOUT = 3.0
ASK_TIMEOUT = 10.0

LOGGER = logging.getLogger("tallygate.librdkafka")
LOGGER.addHandler(logging.NullHandler())
LOGGER.propagate = False

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
}
PASSING = _UNREACHABLE | {
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What a consumer reports while it goes on trying by itself. (That an error is retriable is not
known of those that come as messages.)"""
GROUPLESS = PASSING | {KafkaError.GROUP_AUTHORIZATION_FAILED}
"""The same for one that has no use for its group: librdkafka asks for the coordinator anyway."""
NOT_YET = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
"""What a broker says that has only just become a leader and does not know of that yet, or of the
topic, though all name it: it is to be asked again."""
_shared: dict[Hashable, AdminClient] = {}
_AS_IT_IS = ("on_delivery", "log_level")
_CREDENTIALS = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}


def admin(connection: Connection, **properties: Any) -> AdminClient:
    return _make(AdminClient, connection, properties)


def shared_admin(connection: Connection) -> AdminClient:
    """The one admin client of this process for a cluster: to ask takes it a millisecond, and a new
    one forty. A process that was forked has one of its own."""
    kind = (os.getpid(), *sorted(connection.librdkafka().items()))
    if kind not in _shared:
        _shared[kind] = admin(connection)
    return _shared[kind]


def forget_shared() -> None:
    """Leave nothing open to Kafka; who still holds a client may go on with it."""
    _shared.clear()


def is_same_cluster(one: Connection, other: Connection) -> bool:
    """Whether two connections, which may have different addresses, reach the same cluster."""
    if one.bootstrap_servers == other.bootstrap_servers:
        return True
    ids: list[str | None] = []
    for each in (one, other):
        with explain_errors(each, "asking for the cluster's id"):
            asked = shared_admin(each).describe_cluster(request_timeout=ASK_TIMEOUT)
            ids.append(asked.result().cluster_id)
    return ids[0] == ids[1]


def producer(connection: Connection, **properties: Any) -> Producer:
    return _make(Producer, connection, properties)


def consumer(connection: Connection, **properties: Any) -> Consumer:
    """A consumer that by default sees committed records only and commits nothing by itself."""
    defaults = {
        "group_id": "tallygate.none",
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        # When enough is read ahead, librdkafka looks again only after a second by default: a
        # quick reader then waits most of its time.
        "fetch_queue_backoff_ms": 5,
    }
    return _make(Consumer, connection, {**defaults, **properties})


def ends(
    client: Consumer, partition: tuple[str, int], connection: Connection, timeout: float
) -> tuple[int, int]:
    """Where a partition begins and ends."""

    def asked() -> tuple[int, int] | None:
        try:
            return client.get_watermark_offsets(TopicPartition(*partition), timeout=timeout)
        except KafkaException as error:
            code = error.args[0].code()
            gone = code == KafkaError.UNKNOWN_TOPIC_OR_PART
            if gone or code not in NOT_YET or time.monotonic() > deadline:
                raise
            return None

    deadline = time.monotonic() + timeout
    with explain_errors(connection, f"asking for the ends of {partition[0]}/{partition[1]}"):
        said = f"no broker says where {partition[0]}/{partition[1]} begins and ends."
        found = wait_until(asked, 2 * timeout, said, error=UnreachableError)
    assert found is not None
    return found


def _make(kind: Callable[..., T], connection: Connection, properties: Mapping[str, Any]) -> T:
    try:
        return kind(_config(connection, properties))
    except KafkaException as error:
        raise ConfigError(f"librdkafka refuses the settings: {error.args[0].str()}.") from error


def _config(connection: Connection, properties: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        name if name.endswith("_cb") or name in _AS_IT_IS else name.replace("_", "."): value
        for name, value in properties.items()
    }
    return {**connection.librdkafka(), "logger": LOGGER, **given}


@contextmanager
def explain_errors(connection: Connection, doing: str) -> Iterator[None]:
    """Turn a KafkaException into an error that names the cluster and what was being done."""
    try:
        yield
    except KafkaException as raised:
        raise translate(raised.args[0], connection, doing) from raised


def translate(error: KafkaError, connection: Connection, doing: str) -> TallygateError:
    code, where = error.code(), connection.bootstrap_servers
    if code in _UNREACHABLE and (refusal := _refusal(connection)):
        return UnreachableError(f"{doing}: Kafka at {where} refused the credentials: {refusal}.")
    if code in _UNREACHABLE:
        return UnreachableError(
            f"{doing}: Kafka at {where} did not answer in time ({error.str()}); "
            "check the address and that the brokers run (`tallygate status`, `tallygate doctor`)."
        )
    if code in _CREDENTIALS:
        return UnreachableError(f"{doing}: Kafka at {where} refused the credentials: {error.str()}")
    return TopicError(f"{doing}: {error.str().rstrip('.')}.")


def _refusal(connection: Connection) -> str | None:
    """Why a secured cluster did not let us in, if that is why it did not answer.

    librdkafka goes on trying after a refusal, so that a call ends with a time-out or a lost
    connection; only a callback hears of the refusal. So one more client is made, and asked.
    """
    if connection.librdkafka().get("security.protocol", "PLAINTEXT") == "PLAINTEXT":
        return None
    refusals: list[str] = []

    def note(error: KafkaError) -> None:
        if error.code() in _CREDENTIALS:
            refusals.append(error.str())

    client, until = admin(connection, error_cb=note), time.monotonic() + REFUSAL_TIMEOUT
    while not refusals and time.monotonic() < until:
        client.poll(0.1)
    return refusals[0].partition(" (after")[0] if refusals else None


def answer(futures: Mapping[Any, Any], connection: Connection, doing: str) -> dict[Any, Any]:
    """Wait for the futures of an admin call; the first failure is raised, explained."""
    with explain_errors(connection, doing):
        return {key: future.result() for key, future in futures.items()}
