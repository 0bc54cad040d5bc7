"""Write recommendations as files: original ids, titles and how they were made, in the format that the ending says."""

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
AT_ONCE = 100_000  # lines of a Parquet file that are Python objects at a time

Lines = Iterator["Recommendation"]


def require_format(out: Path) -> None:
    """Raise an error where the ending of `out` is that of no format, before any work is done."""
    ending_of(out, WRITERS)


def write_recommendations(path: Path, recommendations: Lines) -> int:
    """Write them as they come and return their number; the file appears only when it is complete."""
    write, counter = WRITERS[ending_of(path, WRITERS)], _LineCounter(recommendations)
    with atomic_file(path) as temporary:
        write(temporary, counter)
    return counter.number


class _LineCounter:
    """Pass lines on and count them."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.number = lines, 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> Recommendation:
        line = next(self.lines)
        self.number += 1
        return line


def _make_table_writer(by: str) -> Callable[[Path, Lines], None]:
    def write(path: Path, lines: Lines) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            # six digits: more are noise of float32
            rows = ([rec.user, rec.item, rec.rank, f"{rec.score:.6g}", rec.title, rec.served] for rec in lines)
            write_rows(file, chain([COLUMNS], rows), by=by)

    return write


def _write_json_lines(path: Path, lines: Lines) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{_encode_line(rec)}\n" for rec in lines)


def _write_json_array(path: Path, lines: Lines) -> None:
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        for rec in lines:
            file.write(before + _encode_line(rec))
            before = ",\n"
        file.write("\n]\n" if before != "[\n" else "[]\n")


def _encode_line(rec: Recommendation) -> str:
    return json.dumps(_record(rec), ensure_ascii=False)


def _write_parquet(path: Path, lines: Lines) -> None:
    """Collect columns part by part: they take a fraction of the memory of as many Python objects."""
    import polars as pl

    parts = []
    while some := list(islice(lines, AT_ONCE)):
        columns = {name: [getattr(rec, name) for rec in some] for name in COLUMNS}
        parts.append(pl.DataFrame(columns, schema_overrides={"title": pl.String}, strict=False))
    (pl.concat(parts) if parts else pl.DataFrame(schema=list(COLUMNS))).write_parquet(path)


def _record(rec: Recommendation) -> dict[str, Any]:
    return {name: getattr(rec, name) for name in COLUMNS}


WRITERS: dict[str, Callable[[Path, Lines], None]] = {
    ".csv": _make_table_writer(","),
    ".tsv": _make_table_writer("\t"),
    ".json": _write_json_array,
    ".jsonl": _write_json_lines,
    ".parquet": _write_parquet,
}
