"""Series over time as an SVG of some panels, one above the other, with nothing but text.

>>> svg = panels("two", [Panel("rate", "items/s", {"parse": [(0, 1), (5, 9)]})])
>>> svg.startswith("<svg ") and "parse" in svg
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

COLORS = ("#4878b0", "#6cb0d8", "#d89038", "#b04848", "#509058", "#808080")
WIDTH, HEIGHT, LEFT, RIGHT, GAP, TOP = 860, 130, 70, 110, 36, 40

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Lines by name over the same time. `band` is a range of values to shade."""

    title: str
    unit: str
    lines: Mapping[str, Points]
    band: tuple[float, float] | None = None
    marks: tuple[float, ...] = ()


def panels(title: str, parts: Sequence[Panel]) -> str:
    """The panels as an SVG document."""
    height = TOP + len(parts) * (HEIGHT + GAP)
    end = max((at for part in parts for line in part.lines.values() for at, _ in line), default=1)
    drawn = "\n".join(_panel(part, TOP + n * (HEIGHT + GAP), end) for n, part in enumerate(parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" fill="#404040">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>\n{drawn}\n</svg>\n'
    )


def _panel(part: Panel, top: float, end: float) -> str:
    most = max((value for line in part.lines.values() for _, value in line), default=0) * 1.05
    most = max(most, part.band[1] * 1.1 if part.band else 0) or 1
    bottom, right = top + HEIGHT, WIDTH - RIGHT

    def x(at: float) -> float:
        return LEFT + at / end * (right - LEFT)

    def y(value: float) -> float:
        return bottom - value / most * HEIGHT

    out = [f'<text x="{LEFT}" y="{top - 4}">{escape(part.title)} ({escape(part.unit)})</text>']
    if part.band is not None:
        low, high = part.band
        out.append(
            f'<rect x="{LEFT}" y="{y(high):.1f}" width="{right - LEFT}" '
            f'height="{y(low) - y(high):.1f}" fill="#e8f0e8"/>'
        )
    out += [
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{bottom}" stroke="#b0b0b0" '
        'stroke-dasharray="3 3"/>'
        for at in part.marks
    ]
    out.append(f'<path d="M{LEFT} {top}V{bottom}H{right}" fill="none" stroke="#808080"/>')
    out += [
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        for value in (0, most / 2, most)
    ]
    out += [
        f'<text x="{x(end * share):.1f}" y="{bottom + 14}" text-anchor="middle">'
        f"{end * share:.0f} s</text>"
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    for number, (name, line) in enumerate(part.lines.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        out.append(
            f'<text x="{right + 8}" y="{top + 12 + 14 * number}" fill="{color}">'
            f"{escape(name)}</text>"
        )
    return "\n".join(out)


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1_000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
