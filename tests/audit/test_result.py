"""What an audit says of what it found, and of what it did not."""

from pathlib import Path
from typing import Any, cast

import pytest

from tallygate import Kafka, Pipeline, Postgres
from tallygate.auditing.audit import _result, _without_rows
from tallygate.auditing.context import Found
from tallygate.auditing.kafka import TopicEvidence
from tallygate.auditing.ledger_snapshot import Claims, Evidence
from tallygate.auditing.recompute import Noted
from tallygate.auditing.scope import Scope
from tallygate.auditing.verdict import AuditResult, Verdict
from tallygate.core.offsets import Range

PIPELINE = Pipeline(name="p", source=Kafka("t", schema="id long"), sink=Postgres("rows"))
ALL = Range("t", 0, 0, 10)


class _Evidence:
    target = "public.rows"

    def __init__(self, claims: Claims) -> None:
        self.claims = claims


def _evidence(claimed: Range = ALL, letters: int = 0) -> Evidence:
    dead = frozenset(("t", 0, offset) for offset in range(letters))
    return cast(Evidence, _Evidence(Claims({("t", 0): claimed}, letters=dead)))


def _said(folder: Path, evidence: Evidence, *checked: Range, rows: int, **how: Any) -> AuditResult:
    noted = Noted(str(folder))
    noted.counted({(*each.topic_partition, each.start): len(each) for each in checked})
    scope = Scope(ranges=checked)
    return _result(PIPELINE, evidence, scope, noted, Found(rows), **{"partial": False, **how})


def test_what_was_checked_of_nothing_is_unknown(tmp_path: Path) -> None:
    found = _said(tmp_path, _evidence(), rows=0, partial=True)
    assert found.verdict is Verdict.UNKNOWN
    assert found.unknown[0].startswith("no offset that the ledger claims")
    assert found.notes == ()


def test_an_empty_ledger_over_an_empty_target_is_valid_and_says_so(tmp_path: Path) -> None:
    found = _said(tmp_path, _evidence(Range("t", 0, 3, 3)), rows=0)
    assert found.verdict is Verdict.VALID
    assert found.notes == ("the ledger claims no offset, and public.rows holds no row",)


@pytest.mark.parametrize(("letters", "how_many"), [(10, "all 10"), (4, "4 of 10")])
def test_dead_letters_without_a_row_are_noted(tmp_path: Path, letters: int, how_many: str) -> None:
    evidence = _evidence(letters=letters)
    found = _said(tmp_path, evidence, ALL, rows=0)
    assert found.verdict is Verdict.VALID
    (note,) = found.notes
    assert note.startswith(f"{how_many} records are dead letters, and none has a row; ")
    assert _said(tmp_path, evidence, ALL, rows=1).notes == ()


def test_the_note_names_the_topic_of_dead_letters() -> None:
    topic = object.__new__(TopicEvidence)
    object.__setattr__(topic, "claims", Claims({("t", 0): ALL}))
    object.__setattr__(topic, "letters_topic", "p.dead-letters")
    (note,) = _without_rows(topic, 3, 3)
    assert note.endswith("; see `tallygate dead-letters list p.dead-letters`")
