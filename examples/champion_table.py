"""FedOpt and FedBlend beside the centralised SASRec: the runs as data, and their table.

    python examples/champion_table.py                      prints the table of results/champion.json
    python examples/champion_table.py --write DOC.md       puts it between the marks of that page
    python examples/champion_table.py --collect FOLDER ... makes results/champion.json from what the leaderboard ran

A run folder is DATA/ROW/seedN anywhere below FOLDER, with config.toml, summary.json and per_user.csv. Rows without one
there stay as they were, and so do comparisons of two such rows. NDCG@10 of every federated row is compared, by a paired
bootstrap over users whose values are means over the seeds, with that of every SASRec; the arrows are those against the
strongest one on that data, by its NDCG@10 on the test items, which stands in bold. Where the runs of ORDERS are there,
the same is done with users' means over all orders of ties.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shlex
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedrec.errors import FedrecError
from fedrec.evaluation.significance import paired_bootstrap
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.folder import RunFolder, folder_name
from fedrec_studies.leaderboard import users as user_values
from fedrec_studies.leaderboard.board_definition import read_trials

DATA = Path(__file__).parents[1] / "results" / "champion.json"
USERS, NOBODY = DATA.parent / "leaderboard" / "users", user_values.UserValues("", {})
START, END = "<!-- table of results/champion.json -->", "<!-- end -->"
SETS = ("ml-100k", "ml-1m", "amazon-video")
ORDERS = ("ml-100k", "ml-100k@ties1", "ml-100k@ties2", "ml-100k@ties3", "ml-100k@ties4")
ALL_ORDERS = "ml-100k, five orders of ties"
CENTRAL = {
    "sasrec": "`sasrec`, centralised, {trials} trials",
    "sasrec, no averaging": "the best of its first 12 trials, which had no `averaging`",
    "sasrec, preset": "`sasrec --preset tuned`, centralised, with settings for each dataset",
    "sasrec, preset, averaged": "the same with `averaging=0.9`",
    "sasrec, own trials": "`sasrec`, centralised, 12 trials on this dataset",
}
FEDERATED = {
    "fedopt, sasrec": "`fedopt --backbone sasrec`, {trials} trials",
    "fedopt, sasrec, averaged": "the same with `averaging=0.98`",
    "fedblend": "`fedblend`, {trials} trials",
}
METHODS = CENTRAL | FEDERATED
ABOUT = (
    "Honest protocol, histories at test with the validation item. Rows of the leaderboard: every method has the best "
    "of its trials on ml-100k (results/leaderboard/trials), carried over to the other data; presets are those of "
    "docs/fedblend.md. One H200, many runs at a time, so that seconds say little. Rows are compared where what their "
    "users got is known of both: from their runs, or kept by the leaderboard."
)


def command(config: RunConfig) -> str:
    """What runs it again. The machine is not part of it."""
    anywhere = dataclasses.replace(config, device=RunConfig.device, memory=RunConfig.memory)
    return shlex.join(["fedrec", "run", config.method, *anywhere.flags()])


def label_of(folder: Path) -> str:
    """Of a run folder ROW/seedN: the row, as the leaderboard calls it."""
    return next((label for label in METHODS if folder_name(label) == folder.parent.name), "")


def record(folder: Path) -> dict[str, Any]:
    config = make_config(RunFolder.open(folder).settings())
    summary = json.loads((folder / "summary.json").read_text())
    kept = ("recall@10", "ndcg@10")
    return {
        "method": label_of(folder),
        "data": config.data,
        "seed": summary["seed"],
        "command": command(config),
        "best_round": summary["best_round"],
        "rounds_run": summary["rounds_run"],
        "test": {name: round(summary["test"][name], 6) for name in kept},
        "valid": {name: round(summary["valid"][name], 6) for name in kept},
        "bytes": {name: round(summary["bytes"][name]) for name in ("up_per_client_round", "down_per_client_round")},
        "seconds": round(summary["seconds"]["total"], 1),
        "fedrec": summary["versions"]["fedrec"],
    }


def ndcg(folder: Path) -> dict[str, float]:
    """By user."""
    with (folder / "per_user.csv").open() as file:
        return {row["user"]: float(row["ndcg@10"]) for row in csv.DictReader(file)}


def of_same_users(values: list[dict[str, float]]) -> np.ndarray:
    """Mean of several runs, user by user."""
    users = sorted(values[0])
    if any(sorted(one) != users for one in values):
        raise FedrecError("runs of one row have different users; collect those of one dataset and version")
    return np.mean([[one[user] for user in users] for one in values], axis=0)


def collected(folders: list[Path]) -> dict[str, Any]:
    """All runs, new ones first, and what they say. A run that stands in two folders counts once; rows of which some
    seed was run again are those of the new runs alone."""
    found = {
        path.parent: record(path.parent)
        for folder in folders
        for path in sorted(folder.rglob("summary.json"))
        if label_of(path.parent)
    }
    runs = {
        (run["data"], run["method"], run["seed"]): (run, ndcg(folder))
        for folder, run in found.items()
        if run["data"] in {*SETS, *ORDERS}
    }
    users = defaultdict(list)
    for (data, method, _), (_, values) in runs.items():
        users[data, method].append(values)
    means = {key: of_same_users(values) for key, values in users.items()}
    earlier = json.loads(DATA.read_text()) if DATA.is_file() else {"runs": [], "ndcg@10": []}
    kept = [run for run in earlier["runs"] if run["method"] in METHODS and (run["data"], run["method"]) not in means]
    every = [run for run, _ in runs.values()] + kept
    means = of_leaderboard(kept) | means
    now = compared({**means, **over_orders(means)})
    old = still_true(earlier, every, now)
    return {"about": ABOUT, "runs": every, "strongest": strongest(every), "ndcg@10": now + old}


def of_leaderboard(runs: list[dict[str, Any]]) -> dict[tuple[str, str], np.ndarray]:
    """What users got in these runs, where the leaderboard has kept it."""
    found = {}
    for data in {run["data"] for run in runs}:
        rows = [
            {"label": method, "cells": [{"test": test} for test in tests.values()]}
            for (name, method), tests in tests_of(runs).items()
            if name == data
        ]
        kept = user_values.read(USERS / f"{folder_name(data)}.npz")
        found |= {
            (data, method): values
            for method, values in user_values.merge_user_values(kept, NOBODY, rows, "ndcg@10").of_row.items()
        }
    return found


def still_true(earlier: dict[str, Any], runs: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Earlier comparisons that were not made again, of rows whose figures are what they were."""
    before, after = tests_of(earlier["runs"]), tests_of(runs)
    same = {key for key in before if before[key] == after.get(key)}
    same |= {(ALL_ORDERS, method) for method in METHODS if all((data, method) in same for data in ORDERS)}
    again = {(pair["data"], pair["method"], pair["against"]) for pair in now}
    return [
        pair
        for pair in earlier["ndcg@10"]
        if {(pair["data"], pair["method"]), (pair["data"], pair["against"])} <= same
        and (pair["data"], pair["method"], pair["against"]) not in again
    ]


def tests_of(runs: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """By data and row, the test figures of every seed."""
    found: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for run in runs:
        found[run["data"], run["method"]][run["seed"]] = run["test"]
    return found


def over_orders(means: dict[tuple[str, str], np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    """Users' means over all orders, of rows that were run on each."""
    return {
        (ALL_ORDERS, method): np.mean([means[data, method] for data in ORDERS], axis=0)
        for method in METHODS
        if all((data, method) in means for data in ORDERS)
    }


def compared(means: dict[tuple[str, str], np.ndarray]) -> list[dict[str, Any]]:
    return [
        difference(data, method, against, means[data, method], means[data, against])
        for (data, method) in means
        if method in FEDERATED
        for against in CENTRAL
        if (data, against) in means
    ]


def strongest(runs: list[dict[str, Any]]) -> dict[str, str]:
    """By data, the SASRec of the highest mean NDCG@10 on the test items."""
    values = defaultdict(list)
    for run in runs:
        values[run["data"], run["method"]].append(run["test"]["ndcg@10"])
    return {data: max((m for m in CENTRAL if values[data, m]), key=lambda m: mean(values[data, m])) for data in SETS}


def difference(data: str, method: str, against: str, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    d = paired_bootstrap(ours, theirs)
    return {
        "data": data,
        "method": method,
        "against": against,
        "users": len(ours),
        "difference": round(d.mean, 5),
        "low": round(d.low, 5),
        "high": round(d.high, 5),
        "p": round(d.p, 5),
    }


def table(data: dict[str, Any]) -> str:
    cells = defaultdict(list)
    for run in data["runs"]:
        cells[run["method"], run["data"]].append(run["test"])
    told = {
        (pair["method"], pair["data"]): pair
        for pair in data["ndcg@10"]
        if pair["against"] == data["strongest"].get(pair["data"])
    }
    lines = ["| Recall@10 / NDCG@10 | " + " | ".join(SETS) + " |", "|---" * (1 + len(SETS)) + "|"]
    for method, words in METHODS.items():
        row = [_cell(cells[method, name], told.get((method, name)), data["strongest"][name] == method) for name in SETS]
        if not any(cells[method, name] for name in SETS):
            continue
        trials = len(read_trials(DATA.parent / "leaderboard", method))
        lines.append(f"| {words.format(trials=trials)} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(tests: list[dict[str, float]], against: dict[str, Any] | None, strongest: bool) -> str:
    if not tests:
        return "-"
    parts = []
    for name in ("recall@10", "ndcg@10"):
        values = [test[name] for test in tests]
        parts.append(f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else ""))
    sign = "" if against is None or against["p"] >= 0.05 else " ↑" if against["difference"] > 0 else " ↓"
    fewer = "" if len(tests) == 3 else f" ({len(tests)} seed{'s' * (len(tests) > 1)})"
    shown = " / ".join(parts) + sign + fewer
    return f"**{shown}**" if strongest else shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.collect:
        DATA.write_text(json.dumps(collected(options.collect), indent=1) + "\n")
    made = table(json.loads(DATA.read_text()))
    if options.write is None:
        print(made)
        return
    before, _, rest = options.write.read_text().partition(START)
    options.write.write_text(before + START + "\n" + made + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
