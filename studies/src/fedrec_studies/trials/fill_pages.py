"""Blocks of a page, made from a file of figures about deployments.

`python -m fedrec_studies.trials.fill_pages results/deployment.json docs/deployment.md` fills them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data import atomic_file
from fedrec.deploy import read_figures
from fedrec.report import markdown_lines

Row = Mapping[str, Any]


def faults(rows: Sequence[Row]) -> str:
    return _table(
        ["fault", "what happened", "lost", "message"],
        [[row["fault"], row["happened"], row["lost"], row["said"]] for row in rows],
    )


def load(rows: Sequence[Row]) -> str:
    return _table(
        ["nodes", "update", "rounds", "before", "after the first round", "after the last", "seconds"],
        [
            [
                row["nodes"],
                f"{row['update_mb']} MB",
                row["rounds"],
                *(f"{row[at]:,.0f} MB" for at in ("before_mb", "first_round_mb", "last_round_mb")),
                f"{row['seconds']:,.0f}",
            ]
            for row in rows
        ],
    )


def secrecy(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        lines += [
            f"- {row['messages']} messages of {row['nodes']} nodes in {row['rounds']} rounds of {row['method']}, "
            f"{row['bytes']:,} bytes; the largest correlation with a true upload is {row['correlation']:.4f} "
            f"({row['compared']} comparisons of at least {row['least']:,} numbers). The {row['short']} others "
            f"(greetings, keys, shares, figures) have at most {row['longest_short']:,} bytes each.",
            f"- The sums differ from those of the true uploads by at most {row['error']:.1e}; fixed point allows "
            f"{row['bound']:.1e}.",
            f"- {row['dropped']} was killed in round {row['dropped_round']}; the sum of that round is that of the "
            f"other {row['nodes'] - 1}.",
        ]
    return "\n".join(lines)


def equality(rows: Sequence[Row]) -> str:
    return _table(
        [
            "method",
            "data",
            "nodes",
            "rounds",
            "secure sums",
            "largest difference of a metric",
            "CPU s per node and round",
            "CPU s of a round, simulated",
        ],
        [
            [
                row["method"],
                row["data"],
                row["nodes"],
                row["rounds"],
                "yes" if row["secure"] else "no",
                f"{row['difference']:.1e}",
                f"{row['cpu']:.2f}",
                f"{row['simulated_cpu']:.2f}",
            ]
            for row in rows
        ],
    )


BLOCKS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "faults": faults,
    "load": load,
    "secrecy": secrecy,
    "equality": equality,
}


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(markdown_lines(header, rows))


def fill_in(page: str, figures: Mapping[str, Sequence[Row]]) -> str:
    """A page whose blocks (`<!-- name -->` to `<!-- end -->`) say what the figures say."""
    for name, made in BLOCKS.items():
        if name in figures:
            start, end = f"<!-- {name} -->\n", "\n<!-- end -->"
            before, found, rest = page.partition(start)
            if found:
                page = before + start + made(figures[name]) + end + rest.partition(end)[2]
    return page


def main(figures: str, page: str) -> None:
    """Fill the blocks of the page."""
    text = fill_in(Path(page).read_text(encoding="utf-8"), read_figures(Path(figures)))
    with atomic_file(Path(page)) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
