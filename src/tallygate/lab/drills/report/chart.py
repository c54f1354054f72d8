"""A drill's timeline as SVG: how far everything was, the lag beneath, the fault shaded.

Pure functions from samples and events to text. Colours and fonts are classes, which the page's
style sheet sets, so that one chart serves light, dark and paper. No line is told apart by its
colour alone: each has its own stroke and its name at its end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tallygate.lab.drills.outcome import Event, ProgressSample
from tallygate.lab.drills.report.flags import LETTER, Flag, place_flags
from tallygate.lab.drills.report.markup import count, seconds, text

WIDTH, LEFT, RIGHT = 880.0, 68.0, 200.0
ROW, LINES, GAP, LAG, FOOT = 16.0, 190.0, 26.0, 62.0, 40.0
"""Heights: a row of flags, the lines, between lines and lag, the lag, the axis of seconds."""
END = WIDTH - RIGHT
MOST_POINTS = 600

_MARKS = {
    "fault": "M-4.5 -4h9l-4.5 8z",
    "heal": "M-4.5 4h9l-4.5 -8z",
    "run": "M-3.5 -3.5h7v7h-7z",
    "note": "M0 -3.5l3.5 3.5l-3.5 3.5l-3.5 -3.5z",
}
_NAMES = ("produced", "acknowledged", "committed")


@dataclass(frozen=True)
class Interval:
    """When a drill's fault was there, in seconds since the drill began."""

    since: float
    until: float
    healed: bool
    """Whether a heal ended it; else it lasted until the end."""


def fault_intervals(events: Sequence[Event], end: float) -> list[Interval]:
    """The intervals in order; a fault within a fault begins no other one."""
    found: list[Interval] = []
    since: float | None = None
    for event in sorted(events, key=lambda event: event.at):
        if event.kind == "fault" and since is None:
            since = event.at
        elif event.kind == "heal" and since is not None:
            found.append(Interval(since, event.at, healed=True))
            since = None
    if since is not None:
        found.append(Interval(since, max(end, since), healed=False))
    return found


def timeline(
    name: str, samples: Sequence[ProgressSample], events: Sequence[Event], key: str
) -> str:
    """The chart of a drill with at least one sample; `key` makes its ids unique on the page."""
    last = max([samples[-1].at, 1.0, *(event.at for event in events)])

    def x(at: float) -> float:
        return LEFT + (END - LEFT) * min(max(at / last, 0.0), 1.0)

    flags = place_flags(events, x, WIDTH)
    rows = max((flag.row + 1 for flag in flags if flag.row is not None), default=0)
    top = 20 + ROW * rows
    floor = top + LINES
    lag_top, lag_floor = floor + GAP, floor + GAP + LAG
    drawn = _thinned(samples)
    points = [x(sample.at) for sample in drawn]
    most = max(max(s.produced, s.acknowledged, s.committed) for s in samples)
    lags = [_lag(sample) for sample in drawn]
    intervals = fault_intervals(events, last)
    parts = [
        *_shades(intervals, x, top),
        _tick(LEFT - 8, top - 10, "records", "end"),
        *_levels(most, top, floor, wanted=5),
        *_levels(max(lags), lag_top, lag_floor, wanted=3),
        *_seconds(last, floor, lag_floor),
        *(_flag(flag, top, floor) for flag in flags),
        *_lines(drawn, points, most, top, floor),
        *_area(points, lags, lag_top, lag_floor),
    ]
    height = lag_floor + FOOT
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img"'
        f' aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">Timeline of {text(name)}</title>'
        f'<desc id="{key}-desc">{_described(samples, intervals)}</desc>' + "".join(parts) + "</svg>"
    )


def _lag(sample: ProgressSample) -> int:
    return max(sample.produced - sample.committed, 0)


def _thinned(samples: Sequence[ProgressSample]) -> list[ProgressSample]:
    """No more points than can be seen, with the last one and the worst lag among them."""
    stride = math.ceil(len(samples) / MOST_POINTS)
    worst = max(range(len(samples)), key=lambda index: _lag(samples[index]))
    kept = {*range(0, len(samples), stride), worst, len(samples) - 1}
    return [samples[index] for index in sorted(kept)]


def _described(samples: Sequence[ProgressSample], intervals: Sequence[Interval]) -> str:
    end = samples[-1]
    said = (
        f"After {seconds(end.at)} {count(end.produced)} records were produced,"
        f" {count(end.acknowledged)} acknowledged and {count(end.committed)} committed."
        f" The lag was {count(max(map(_lag, samples)))} records at most."
    )
    for each in intervals:
        said += f" Fault from {seconds(each.since)} to {seconds(each.until)}"
        said += "." if each.healed else ", not healed."
    return said


def _step(top: float, wanted: int) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that needs no more than `wanted` steps."""
    base = 10.0 ** math.floor(math.log10(top / wanted))
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor * wanted >= top * 0.999)


def _scaled(value: float, most: int, top: float, floor: float) -> float:
    return floor - (floor - top) * value / max(most, 1)


def _levels(most: int, top: float, floor: float, wanted: int) -> list[str]:
    """Grid lines with their counts; records are whole, and so are the steps."""
    step = max(round(_step(max(most, 1), wanted)), 1)
    parts = []
    for value in range(0, max(most, 1) + 1, step):
        y = _scaled(value, most, top, floor)
        kind = "grid" if value else "axis"
        parts.append(f'<path class="{kind}" d="M{LEFT:.0f} {y:.1f}H{END:.0f}"/>')
        parts.append(_tick(LEFT - 8, y + 4, count(value), "end"))
    return parts


def _seconds(last: float, floor: float, lag_floor: float) -> list[str]:
    step = _step(last, 10)
    parts = []
    for number in range(int(last / step + 0.001) + 1):
        at = LEFT + (END - LEFT) * number * step / last
        parts.append(f'<path class="axis" d="M{at:.1f} {floor:.1f}v4M{at:.1f} {lag_floor:.1f}v4"/>')
        parts.append(_tick(at, lag_floor + 17, f"{number * step:,.10g}", "middle"))
    title = _tick((LEFT + END) / 2, lag_floor + 33, "seconds since the drill began", "middle")
    return [*parts, title]


def _tick(x: float, y: float, label: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{label}</text>'


def _shades(intervals: Sequence[Interval], x: Callable[[float], float], top: float) -> list[str]:
    """Each fault over both plots, with how long it lasted between them where there is room."""
    parts = []
    free = 0.0
    for each in intervals:
        at, width = x(each.since), max(x(each.until) - x(each.since), 1.5)
        lasted = f"fault, {seconds(each.until - each.since) if each.healed else 'not healed'}"
        for above, height in ((top, LINES), (top + LINES + GAP, LAG)):
            parts.append(
                f'<rect class="fault" x="{at:.1f}" y="{above:.1f}" width="{width:.1f}"'
                f' height="{height:.0f}"><title>{lasted}</title></rect>'
            )
        room = LETTER * 1.1 * len(lasted)
        begin = min(max(at + (width - room) / 2, LEFT), END - room)
        if begin >= free:
            free = begin + room + 8
            parts.append(
                f'<text class="lasted" x="{begin + room / 2:.1f}" y="{top + LINES + 17:.1f}"'
                f' text-anchor="middle">{lasted}</text>'
            )
    return parts


def _flag(flag: Flag, top: float, floor: float) -> str:
    kind = flag.event.kind if flag.event.kind in _MARKS else "note"
    title = f"<title>{seconds(flag.event.at)}, {text(kind)}: {text(flag.event.text)}</title>"
    if flag.row is None:
        tick = f'<path class="pole" d="M{flag.x:.1f} {top - 6:.1f}v6"/>'
        return f'<g class="flag {kind}">{title}{tick}</g>'
    y = top - 14 - ROW * flag.row
    through = f"M{flag.x:.1f} {floor + GAP:.1f}v{LAG:.0f}" if kind in ("fault", "heal") else ""
    return (
        f'<g class="flag {kind}">{title}'
        f'<path class="pole" d="M{flag.x:.1f} {y:.1f}V{floor:.1f}{through}"/>'
        f'<path class="mark" transform="translate({flag.x:.1f} {y:.1f})" d="{_MARKS[kind]}"/>'
        f'<text x="{flag.x + 7:.1f}" y="{y + 4:.1f}">{text(flag.label)}</text></g>'
    )


def _lines(
    drawn: Sequence[ProgressSample], points: Sequence[float], most: int, top: float, floor: float
) -> list[str]:
    """The three lines, each with its name and last value at its end."""
    parts, ends = [], []
    for name in _NAMES:
        values = [int(getattr(sample, name)) for sample in drawn]
        ys = [_scaled(value, most, top, floor) for value in values]
        parts.append(f'<path class="line {name}" d="{_path(points, ys)}"/>')
        ends.append((ys[-1], name, values[-1]))
    ends.sort(key=lambda end: end[0])
    spots = _spread([y for y, _, _ in ends], floor)
    for (y, name, value), spot in zip(ends, spots, strict=True):
        parts.append(_ending(points[-1], y, spot, name, f"{name} {count(value)}"))
    return parts


def _spread(ys: Sequence[float], floor: float, gap: float = 17.0) -> list[float]:
    """Where labels go that want to stand at `ys`, which rise, and need a gap between them."""
    spots: list[float] = []
    for y in ys:
        spots.append(max(y, spots[-1] + gap) if spots else y + 6)
    below = floor
    for index in reversed(range(len(spots))):
        spots[index] = min(spots[index], below)
        below = spots[index] - gap
    return spots


def _area(points: Sequence[float], lags: Sequence[int], top: float, floor: float) -> list[str]:
    worst = max(lags)
    ys = [_scaled(lag, worst, top, floor) for lag in lags]
    outline = _path(points, ys)
    return [
        f'<path class="lag" d="{outline}V{floor:.1f}H{points[0]:.1f}Z"/>',
        f'<path class="line lagging" d="{outline}"/>',
        f'<text class="name" x="{END + 14:.0f}" y="{top + 12:.1f}">lag, at most '
        f"{count(worst)}</text>",
        _tick(END + 14, top + 28, "produced minus committed", "start"),
    ]


def _ending(x: float, y: float, spot: float, name: str, label: str) -> str:
    """A dot at the line's end, a piece of its stroke, and its name."""
    return (
        f'<circle class="dot {name}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
        f'<path class="leader" d="M{x + 4:.1f} {y:.1f}L{END + 12:.1f} {spot:.1f}"/>'
        f'<path class="line {name}" d="M{END + 14:.0f} {spot:.1f}h20"/>'
        f'<text class="name" x="{END + 39:.0f}" y="{spot + 4:.1f}">{label}</text>'
    )


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
