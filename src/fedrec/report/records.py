"""What run folders hold beside the summary: curves over rounds and figures per user, brought together over seeds."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrec.data.spreadsheet import unguard
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.folder import RunFolder
from fedrec.schema import damage_error, is_number

Array = np.ndarray[Any, np.dtype[Any]]
AGAIN = "run it again in another folder"
# People count rounds from 1, files from 0; one constant keeps the two from being mixed up.
FIRST = 1  # the number that people see of the round that files call 0


@dataclass(frozen=True)
class Curve:
    """Mean over seeds and their range, per round."""

    rounds: Array
    mean: Array
    low: Array
    high: Array


def rounds(run: FinishedRun) -> list[dict[str, Any]]:
    """What each round has left behind."""
    # A run in memory is not read again, and may have no folder at all.
    return list(run.result.records) if run.result is not None else RunFolder(run.folder).records()


def curve(runs: Sequence[FinishedRun], name: str, part: str | None = None) -> Curve:
    """`loss`, or a sum of metrics such as `recall@20+recall@50` out of `part`."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for record in rounds(run):
            inside = record.get(part) if part else record
            # Records of a round that was not evaluated lack the metric and are skipped, not taken for 0.
            if isinstance(inside, dict) and all(is_number(inside.get(key)) for key in name.split("+")):
                values.setdefault(int(record["round"]), []).append(sum(inside[key] for key in name.split("+")))
    order = sorted(values)
    columns = [[f(values[number]) for number in order] for f in (np.mean, np.min, np.max)]
    return Curve(np.array(order, float), *(np.array(column, float) for column in columns))


def find_convergence(run: FinishedRun, metric: str = "recall@20", within: float = 0.01) -> int | None:
    """The first round whose figure on validation is at most this part below the run's best; None: it has none."""
    found = curve([run], metric, "valid")
    # A share of the best and not a difference, so that it means the same for metrics of any size.
    near = found.rounds[found.mean >= (1 - within) * found.mean.max(initial=0.0)]
    return int(near[0]) if len(near) else None


def total_bytes(run: FinishedRun) -> tuple[float, float]:
    """All that went up and down in the run."""
    records = rounds(run)
    found = ([record.get(key, 0) for record in records] for key in ("bytes_up", "bytes_down"))
    up, down = (float(sum(filter(is_number, values))) for values in found)
    return up, down


def per_user(run: FinishedRun) -> dict[str, list[str]]:
    """The columns of per_user.csv, as text; empty if it is gone or for its owner alone, an error if it is damaged."""
    if run.result is not None:
        return {name: [str(value) for value in column.tolist()] for name, column in run.result.users.items()}
    path = run.folder / "per_user.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            names, *lines = csv.reader(file)
        table = dict(zip(names, map(list, zip(*lines, strict=True)), strict=True))
        # Only ids were guarded against spreadsheets, so only they are restored.
        table |= {name: [unguard(cell) for cell in table[name]] for name in ("user", "item") if name in table}
        numbers = {name: np.array(table[name], float) for name in names if name not in ("user", "item")}
    except (FileNotFoundError, PermissionError):
        # Gone or private is no error: the figures per user are for their owner alone.
        return {}
    except (OSError, ValueError, csv.Error) as error:
        raise damage_error(path, error, AGAIN) from None
    sound = "user" in table and ("above" in table) == ("equal" in table)
    # Half of the last edge, beyond any rank: a larger number can only come from a damaged file.
    if not sound or not all(((column >= 0) & (column < RANK_EDGES[-1] / 2)).all() for column in numbers.values()):
        raise damage_error(path, "impossible columns", AGAIN)
    return table


def ranks(table: dict[str, list[str]]) -> Array | None:
    """The expected rank of each user's held-out item, where every user has exactly one."""
    if "above" not in table:
        return None
    above, equal = (np.array(table[name], float) for name in ("above", "equal"))
    # The middle of its ties: which of equally scored items comes first is chance.
    return np.asarray(above + (equal + 1) / 2)


def pool(runs: Sequence[FinishedRun], metric: str) -> tuple[Array | None, Array]:
    """Ranks and one metric of all users of all seeds."""
    tables = [table for table in map(per_user, runs) if table]
    found = [ranks(table) for table in tables]
    known = [r for r in found if r is not None]
    values = [np.array(table[metric], float) for table in tables if metric in table]
    return (
        # All tables or none: ranks of some seeds would be shown as if they were of all.
        np.concatenate(known) if known and len(known) == len(tables) else None,
        np.concatenate(values) if values else np.zeros(0),
    )


# Edges widen, because a step at the top of a list matters more than one far below; the last catches the rest.
RANK_EDGES = (1, 2, 4, 6, 11, 21, 51, 101, 201, 501, 1001, 2001, 5001, 10001, 20001, 50001, 100001, 1 << 40)


def rank_shares(values: Array, largest: float) -> tuple[list[float], list[float]]:
    """Edges up to the largest rank, and the share of users between them."""
    top = next(index for index, edge in enumerate(RANK_EDGES) if edge > largest)
    edges = [float(edge) for edge in RANK_EDGES[: max(top, 4) + 1]]
    counts, _ = np.histogram(values, bins=np.array(edges))
    return edges, [float(c) for c in counts / max(len(values), 1)]


def within(values: Array, largest: float) -> tuple[Array, Array]:
    """Share of users whose item stands within the first n, for n from 1 to the largest rank."""
    # Spaced as the logarithmic axis shows them; every n would be thousands of points.
    n = np.unique(np.round(np.geomspace(1, max(largest, 2), 120)))
    return n, np.searchsorted(np.sort(values), n, side="right") / max(len(values), 1)
