"""Rows of one partition in several transactions, of which each ends with a whole record."""

from collections.abc import Iterator

import pytest

from tallygate.core.ledger import Claim, Run
from tallygate.core.letters import Letter
from tallygate.core.offsets import Range
from tallygate.errors import LedgerError
from tallygate.targets.kafka.ledger import GroupLedger
from tallygate.targets.kafka.marks import Mark, Position
from tallygate.targets.kafka.records import RecordRows
from tallygate.targets.kafka.transfer import BlockRows, Transfer

AT = ("t", 0)
CLAIM = Claim("p", Run.mine(2))
NO_TIME, ENOUGH = -1.0, 60.0


def _block(*offsets: int) -> BlockRows:
    values: list[bytes | None] = [b"%d" % offset for offset in offsets]
    return BlockRows(RecordRows(values, list(values), None), (min(offsets), max(offsets)))


def _transfer(*blocks: BlockRows, letters: tuple[int, ...] = ()) -> Transfer:
    mark = Mark(run=Run(epoch=1), first=3, lost=((4, 5),))
    return Transfer(
        ledger=GroupLedger(group="g", claim=CLAIM, stand_in=False),
        transactional_id="id",
        wanted=[Range(*AT, 10, 50)],
        rows=iter(blocks),
        letters=[Letter(*AT, offset, "?") for offset in letters],
        positions={AT: Position(10, mark)},
    )


def _sent(transfer: Transfer, longest: float) -> Iterator[tuple[list[bytes | None], int, int]]:
    for part in transfer.parts(longest):
        sent = [value for block in part.rows for value in block.rows.values]
        (done,) = part.wanted
        assert part.positions[AT].offset == done.start
        (offset,) = part.offsets()
        assert offset.offset == done.until
        mark = Mark.read(offset.metadata)
        assert (mark.run, mark.first, mark.lost) == (CLAIM.run, 3, ((4, 5),))
        yield sent, done.start, done.until


def test_what_takes_no_longer_than_it_may_is_one_part() -> None:
    blocks = _block(11, 12), _block(13, 20)
    assert list(_sent(_transfer(*blocks), ENOUGH)) == [([b"11", b"12", b"13", b"20"], 10, 50)]
    assert list(_sent(_transfer(), NO_TIME)) == [([], 10, 50)]


def test_a_part_ends_where_the_next_record_begins() -> None:
    """Records in between gave no rows."""
    blocks = _block(11, 12), _block(15, 16), _block(20)
    assert list(_sent(_transfer(*blocks), NO_TIME)) == [
        ([b"11", b"12"], 10, 15),
        ([b"15", b"16"], 15, 20),
        ([b"20"], 20, 50),
    ]


def test_the_rows_of_one_record_are_in_one_part() -> None:
    blocks = _block(11, 12), _block(12, 12), _block(12, 13), _block(14)
    assert list(_sent(_transfer(*blocks), NO_TIME)) == [
        ([b"11", b"12", b"12", b"12", b"12", b"13"], 10, 14),
        ([b"14"], 14, 50),
    ]


def test_a_letter_is_in_the_part_of_its_record() -> None:
    transfer = _transfer(_block(11), _block(20), letters=(10, 12, 19, 20, 49))
    found = []
    for part in transfer.parts(NO_TIME):
        list(part.rows)
        found.append([each.offset for each in part.due_letters()])
    assert found == [[10, 12, 19], [20, 49]]


def test_rows_that_go_back_behind_what_is_committed_are_refused() -> None:
    transfer = _transfer(_block(11), _block(20), _block(19))
    with pytest.raises(LedgerError, match="not in the order of their records"):
        list(_sent(transfer, NO_TIME))
