"""Recommendations as files: original ids, titles and how they were made, in the format that the ending says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrec.data.atomic import atomic_file
from fedrec.data.file_formats import ending_of
from fedrec.data.spreadsheet import write_rows

if TYPE_CHECKING:
    from fedrec.serve import Recommendation

COLUMNS = ("user", "item", "rank", "score", "title", "served")
AT_ONCE = 100_000  # lines of a Parquet file that are held as Python objects

Lines = Iterator["Recommendation"]


def require_format(out: Path) -> None:
    """Before any work: an error where the ending of `out` is that of no format."""
    ending_of(out, WRITERS)


def write_recommendations(path: Path, recommendations: Lines) -> int:
    """Write them as they come; the file appears only when it is complete. Returns their number."""
    write, counted = WRITERS[ending_of(path, WRITERS)], _Counted(recommendations)
    with atomic_file(path) as temporary:
        write(temporary, counted)
    return counted.number


class _Counted:
    """Passes lines on and counts them."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.number = lines, 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> Recommendation:
        line = next(self.lines)
        self.number += 1
        return line


def _separated(by: str) -> Callable[[Path, Lines], None]:
    def write(path: Path, lines: Lines) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = ([rec.user, rec.item, rec.rank, f"{rec.score:.6g}", rec.title, rec.served] for rec in lines)
            write_rows(file, chain([COLUMNS], rows), by=by)

    return write


def _json_lines(path: Path, lines: Lines) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{_json(rec)}\n" for rec in lines)


def _json_array(path: Path, lines: Lines) -> None:
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        for rec in lines:
            file.write(before + _json(rec))
            before = ",\n"
        file.write("\n]\n" if before != "[\n" else "[]\n")


def _json(rec: Recommendation) -> str:
    return json.dumps(_record(rec), ensure_ascii=False)


def _parquet(path: Path, lines: Lines) -> None:
    """Part by part into columns, which take a fraction of what as many Python objects would."""
    import polars as pl

    parts = []
    while some := list(islice(lines, AT_ONCE)):
        columns = {name: [getattr(rec, name) for rec in some] for name in COLUMNS}
        parts.append(pl.DataFrame(columns, schema_overrides={"title": pl.String}, strict=False))
    (pl.concat(parts) if parts else pl.DataFrame(schema=list(COLUMNS))).write_parquet(path)


def _record(rec: Recommendation) -> dict[str, Any]:
    return {name: getattr(rec, name) for name in COLUMNS}


WRITERS: dict[str, Callable[[Path, Lines], None]] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".json": _json_array,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
