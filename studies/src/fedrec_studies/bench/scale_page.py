"""The tables of `docs/scaling.md` out of a measurement; the text around them is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedrec_studies.bench.speed_page import rows_failed, short, table

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def with_tables(page: str, found: dict[str, Any], source: str) -> str:
    """The page with these figures between its marks; they are put at its end where it has none."""
    if BEGIN not in page or END not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n".lstrip()
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables(found, source)}\n{END}{rest.partition(END)[2]}"


def tables(found: dict[str, Any], source: str) -> str:
    about = found["machine"]
    lines = [
        f"Made by `fedrec bench --page docs/scaling.md --from {source}`; do not edit between the marks. Measured by "
        f"`{found['command']}` on {about['device']}, {about['cores']} cores, {about['memory_gib']} GiB, load "
        f"{' '.join(map(str, about['load']))} at the start; every point in its own process.",
        "",
        table(
            ["method", "class", "against", "from", "to", "time grows as", "memory grows as", "refused"],
            map(_growth, found["series"]),
        ),
        "",
        table(
            [
                "method",
                "clients",
                "items",
                "interactions",
                "processes",
                "s per round",
                "peak GiB",
                "cores busy with other work",
            ],
            _points(found),
        ),
        "",
        *map(large, the_largest(found)),
        *(f"- `{row['method']}`, {row['clients']:,} clients: {row['error']}" for row in rows_failed(found)),
    ]
    return "\n".join(lines).rstrip()


def _growth(one: dict[str, Any]) -> list[str]:
    axis, grown = one["axis"], one["exponents"]
    done = [row[axis] for row in one["points"] if "refused" not in row]
    refused = [f"{row[axis]:,}: {row['refused'].partition(';')[0]}" for row in one["points"] if "refused" in row]
    return [
        f"`{one['method']}`",
        one["class"],
        axis,
        f"{done[0]:,}",
        f"{done[-1]:,}",
        f"{axis}^{grown['seconds_round']:.2f}",
        f"{axis}^{grown['memory']:.2f}",
        "; ".join(refused),
    ]


def _points(found: dict[str, Any]) -> Iterator[list[str]]:
    for row in found["points"]:
        if "seconds_round" in row:
            yield [
                f"`{row['method']}`",
                f"{row['clients']:,}",
                f"{row['items']:,}",
                f"{row['interactions']:,}",
                str(row["processes"]),
                short(row["seconds_round"]),
                f"{row['peak_gib']:.2f}",
                "" if row["others_cores"] is None else f"{row['others_cores']:.1f}",
            ]


def the_largest(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds with the most clients."""
    rows = [row for row in found["points"] if "seconds_round" in row]
    most = max((row["clients"] for row in rows), default=0)
    return [row for row in rows if row["clients"] == most]


def large(row: dict[str, Any]) -> str:
    """One of the largest rounds, as a sentence."""
    where = ", ".join(f"{name} {short(seconds)}" for name, seconds in row["phases"].items())
    peaks = " and ".join(f"{peak:.2f}" for peak in row["peak_gib_each"])
    processes = "one process" if row["processes"] == 1 else f"{row['processes']} processes"
    return (
        f"- A round of `{row['method']}` with {row['clients']:,} clients, {row['items']:,} items and "
        f"{row['interactions']:,} interactions in {processes}: {row['seconds_round']:.1f} s ({where}); peak "
        f"{peaks} GiB; making the data {row['seconds_data']:.1f} s, set-up {row['seconds_set_up']:.1f} s, first "
        f"round {row['seconds_first_round']:.1f} s."
    )
