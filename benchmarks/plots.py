"""Bars as SVG: one file a picture, readable on light and dark pages."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.findings import Figure

__all__ = ["bars"]

WIDTH, NAMES, ROW, BAR = 760, 190, 30, 18
COLOURS = {"exactly-once": "#1a7f5a", "at-least-once": "#c77d0a", "nothing": "#8a8f98"}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.note{fill:#59636e}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}}"
)


def bars(title: str, figures: Sequence[Figure]) -> str:
    """The medians, the longest bar on top, each with its spread as a thin line."""
    ranked = sorted(figures, key=lambda figure: -figure.median)
    most = max(max(figure.values) for figure in ranked)
    scale = (WIDTH - NAMES - 110) / most
    height = 36 + ROW * len(ranked) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>"
        f'<text x="0" y="18" font-weight="600">{escape(title)}</text>'
    ]
    for number, figure in enumerate(ranked):
        parts.append(_bar(figure, 36 + ROW * number, scale))
    parts.append(_legend(ranked, height - 6))
    return "".join(parts) + "</svg>\n"


def _bar(figure: Figure, top: int, scale: float) -> str:
    length, middle = figure.median * scale, top + BAR / 2
    low, high = (NAMES + value * scale for value in (min(figure.values), max(figure.values)))
    return (
        f'<text x="{NAMES - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(figure.name)}</text>'
        f'<rect x="{NAMES}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" '
        f'fill="{COLOURS[figure.promise]}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#1f2328" '
        'stroke-opacity="0.55" stroke-width="2"/>'
        f'<text x="{max(NAMES + length, high) + 6:.1f}" y="{middle + 4:.0f}">'
        f"{figure.median:,.0f}</text>"
    )


def _legend(figures: Sequence[Figure], y: int) -> str:
    promises = [name for name in COLOURS if any(each.promise == name for each in figures)]
    parts, x = [], NAMES
    for name in promises:
        parts.append(
            f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{COLOURS[name]}"/>'
            f'<text class="note" x="{x + 15}" y="{y}">{name}</text>'
        )
        x += 130
    return "".join(parts)
