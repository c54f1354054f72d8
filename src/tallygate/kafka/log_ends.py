"""How far logs reach, under which leader, and where they were cut off.

Kafka numbers the leaders of a partition: each election gives the next epoch, and each record keeps
the epoch of the leader that took it. Of an epoch a broker says where it ends in its log. If it ends
before what was read when that epoch was the newest, the log was cut off there, however long it is
by now. Clients ask for that when they are told to seek to an offset of a known epoch.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import OffsetSpec

from tallygate.core.offsets import TopicPartition
from tallygate.errors import UnreachableError
from tallygate.kafka import clients
from tallygate.kafka.connection import Connection
from tallygate.waiting import wait_until

ANSWER_TIMEOUT = 10.0
LOOK_UP = 0.1
_ENDS_AT = re.compile(r"broker end offset is (\d+)")
_NO_LEADER = KafkaError._NOENT


class LogEnd(NamedTuple):
    offset: int
    epoch: int
    """Of the leader that said so: its log has all before the offset."""


def log_ends(
    partitions: Iterable[TopicPartition], connection: Connection
) -> dict[TopicPartition, LogEnd]:
    """The end of each log, as its leader sees it. The client knows leaders from before: if one of
    them is none any more, it asks who is."""
    wanted = sorted(partitions)
    admin, doing = clients.shared_admin(connection), "asking where logs end"
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {Offset(*each): latest for each in wanted}
    said = "no leader"

    def ends() -> dict[TopicPartition, LogEnd] | None:
        nonlocal said
        futures = admin.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ANSWER_TIMEOUT,
        )
        try:
            found = {(at.topic, at.partition): each.result() for at, each in futures.items()}
        except KafkaException as error:
            if error.args[0].code() not in clients.NOT_YET | {_NO_LEADER}:
                raise
            said = error.args[0].str()
            look_again(wanted, connection)
            return None
        return {at: LogEnd(each.offset, each.leader_epoch) for at, each in found.items()}

    if not wanted:
        return {}
    with clients.explain_errors(connection, doing):
        found = wait_until(
            ends, ANSWER_TIMEOUT, lambda: f"{doing}: {said}.", error=UnreachableError
        )
    assert found is not None
    return found


def look_again(partitions: Iterable[TopicPartition], connection: Connection) -> None:
    """Ask which brokers lead the partitions now."""
    with clients.explain_errors(connection, "asking for the leaders"):
        for topic in sorted({topic for topic, _ in partitions}):
            clients.shared_admin(connection).list_topics(topic, timeout=ANSWER_TIMEOUT)


def cut_points(
    known: Mapping[TopicPartition, LogEnd], connection: Connection
) -> dict[TopicPartition, int]:
    """Where logs were cut off below what is known of them; 0 if the broker does not know. Those
    that were not are left out."""
    left = {
        at: Offset(*at, end.offset, leader_epoch=end.epoch)
        for at, end in known.items()
        if end.offset > 0
    }
    if not left:
        return {}
    cut: dict[TopicPartition, int] = {}
    consumer = clients.consumer(
        connection,
        auto_offset_reset="error",
        enable_partition_eof=True,
        fetch_wait_max_ms=20,
        queued_min_messages=1,
        max_partition_fetch_bytes=1024,
    )
    deadline = time.monotonic() + ANSWER_TIMEOUT
    try:
        # What it finds at the end, before it seeks, is forgotten then; what it finds wrong is not.
        consumer.assign([Offset(*at, OFFSET_END) for at in left])
        for each in left.values():
            _seek(consumer, each, connection)
        while left:
            message = consumer.poll(LOOK_UP)
            if message is not None:
                _note(message, left, cut, connection)
            elif time.monotonic() > deadline:
                topic, number = min(left)
                raise UnreachableError(
                    f"asking whether logs were cut off: Kafka at {connection.bootstrap_servers} "
                    f"has said nothing of {topic}/{number} for {ANSWER_TIMEOUT:.0f} s."
                )
    finally:
        consumer.close()
    return cut


def _seek(consumer: Consumer, to: Offset, connection: Connection) -> None:
    """An assignment alone does not make the client ask, and a partition that was only just assigned
    cannot be sought in yet."""

    def sought() -> bool:
        try:
            consumer.seek(to)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            return False
        return True

    with clients.explain_errors(connection, f"seeking in {to.topic}/{to.partition}"):
        wait_until(sought, ANSWER_TIMEOUT, "the client is not ready", error=UnreachableError)


def _note(
    message: Message,
    left: dict[TopicPartition, Offset],
    cut: dict[TopicPartition, int],
    connection: Connection,
) -> None:
    at, error = (message.topic() or "", message.partition() or 0), message.error()
    if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
        if "truncation" in error.str():  # else retention has overtaken the offset
            found = _ENDS_AT.search(error.str())
            cut[at] = int(found[1]) if found else 0
    elif error is not None and error.code() != KafkaError._PARTITION_EOF:
        if error.code() not in clients.GROUPLESS:
            raise clients.translate(error, connection, "asking whether logs were cut off")
        return
    left.pop(at, None)
