"""What was measured of deployments, as data: a file with a section for each command, and blocks of a page from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError

Row = Mapping[str, Any]


def record(path: Path, section: str, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Put rows into a section; one that is there under the same key is replaced."""
    found = read(path) if path.exists() else {}
    names = [tuple(row[name] for name in key) for row in rows]
    others = [row for row in found.get(section, []) if tuple(row[name] for name in key) not in names]
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(found | {section: [*others, *rows]}, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedrecError(f"cannot read {path} ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(rows, list) for rows in found.values()):
        raise FedrecError(f"{path} holds no figures of deployments; choose another --out")
    return found


def faults(rows: Sequence[Row]) -> str:
    return _table(["fault", "what happened", "lost", "message"],
                  [[row["fault"], row["happened"], row["lost"], row["said"]] for row in rows])  # fmt: skip


def load(rows: Sequence[Row]) -> str:
    return _table(["nodes", "update", "rounds", "before", "after the first round", "after the last", "seconds"],
                  [[row["nodes"], f"{row['update_mb']} MB", row["rounds"], *(f"{row[at]:,.0f} MB" for at in
                    ("before_mb", "first_round_mb", "last_round_mb")), f"{row['seconds']:,.0f}"]
                   for row in rows])  # fmt: skip


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
    return _table(["method", "data", "nodes", "rounds", "secure sums", "largest difference of a metric",
                   "CPU s per node and round", "CPU s of a round, simulated"],
                  [[row["method"], row["data"], row["nodes"], row["rounds"], "yes" if row["secure"] else "no",
                    f"{row['difference']:.1e}", f"{row['cpu']:.2f}", f"{row['simulated_cpu']:.2f}"]
                   for row in rows])  # fmt: skip


BLOCKS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "faults": faults, "load": load, "secrecy": secrecy, "equality": equality,
}  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def filled(page: str, figures: Mapping[str, Sequence[Row]]) -> str:
    """A page whose blocks (`<!-- name -->` to `<!-- end -->`) say what the figures say."""
    for name, made in BLOCKS.items():
        if name in figures:
            start, end = f"<!-- {name} -->\n", "\n<!-- end -->"
            before, found, rest = page.partition(start)
            if found:
                page = before + start + made(figures[name]) + end + rest.partition(end)[2]
    return page
