"""FedOpt and FedBlend beside the centralised SASRec: the runs as data, and their table.

    python examples/champion_table.py                    prints the table of results/champion.json
    python examples/champion_table.py --write DOC.md     puts it between the marks of that page
    python examples/champion_table.py --collect FOLDER   makes results/champion.json from run folders METHOD-DATA-SEED

A folder needs config.toml, summary.json and per_user.csv. NDCG@10 of every method is compared with that of `sasrec` by
a paired bootstrap over users, whose values are means over the seeds.
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

DATA = Path(__file__).parents[1] / "results" / "champion.json"
START, END = "<!-- table of results/champion.json -->", "<!-- end -->"
SETS = ("ml-100k", "ml-1m", "amazon-video")
METHODS = {
    "sasrec": "`sasrec`, centralised",
    "sasrec, preset": "`sasrec --preset tuned`, centralised, with settings for each dataset",
    "fedopt": "`fedopt --backbone sasrec`",
    "fedblend": "`fedblend`",
}
ABOUT = (
    "Honest protocol, histories at test with the validation item. Rows of the leaderboard: every method has the best "
    "of twelve trials on ml-100k, carried over to the other data. One H200, torch 2.11, up to eleven runs at a time, "
    "so that seconds say little. `sasrec, preset` is of an earlier commit, in TF32; its users' figures are gone, so "
    "nothing is tested against it."
)
EARLIER = "sasrec, preset"


def command(config: dict[str, Any]) -> str:
    flags = ("backbone", "preset", "rounds", "eval_every", "privacy", "seed", "device", "memory")
    given = [f"--{name.replace('_', '-')} {config[name]}" for name in flags if config.get(name) not in (None, "")]
    params = [f"--set {name}={value}" for name, value in config.get("params", {}).items()]
    return " ".join(["fedrec run", config["method"], f"--data {config['data']}", *given, *params])


def record(folder: Path) -> dict[str, Any]:
    config = tomllib.loads((folder / "config.toml").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    kept = ("recall@10", "ndcg@10")
    return {
        "method": summary["method"],
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


def collected(folder: Path) -> dict[str, Any]:
    kept = json.loads(DATA.read_text())["runs"] if DATA.is_file() else []
    runs, users = [run for run in kept if run["method"] == EARLIER], defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        found = record(path.parent)
        runs.append(found)
        users[found["data"], found["method"]].append(ndcg(path.parent))
    compared = []
    for (data, method), values in sorted(users.items()):
        if method != "sasrec":
            by_user, central = (np.mean(part, axis=0) for part in (values, users[data, "sasrec"]))
            d = paired_bootstrap(by_user, central)
            compared.append({"data": data, "method": method, "against": "sasrec", "users": len(by_user),
                             "difference": round(d.mean, 5), "low": round(d.low, 5), "high": round(d.high, 5),
                             "p": round(d.p, 5)})  # fmt: skip
    return {"about": ABOUT, "runs": runs, "ndcg@10": compared}


def table(data: dict[str, Any]) -> str:
    cells = defaultdict(list)
    for run in data["runs"]:
        cells[run["method"], run["data"]].append(run["test"])
    told = {(pair["method"], pair["data"]): pair for pair in data["ndcg@10"]}
    lines = ["| Recall@10 / NDCG@10 | " + " | ".join(SETS) + " |", "|---" * (1 + len(SETS)) + "|"]
    for method, words in METHODS.items():
        row = [_cell(cells[method, name], told.get((method, name))) for name in SETS]
        lines.append(f"| {words} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(tests: list[dict[str, float]], against: dict[str, Any] | None) -> str:
    parts = []
    for name in ("recall@10", "ndcg@10"):
        values = [test[name] for test in tests]
        parts.append(f"{mean(values):.4f} ± {stdev(values):.4f}")
    sign = "" if against is None or against["p"] >= 0.05 else " ↑" if against["difference"] > 0 else " ↓"
    fewer = "" if len(tests) == 3 else f" ({len(tests)} seeds)"
    return " / ".join(parts) + sign + fewer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path)
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
