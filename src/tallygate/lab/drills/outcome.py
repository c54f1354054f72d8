"""What a drill has shown, as plain values: this is what is kept, printed and drawn.

A drill is valid if what must hold held, **and every control failed as it must**. A control that
did not fail means that the fault did not bite: nothing was shown, and the drill is unknown. A drill
that crashed is unknown too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallygate.auditing.verdict import Verdict, worst


@dataclass(frozen=True)
class ProgressSample:
    """How far everything was at one moment, in records since the drill began."""

    at: float
    """Seconds since the drill began."""
    produced: int
    acknowledged: int
    committed: int
    """Records that the pipeline's ledger stands for."""


@dataclass(frozen=True)
class Event:
    at: float
    kind: str
    """`fault` when it begins, `heal` when it ends, `run` for a process, else `note`."""
    text: str


@dataclass(frozen=True)
class Control:
    """The same fault on something that does not claim to survive it."""

    name: str
    what: str
    """What it is, in a sentence."""
    must: str
    """How it must fail: `lose`, `repeat`, or `lose or repeat`."""
    acknowledged: int
    lost: int
    duplicated: int

    @property
    def failed(self) -> bool:
        return bool(self.lost and "lose" in self.must) or bool(
            self.duplicated and "repeat" in self.must
        )


@dataclass(frozen=True)
class Outcome:
    name: str
    must_hold: str
    """In prose, written down before the drill ran."""
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    audit: Verdict = Verdict.UNKNOWN
    """What the audit of the pipeline said."""
    wrong: tuple[str, ...] = ()
    """What else did not hold, one sentence each."""
    unknown: tuple[str, ...] = ()
    """Why the drill shows nothing, one sentence each."""
    producer_seconds: float | None = None
    """Until records were acknowledged again: the longest that one waited, from the fault on."""
    pipeline_seconds: float | None = None
    """Until the pipeline committed again: the longest time without a commit, from the fault on,
    while there was something to commit."""
    longest_wait: float | None = None
    """The longest that an acknowledged record waited until it was committed, from the fault on."""
    controls: tuple[Control, ...] = ()
    samples: tuple[ProgressSample, ...] = ()
    events: tuple[Event, ...] = ()
    seconds: float = 0.0
    seed: int | None = None

    @property
    def verdict(self) -> Verdict:
        found = [self.audit]
        if self.lost or self.duplicated or self.wrong:
            found.append(Verdict.INVALID)
        if self.unknown or any(not each.failed for each in self.controls):
            found.append(Verdict.UNKNOWN)
        return worst(found)

    def as_dict(self) -> dict[str, Any]:
        """Everything, with the names that scripts look for on top."""
        given = asdict(self)
        given["audit"] = self.audit.value
        given["controls"] = [{**asdict(c), "failed": c.failed} for c in self.controls]
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "recovery_seconds": self.pipeline_seconds,
            **given,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Outcome":
        fields = {name: given[name] for name in cls.__dataclass_fields__}
        controls = ({k: v for k, v in c.items() if k != "failed"} for c in given["controls"])
        return cls(
            **{
                **fields,
                "audit": Verdict(given["audit"]),
                "wrong": tuple(given["wrong"]),
                "unknown": tuple(given["unknown"]),
                "controls": tuple(Control(**each) for each in controls),
                "samples": tuple(ProgressSample(**each) for each in given["samples"]),
                "events": tuple(Event(**each) for each in given["events"]),
            }
        )

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "outcome.json").write_text(json.dumps(self.as_dict(), indent=1))

    @classmethod
    def kept(cls, folder: Path) -> "Outcome":
        return cls.from_dict(json.loads((folder / "outcome.json").read_text()))
