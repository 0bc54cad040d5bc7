"""An SVG sheet as PDF or PNG, at the width that a paper has for it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError

# A point is 1/72 of an inch, and reportlab counts in points.
POINTS_PER_MM = 72 / 25.4
# What most journals ask for.
DOTS_PER_INCH = 300
NEEDED = 'PDF and PNG need svglib and pypdfium2: pip install "fedrec[figures]"; or choose .svg'


def require_sheet(ending: str, width: float | None) -> None:
    """Say before any work is done that a package is missing, or that a width makes no sense."""
    if width is not None and (ending == ".html" or not 10 <= width <= 1000):
        raise FedrecError(f"--width {width:g} is the width of an .svg, .pdf or .png in millimetres, from 10 to 1000")
    if ending not in (".pdf", ".png"):
        return
    # Tried before any work is done; the import itself tells more reliably than a list of packages.
    try:
        import pypdfium2  # noqa: F401
        import svglib  # noqa: F401
    except ImportError:
        raise FedrecError(NEEDED) from None


def render(svg: str, ending: str, width: float | None) -> bytes:
    """The sheet as the bytes of a PDF or PNG file; `width` in millimetres, None: as large as it is on a screen."""
    pdf = _pdf(svg, width)
    return pdf if ending == ".pdf" else _png(pdf)


def _pdf(svg: str, width: float | None) -> bytes:
    from reportlab.graphics import renderPDF
    from svglib.svglib import svg2rlg

    drawing: Any = svg2rlg(io.BytesIO(svg.encode()))
    factor = 1.0 if width is None else width * POINTS_PER_MM / drawing.width
    drawing.width, drawing.height = drawing.width * factor, drawing.height * factor
    drawing.scale(factor, factor)
    return bytes(renderPDF.drawToString(drawing))


def _png(pdf: bytes) -> bytes:
    import pypdfium2

    file = io.BytesIO()
    page = pypdfium2.PdfDocument(pdf)[0]
    page.render(scale=DOTS_PER_INCH / 72).to_pil().save(file, "PNG", dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return file.getvalue()


def set_width(svg: str, width: float | None) -> str:
    """The sheet with a width in millimetres; its height follows."""
    if width is None:
        return svg
    box = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)" width="[0-9.]+" height="[0-9.]+"', svg)
    assert box is not None, "a sheet says how large it is"
    wide, high = float(box[1]), float(box[2])
    size = f'viewBox="0 0 {box[1]} {box[2]}" width="{width:g}mm" height="{width * high / wide:.2f}mm"'
    return svg.replace(box[0], size, 1)


def write_sheet(path: Path, svg: str, ending: str, width: float | None) -> None:
    """Into `path`, which is a temporary file."""
    if ending == ".svg":
        path.write_text(set_width(svg, width), encoding="utf-8")
    else:
        path.write_bytes(render(svg, ending, width))
