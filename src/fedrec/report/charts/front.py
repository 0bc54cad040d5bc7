"""What something costs against what it is worth: named points, and the front of those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedrec.report.charts.frame import LEFT, TOP, WIDTH, svg
from fedrec.report.charts.scales import Axis, axis, number

TALL, FOOT, RIGHT = 420.0, 42.0, 118.0
LETTER, LINE = 6.8, 12.0  # of a label: the width of a letter, the height of a line


@dataclass(frozen=True)
class Offer:
    """`cost` is above 0."""

    label: str
    cost: float
    worth: float
    style: str = "s0"


def front(offers: Sequence[Offer]) -> list[Offer]:
    """Those that nothing beats: nothing is worth as much for less, or more for as much. The cheapest first."""
    found: list[Offer] = []
    # By cost, and the worthier first among equals, so that one pass finds what nothing beats.
    for offer in sorted(offers, key=lambda offer: (offer.cost, -offer.worth)):
        if not found or offer.worth > found[-1].worth:
            found.append(offer)
    return found


def front_chart(offers: Sequence[Offer], *, title: str, x_label: str, y_label: str) -> str:
    """Costs on a logarithmic axis; the front is drawn as steps."""
    costs, worths = [offer.cost for offer in offers], [offer.worth for offer in offers]
    # Some room on both sides, since a point on the frame looks cut off.
    x = axis(min(costs) / 1.5, max(costs) * 1.5, LEFT, WIDTH - RIGHT, log=True)
    y = axis(0.0, max(worths) * 1.08, TALL - FOOT, TOP + 2)
    parts = [_frame(x, y, x_label, y_label), _steps(front(offers), x, y), *_points(offers, x, y)]
    return svg(title, "".join(parts), height=TALL)


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    down = "".join(
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{y.start:.1f}" y2="{y.end:.1f}"/>'
        f'<text x="{x(t):.1f}" y="{y.start + 16:.1f}" text-anchor="middle">{number(t)}</text>'
        for t in x.ticks(6)
    )
    across = "".join(
        f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{x.start - 6:.1f}" y="{y(t) + 4:.1f}" text-anchor="end">{number(t)}</text>'
        for t in y.ticks(6)
    )
    return (
        f'{down}{across}<text class="axis" x="2" y="12">{escape(y_label)}</text>'
        f'<text class="axis" x="{(x.start + x.end) / 2:.1f}" y="{TALL - 6:.0f}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )


def _steps(best: Sequence[Offer], x: Axis, y: Axis) -> str:
    """Right to the next cost, then up to what it is worth."""
    path = f"M{x(best[0].cost):.1f} {y(best[0].worth):.1f}"
    path += "".join(f"H{x(offer.cost):.1f}V{y(offer.worth):.1f}" for offer in best[1:])
    return f'<path class="line ref" d="{path}H{x.end:.1f}"/>'


def _points(offers: Sequence[Offer], x: Axis, y: Axis) -> list[str]:
    """Rings with names, which move down until they cover no other."""
    taken: list[tuple[float, float, float]] = []  # left, right, height
    parts = []
    # The worthiest first: it keeps its place, and lesser ones move down.
    for offer in sorted(offers, key=lambda offer: -offer.worth):
        left, height = x(offer.cost) + 6, y(offer.worth) - 4
        right = left + LETTER * len(offer.label)
        while any(left < r and right > l and abs(height - h) < LINE for l, r, h in taken):
            # In small steps, so that a name stays as near to its ring as it can.
            height += LINE / 4
        taken.append((left, right, height))
        parts.append(
            f'<circle class="ring {offer.style}" cx="{x(offer.cost):.1f}" cy="{y(offer.worth):.1f}" r="3"/>'
            f'<text class="end {offer.style}" x="{left:.1f}" y="{height:.1f}">'
            f"{escape(offer.label)}</text>"
        )
    return parts
