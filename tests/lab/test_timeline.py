"""Where a timeline's faults and labels lie."""

import pytest

from tallygate.lab.drills.outcome import Event
from tallygate.lab.drills.report.chart import Interval, fault_intervals
from tallygate.lab.drills.report.flags import LETTER, place_flags


def test_a_fault_lasts_until_the_next_heal_or_to_the_end() -> None:
    def events(*kinds: str) -> list[Event]:
        return [Event(float(at), kind, "") for at, kind in enumerate(kinds, start=1)]

    assert fault_intervals(events("run", "heal"), 9) == []
    assert fault_intervals(events("fault", "run", "heal", "heal"), 9) == [Interval(1, 3, True)]
    assert fault_intervals(events("fault", "fault", "heal"), 9) == [Interval(1, 3, True)]
    assert fault_intervals(events("fault", "heal", "fault"), 9) == [
        Interval(1, 2, True),
        Interval(3, 9, False),
    ]


@pytest.mark.parametrize("spacing", [0.0, 3.0, 20.0, 90.0])
def test_no_label_covers_another_or_is_crossed(spacing: float) -> None:
    kinds = ("run", "fault", "note", "heal")
    events = [Event(i * spacing, kinds[i % 4], f"something {'long ' * i}") for i in range(8)]
    flags = [flag for flag in place_flags(events, lambda at: at, 880) if flag.row is not None]
    assert any(flag.event.kind == "fault" for flag in flags)
    for index, flag in enumerate(flags):
        end = flag.x + LETTER * len(flag.label)
        assert end <= 880
        for later in flags[index + 1 :]:
            assert later.x > end or (later.row or 0) < (flag.row or 0)
