"""The honest table of MovieLens-100K: every method over several tie versions and seeds.

    python examples/ml100k_table.py [--ties 0,1,2] [--seeds 0,1,2,3,4] [--methods fedmf,ease] [--out table.json]

Prints mean and deviation of Recall@10 and NDCG@10 over all versions and seeds, and the ratio to popularity. Which of
several ratings of the same second comes last is a matter of the data version, and moves every figure: one version
alone says little.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev

import fedrec

METHODS = {
    "popularity": {},
    "local": {"eval_every": 10},
    "fedmf": {"eval_every": 5},
    "fedavg": {"eval_every": 5},
    "mf": {"eval_every": 5},
    "ease": {},
}
FIXED = ("popularity", "ease")  # no randomness of their own: one seed is enough


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ties", type=numbers, default=[0, 1, 2])
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--protocol", default="honest")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for name in args.methods:
        started = time.perf_counter()
        for version in args.ties:
            for seed in args.seeds[:1] if name in FIXED else args.seeds:
                data = f"ml-100k@ties{version}"
                result = fedrec.run(name, data, protocol=args.protocol, seed=seed, **METHODS[name])
                found.setdefault(name, []).append({"ties": version, "seed": seed, **result.test})
        print(row(name, found), f"({time.perf_counter() - started:.0f} s)", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


def row(name: str, found: dict[str, list[dict[str, float]]]) -> str:
    cells = []
    for metric in ("recall@10", "ndcg@10"):
        values = [run[metric] for run in found[name]]
        cells.append(f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}")
    ratio = ""
    if "popularity" in found:
        base = mean(run["recall@10"] for run in found["popularity"])
        ratio = f"{mean(run['recall@10'] for run in found[name]) / base:.2f} x popularity"
    return f"{name:<12} recall@10 {cells[0]}   ndcg@10 {cells[1]}   {ratio}"


if __name__ == "__main__":
    main()
