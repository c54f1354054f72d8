"""What happens to a record that its handler cannot handle: when, how often, and then where.

First it is tried again in place, with growing pauses during which the consumer keeps its membership
(partitions paused, polling on). After that many tries it either waits in retry topics, one for each
delay, which lets the records behind it pass, or, where the order within a partition is to be kept,
it goes straight to the dead letters.
"""

import random
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tallygate.core.letters import CUT, cut_record, record_size
from tallygate.core.marks import given_back, is_mark, number, origin, put_aside
from tallygate.core.record import MISNAMED_HEADER, Headers, Output, Record
from tallygate.errors import ConfigError, InputError
from tallygate.kafka.producer import LARGEST
from tallygate.kafka.record_size import batch_size, first_bytes, last_bytes, room_beside
from tallygate.units import duration_ms

STACK_BYTES = 8_000
_STORY_SHARE = 8
"""Of what a topic takes, so small a part is left to the cause and to the stack each, where not the
whole letter fits."""

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """`tries` in place with pauses of `first` seconds, doubling up to `most`, each varied by up to
    half so that many consumers do not come back at the same moment."""

    tries: int = 5
    first: float = 0.2
    most: float = 30.0
    tiers: tuple[str, ...] = ()
    """Delays of retry topics, as ("10s", "5m"). Using them gives up the order of records."""
    dead_letters: bool = True
    """Without dead letters a record that fails for good stops the consumer."""

    def __post_init__(self) -> None:
        if self.tries < 1 or self.first < 0 or self.most < self.first:
            raise ConfigError("a retry needs 1 try or more, and pauses from `first` up to `most`.")
        for tier in self.tiers:
            if duration_ms(tier) <= 0:
                raise ConfigError(f"a retry tier of {tier!r} is not a delay.")
        if self.tiers and not self.dead_letters:
            raise ConfigError("retry tiers end in the dead letters, which are switched off.")

    def pause(self, tries: int) -> float:
        """Seconds to wait after the given number of failed tries."""
        longest = min(self.first * 2.0 ** min(tries - 1, 60), self.most)
        return longest * random.uniform(0.5, 1.0)

    def retry_topic(self, group: str, tier: str) -> str:
        return f"{group}.retry.{tier}"

    def retry_topics(self, group: str) -> list[str]:
        return [self.retry_topic(group, tier) for tier in self.tiers]

    def dead_topic(self, group: str) -> str:
        return f"{group}.dead-letters"

    def delay_ms(self, topic: str, group: str) -> int:
        """How long a record waits in a retry topic."""
        return duration_ms(self.tiers[self.retry_topics(group).index(topic)])

    def topics(self, group: str) -> list[str]:
        return [*self.retry_topics(group), *([self.dead_topic(group)] if self.dead_letters else [])]

    def next_stop(
        self,
        record: Record,
        group: str,
        error: BaseException,
        now_ms: int,
        largest: Callable[[str], int] = lambda _: LARGEST,
    ) -> Output:
        """Where a record goes that failed for good here: the next tier, or the dead letters. Only
        these may keep less than all of it, if it is more than is the `largest` for their topic."""
        if record.topic not in self.retry_topics(group):
            record = replace(record, headers=put_aside(record.headers))
        passed = number(record.header("tallygate.tier"))
        if passed < len(self.tiers):
            tier = self.tiers[passed]
            due = now_ms + duration_ms(tier)
            topic = self.retry_topic(group, tier)
            letter = retry_letter(record, topic, passed + 1, due, error, self)
            if _size(letter) <= largest(topic):
                return letter
        topic = self.dead_topic(group)
        return dead_letter(record, topic, group, error, self.tries, largest(topic))


def fit_only(use: Callable[..., T], retries: Collection[str] = ()) -> Callable[..., T]:
    """What a user does with a record, for records alone that could be read whole: others fail. One
    of the topics `retries` has the headers with which it came to its first topic."""

    def checked(record: Record, *given: Any) -> T:
        if record.is_misnamed:
            raise InputError(MISNAMED_HEADER)
        return use(as_handled(record) if record.topic in retries else record, *given)

    return checked


def retry_letter(
    record: Record, topic: str, tier: int, due_ms: int, error: BaseException, retry: Retry
) -> Output:
    headers = {
        **_story(record, error, retry.tries),
        "tallygate.tier": str(tier),
        "tallygate.not-before": str(due_ms),
    }
    return Output(topic, record.value, record.key, _merged(record.headers, headers))


def dead_letter(
    record: Record,
    topic: str,
    group: str,
    error: BaseException,
    tries: int,
    most: int = LARGEST,
) -> Output:
    """The record with its story, or as much of both as the topic takes, and how much there was."""
    headers = {
        **_story(record, error, tries),
        "tallygate.group": group,
        "tallygate.stack": _stack(error)[-STACK_BYTES:],
    }
    whole = Output(topic, record.value, record.key, _merged(record.headers, headers))
    if _size(whole) <= most:
        return whole
    headers["tallygate.cause"] = first_bytes(headers["tallygate.cause"], most // _STORY_SHARE)
    headers["tallygate.stack"] = last_bytes(headers["tallygate.stack"], most // _STORY_SHARE)
    own = tuple(each for each in record.headers if each[0] not in headers)
    headers[CUT] = str(record_size(record.key, record.value, own))
    room = room_beside(headers.items(), most)
    key, value, kept = cut_record(record.key, record.value, own, room)
    return Output(topic, value, key, _merged(kept, headers))


def _size(letter: Output) -> int:
    assert not isinstance(letter.value, str)
    assert not isinstance(letter.key, str)
    return batch_size(letter.value, letter.key, letter.headers)


def as_handled(record: Record) -> Record:
    """A record of a retry topic with its own headers as they were, and our marks behind them."""
    marks = tuple(each for each in record.headers if is_mark(each[0]))
    return replace(record, headers=(*given_back(record.headers), *marks))


def said(error: BaseException) -> str:
    """The kind of an error and its text, which a handler made: it may have none, or hold half a
    character, which no header can."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"(its __str__ raised {type(problem).__name__})"
    return _encodable(f"{type(error).__name__}: {text}")


def _stack(error: BaseException) -> str:
    try:
        return _encodable("".join(traceback.format_exception(error)))
    except Exception:
        return said(error)


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _story(record: Record, error: BaseException, tries: int) -> dict[str, str]:
    topic, partition, offset = origin(record)
    before = number(record.header("tallygate.tries"))
    first_seen = number(record.header("tallygate.timestamp"), record.timestamp)
    return {
        "tallygate.topic": topic,
        "tallygate.partition": str(partition),
        "tallygate.offset": str(offset),
        "tallygate.timestamp": str(first_seen),
        "tallygate.tries": str(before + tries),
        "tallygate.cause": said(error)[:1000],
    }


def _merged(headers: Headers, own: dict[str, str]) -> Headers:
    """The record's own headers, and ours in their newest form."""
    kept = tuple((name, value) for name, value in headers if name not in own)
    return (*kept, *((name, text.encode()) for name, text in own.items()))
