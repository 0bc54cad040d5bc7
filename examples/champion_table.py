"""FedOpt and FedBlend beside the centralised SASRec: the runs as data, and their table.

    python examples/champion_table.py                      prints the table of results/champion.json
    python examples/champion_table.py --write DOC.md       puts it between the marks of that page
    python examples/champion_table.py --collect FOLDER ... makes results/champion.json from what the leaderboard ran

A run folder is DATA/ROW/seedN anywhere below FOLDER, with config.toml, summary.json and per_user.csv. Rows without one
there stay as they were, untested. NDCG@10 of every federated row is compared, by a paired bootstrap over users whose
values are means over the seeds, with that of every SASRec; the arrows are those against the strongest one on that data,
by its NDCG@10 on the test items, which stands in bold.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedrec.evaluation.significance import paired_bootstrap
from fedrec.leaderboard.definition import safe, stored_trials

DATA = Path(__file__).parents[1] / "results" / "champion.json"
START, END = "<!-- table of results/champion.json -->", "<!-- end -->"
SETS = ("ml-100k", "ml-1m", "amazon-video")
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
    "docs/fedblend.md. One H200, many runs at a time, so that seconds say little. `fedopt, sasrec` on ml-1m is of an "
    "earlier commit; its users' figures are gone, so it is not tested."
)


def command(config: dict[str, Any]) -> str:
    flags = ("backbone", "preset", "rounds", "eval_every", "privacy", "seed", "device", "memory")
    given = [f"--{name.replace('_', '-')} {config[name]}" for name in flags if config.get(name) not in (None, "")]
    params = [f"--set {name}={value}" for name, value in config.get("params", {}).items()]
    return " ".join(["fedrec run", config["method"], f"--data {config['data']}", *given, *params])


def label_of(folder: Path) -> str:
    """Of a run folder ROW/seedN: the row, as the leaderboard calls it."""
    return next((label for label in METHODS if safe(label) == folder.parent.name), "")


def record(folder: Path) -> dict[str, Any]:
    config = tomllib.loads((folder / "config.toml").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    kept = ("recall@10", "ndcg@10")
    return {
        "method": label_of(folder),
        "data": summary["dataset"]["name"],
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


def ndcg(folder: Path) -> np.ndarray:
    with (folder / "per_user.csv").open() as file:
        rows = sorted((row["user"], float(row["ndcg@10"])) for row in csv.DictReader(file))
    return np.array([value for _, value in rows])


def collected(folders: list[Path]) -> dict[str, Any]:
    runs, users = [], defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.rglob("summary.json")):
        if label_of(path.parent):
            found = record(path.parent)
            if found["data"] in SETS:
                runs.append(found)
                users[found["data"], found["method"]].append(ndcg(path.parent))
    earlier = json.loads(DATA.read_text())["runs"] if DATA.is_file() else []
    runs += [run for run in earlier if run["method"] in METHODS and (run["data"], run["method"]) not in users]
    means = {key: np.mean(values, axis=0) for key, values in users.items()}
    compared = [
        difference(data, method, against, means[data, method], means[data, against])
        for (data, method) in means
        if method in FEDERATED
        for against in CENTRAL
        if (data, against) in means
    ]
    strongest = {
        data: max((label for label in CENTRAL if (data, label) in means), key=lambda label: means[data, label].mean())
        for data in SETS
    }
    return {"about": ABOUT, "runs": runs, "strongest": strongest, "ndcg@10": compared}


def difference(data: str, method: str, against: str, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    d = paired_bootstrap(ours, theirs)
    return {"data": data, "method": method, "against": against, "users": len(ours), "difference": round(d.mean, 5),
            "low": round(d.low, 5), "high": round(d.high, 5), "p": round(d.p, 5)}  # fmt: skip


def table(data: dict[str, Any]) -> str:
    cells = defaultdict(list)
    for run in data["runs"]:
        cells[run["method"], run["data"]].append(run["test"])
    told = {(pair["method"], pair["data"]): pair for pair in data["ndcg@10"]
            if pair["against"] == data["strongest"][pair["data"]]}  # fmt: skip
    lines = ["| Recall@10 / NDCG@10 | " + " | ".join(SETS) + " |", "|---" * (1 + len(SETS)) + "|"]
    for method, words in METHODS.items():
        row = [_cell(cells[method, name], told.get((method, name)), data["strongest"][name] == method) for name in SETS]
        if not any(cells[method, name] for name in SETS):
            continue
        trials = len(stored_trials(DATA.parent / "leaderboard", method))
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
