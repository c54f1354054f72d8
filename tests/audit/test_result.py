"""What an audit says of what it found, and of what it did not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from tallygate import Kafka, Pipeline, Postgres
from tallygate.auditing.audit import _result, _without_rows
from tallygate.auditing.context import Case, Found
from tallygate.auditing.recompute import Noted, Source
from tallygate.auditing.scope import Scope
from tallygate.auditing.verdict import AuditResult, Verdict
from tallygate.core.ledger_snapshot import LedgerSnapshot
from tallygate.core.letters import Coordinates
from tallygate.core.offsets import Range
from tallygate.targets.snapshot import Snapshot

PIPELINE = Pipeline(name="p", source=Kafka("t", schema="id long"), sink=Postgres("rows"))
ALL = Range("t", 0, 0, 10)


class _Snapshot(Snapshot):
    def rows(self, within: Sequence[Range] | None = None) -> DataFrame:
        raise NotImplementedError

    def letter(self, at: Coordinates) -> str | None:
        raise NotImplementedError


def _snapshot(reached: Range = ALL, letters: int = 0, **fields: Any) -> Snapshot:
    dead = frozenset(("t", 0, offset) for offset in range(letters))
    ledger = LedgerSnapshot(ranges={("t", 0): reached}, letters=dead)
    return _Snapshot(name="public.rows", ledger=ledger, **fields)


def _said(
    folder: Path, snapshot: Snapshot, *checked: Range, rows: int, partial: bool = False
) -> AuditResult:
    noted, nothing = Noted(str(folder)), cast(Any, None)
    noted.counted({(*each.topic_partition, each.start): len(each) for each in checked})
    case = Case(
        source=Source(
            pipeline=PIPELINE,
            spark=nothing,
            connection=nothing,
            statics=nothing,
            checkpoint=nothing,
        ),
        snapshot=snapshot,
        scope=Scope(ranges=checked),
        noted=noted,
        stream=nothing,
    )
    return _result(case, Found(rows=rows), partial=partial)


def test_what_was_checked_of_nothing_is_unknown(tmp_path: Path) -> None:
    found = _said(tmp_path, _snapshot(), rows=0, partial=True)
    assert found.verdict is Verdict.UNKNOWN
    assert found.unknown[0].startswith("no offset that the ledger claims")
    assert found.notes == ()


def test_an_empty_ledger_over_an_empty_target_is_valid_and_says_so(tmp_path: Path) -> None:
    found = _said(tmp_path, _snapshot(Range("t", 0, 3, 3)), rows=0)
    assert found.verdict is Verdict.VALID
    assert found.notes == ("the ledger claims no offset, and public.rows holds no row",)


@pytest.mark.parametrize(("letters", "how_many"), [(10, "all 10"), (4, "4 of 10")])
def test_dead_letters_without_a_row_are_noted(tmp_path: Path, letters: int, how_many: str) -> None:
    snapshot = _snapshot(letters=letters)
    found = _said(tmp_path, snapshot, ALL, rows=0)
    assert found.verdict is Verdict.VALID
    (note,) = found.notes
    assert note.startswith(f"{how_many} records are dead letters, and none has a row; ")
    assert _said(tmp_path, snapshot, ALL, rows=1).notes == ()


def test_the_note_names_the_topic_of_dead_letters() -> None:
    topic = _snapshot(lists_letters="see `tallygate dead-letters list p.dead-letters`")
    (note,) = _without_rows(topic, 3, 3)
    assert note.endswith("; see `tallygate dead-letters list p.dead-letters`")
