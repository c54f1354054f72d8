"""Targets with a guarantee off, to show that the suite would see it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tallygate.core.ledger import Claim, LedgerState
from tallygate.core.offsets import Range

__all__ = ["without_comparison", "without_fence"]


def without_comparison(kind: str, patch: pytest.MonkeyPatch) -> None:
    """Let positions move from wherever they are."""
    patch.setattr(LedgerState, "moved", _moved_from_anywhere)
    if kind == "postgres":
        _in_postgres("move", _move_from_anywhere, patch)
    if kind == "kafka":
        from tallygate.targets.kafka.ledger import GroupLedger

        patch.setattr(GroupLedger, "is_due", lambda *_: True)


def without_fence(kind: str, patch: pytest.MonkeyPatch) -> None:
    """Let older runs commit."""
    patch.setattr(Claim, "check_newest", lambda *_: None)
    if kind == "postgres":
        _in_postgres("check_claim", lambda *_: None, patch)
    if kind == "parquet":  # where a newer run also removes what an older one still needs
        from tallygate.targets.parquet.folder import Folder

        patch.setattr(Folder, "sweep", lambda *_: None)


def _moved_from_anywhere(self: LedgerState, ranges: Iterable[Range], *_: Any) -> LedgerState:
    ends = {each.topic_partition: each.until for each in ranges}
    return replace(self, positions={**self.positions, **ends})


def _move_from_anywhere(transaction: Any, claim: Claim, ranges: Iterable[Range], *_: Any) -> None:
    for each in ranges:
        transaction.rows(
            "INSERT INTO tallygate.positions "
            "(pipeline, topic, partition, first_offset, next_offset) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (pipeline, topic, partition) "
            "DO UPDATE SET next_offset = EXCLUDED.next_offset",
            claim.pipeline,
            *each.topic_partition,
            each.start,
            each.until,
        )


def _in_postgres(name: str, put: Any, patch: pytest.MonkeyPatch) -> None:
    from tallygate.targets.postgres import rows, target, write

    for module in (rows, target, write):
        if hasattr(module, name):
            patch.setattr(module, name, put)
