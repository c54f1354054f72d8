"""Headers, keys and coordinates of any kind: every dead letter can be kept, read and put back."""

import random
from dataclasses import replace

from fuzz.loop import fuzz
from tallygate.consumer.retry import Retry, _size, as_handled
from tallygate.core.letters import MARKER, DeadLetter, Letter
from tallygate.core.marks import given_back, origin
from tallygate.core.record import MISNAMED, UNREADABLE, Headers, Record
from tallygate.kafka.dead_letters import _marked, _read
from tallygate.kafka.record_size import LEAST, batch_size
from tallygate.targets.kafka.sending import _cut_to, _letter_headers

NAMES = (
    *("topic", "partition", "offset", "timestamp", "tries", "tier", "not-before", "cause", "stack"),
    *("group", "pipeline", "was.topic", "was.was.topic", "was.", "", "row", "cut-from", "replayed"),
)
CONTENTS = (b"", None, b"0", b"-1", b"9" * 18, b"9" * 30, b"\xff\xfe", b"x" * 3000, b"1", b"\0")


def _record(chance: random.Random) -> Record:
    def header() -> tuple[str, bytes | None]:
        name = f"tallygate.{chance.choice(NAMES)}"
        other = chance.choice(("", "own", MARKER, MISNAMED, "\0", "\N{SNOWMAN}" * 50, "n" * 2000))
        return chance.choice((name, name, other)), chance.choice(CONTENTS)

    headers: Headers = tuple(header() for _ in range(chance.choice((0, 1, 2, 5, 40))))
    content = (None, b"", b"x", b"x" * 900, chance.randbytes(5000))
    return Record(
        chance.choice(("orders", "g.retry.10s", "g.retry.5m", "g.dead-letters", "t" * 249)),
        chance.choice((0, 2**31 - 1)),
        chance.choice((0, 2**63 - 1)),
        chance.choice((-1, 0, 2**63 - 1, -(2**63), 1_700_000_000_000)),
        chance.choice(content),
        chance.choice(content),
        chance.choice((headers, headers, UNREADABLE)),
    )


def test_any_record_goes_through_retry_topics_and_can_be_put_back() -> None:
    retry = Retry(tiers=("10s", "5m"))

    def check(record: Record) -> None:
        first, most = record, 100_000
        for _ in range(4):
            stop = retry.next_stop(record, "g", ValueError("no\ud800"), 0, lambda _: most)
            assert _size(stop) <= most
            assert not isinstance(stop.value, str)
            assert not isinstance(stop.key, str)
            own = given_back(record.headers)
            record = Record(stop.topic, 0, 0, 0, stop.key, stop.value, stop.headers)
            if first.topic not in retry.retry_topics("g"):
                assert own == given_back(first.headers) or record is first or own == first.headers
            as_handled(record)
            if stop.topic == "g.dead-letters":
                break
        assert record.topic == "g.dead-letters"
        letter = _read(record, replayed=False)
        assert _marked(record) is None or record.key is None
        if first.topic not in retry.retry_topics("g"):
            assert origin(record) == (first.topic, first.partition, first.offset)
            assert letter.headers == first.headers
        small = retry.next_stop(replace(first, topic="orders"), "g", ValueError("no"), 0, _least)
        assert _size(small) <= LEAST

    fuzz(_record, check)


def _least(_: str) -> int:
    return LEAST


def test_any_letter_of_a_pipeline_fits_into_its_topic() -> None:
    def check(record: Record) -> None:
        letter = Letter(
            record.topic,
            record.partition,
            record.offset,
            "no\ud800" * 500,
            record.key,
            record.value,
            record.timestamp,
            record.headers,
        )
        for largest in (LEAST, 5000, 1_000_000):
            sent = _cut_to(letter, "p" * 200, largest)
            headers = _letter_headers(sent, "p" * 200, largest)
            assert batch_size(sent.value, sent.key, headers) <= largest
        DeadLetter.of(letter)
        assert replace(Letter.read(letter.text()), headers=letter.headers) == letter

    fuzz(_record, check)
