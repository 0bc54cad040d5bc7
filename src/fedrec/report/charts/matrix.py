"""Matrices as pictures: a cell is a coloured square; where there are many they are the pixels of one small image."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from fedrec.report.charts.frame import svg
from fedrec.report.charts.scales import axis, number

Array = np.ndarray[Any, np.dtype[Any]]

# Light to dark, so that the order survives a grey print and most kinds of colour blindness.
SEQUENTIAL = ("#fff7e6", "#f6cf93", "#e08f5a", "#b54a52", "#6d2459", "#2a1040")
# Pale in the middle, where values of both signs meet at zero.
DIVERGING = ("#7f2704", "#d95f0e", "#fdbe85", "#f7f5f0", "#9ecae1", "#3182bd", "#08306b")
# Squares can be read one by one; beyond this number the page would grow by megabytes.
LARGEST_OF_SQUARES = 400  # cells; more become an image
LEFT, TOP, SIDE = 46.0, 8.0, 280.0
BAR, STEPS = 12.0, 48


@dataclass(frozen=True)
class Shades:
    """Colours for values from low to high; beyond, the colour of the end."""

    low: float
    high: float
    colours: tuple[str, ...] = SEQUENTIAL

    def __call__(self, values: Array) -> Array:
        """[..., 3] bytes."""
        stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in self.colours], float)
        span = self.high - self.low
        # A span of 0 would divide by zero: a matrix of one value gets one colour.
        share = np.clip((np.asarray(values, float) - self.low) / (span if span > 0 else 1.0), 0, 1)
        place = share * (len(stops) - 1)
        # The last stop has no successor, so the highest value is mixed from the last two.
        below = np.minimum(place.astype(int), len(stops) - 2)
        rest = (place - below)[..., None]
        return np.rint((1 - rest) * stops[below] + rest * stops[below + 1]).astype(np.uint8)


def heat_map(
    values: Array, shades: Shades, *, title: str, x_label: str, y_label: str, names: Sequence[str] = ()
) -> str:
    """Rows from top to bottom. `names` stand under the columns and beside the rows."""
    parts = [_squares(values, shades, names) if values.size <= LARGEST_OF_SQUARES else _image(values, shades)]
    parts.append(f'<rect class="tick" fill="none" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>')
    parts.append(_names(names))
    foot, middle = TOP + SIDE + (30 if names else 16), LEFT + SIDE / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{foot}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="axis" transform="translate(10 {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    parts.append(_scale(shades))
    return svg(title, "".join(parts), height=foot + 8)


def png(pixels: Array) -> bytes:
    """[height, width, 3] bytes as a PNG file."""
    height, width = pixels.shape[:2]
    # Every row of a PNG begins with the number of its filter; 0 leaves the bytes as they are.
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, np.uint8))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    # Written by hand in a few lines: an image library would be a dependency for one format.
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _image(values: Array, shades: Shades) -> str:
    text = base64.b64encode(png(shades(values))).decode()
    box = f'x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" preserveAspectRatio="none"'
    return f'<image class="cells" {box} href="data:image/png;base64,{text}"/>'


def _squares(values: Array, shades: Shades, names: Sequence[str]) -> str:
    rows, columns = values.shape
    wide, high = SIDE / columns, SIDE / rows
    colours = shades(values)
    parts = []
    for r in range(rows):
        for c in range(columns):
            who = f"{names[r]}, {names[c]}: " if names else ""
            parts.append(
                f'<rect x="{LEFT + c * wide:.2f}" y="{TOP + r * high:.2f}" width="{wide:.2f}" height="{high:.2f}" '
                f'fill="{_hex(colours[r, c])}"><title>{escape(who)}{values[r, c]:.4g}</title></rect>'
            )
    return "".join(parts)


def _names(names: Sequence[str]) -> str:
    step = SIDE / max(len(names), 1)
    return "".join(
        f'<text x="{LEFT + (k + 0.5) * step:.1f}" y="{TOP + SIDE + 14}" text-anchor="middle">{escape(name)}</text>'
        f'<text x="{LEFT - 4}" y="{TOP + (k + 0.5) * step + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for k, name in enumerate(names)
    )


def _scale(shades: Shades) -> str:
    """The colours from low to high, with their values."""
    left, step = LEFT + SIDE + 12, SIDE / STEPS
    colours = shades(np.linspace(shades.high, shades.low, STEPS))
    cells = "".join(
        # A trace higher than a step, or hairlines show between the cells.
        f'<rect x="{left}" y="{TOP + k * step:.2f}" width="{BAR}" height="{step + 0.3:.2f}" fill="{_hex(colour)}"/>'
        for k, colour in enumerate(colours)
    )
    scale = axis(shades.low, shades.high, TOP + SIDE, TOP)
    words = "".join(
        f'<line class="tick" x1="{left + BAR}" x2="{left + BAR + 3}" y1="{scale(tick):.1f}" y2="{scale(tick):.1f}"/>'
        f'<text x="{left + BAR + 6}" y="{scale(tick) + 4:.1f}">{number(tick)}</text>'
        for tick in scale.ticks(5)
    )
    return cells + words


def _hex(colour: Array) -> str:
    return "#" + bytes(colour.tolist()).hex()
