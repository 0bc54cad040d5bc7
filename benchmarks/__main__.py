"""`python -m benchmarks [fedcia|ifedrec] [--quick] [--out FILE]`: speed against one client at a time, and growth to
100,000 clients; with `fedcia` instead, alignment of similarities against the released way; with `ifedrec`, its rounds
against one client after another."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import fedcia, ifedrec, machine, scale, speed
from fedrec import console

LARGEST = 100_000
ITEMS, PER_CLIENT = 20_000, 20
GROWTH = (1_000, 3_000, 10_000, 30_000, LARGEST)
LIMIT_GIB = 8.0
LIMIT_RATIO = 100.0
_BEGAN = time.monotonic()


def main() -> int:
    options = _options()
    about = machine.describe()
    console.out.print("  ".join(f"{name} {value}" for name, value in about.items()))
    result: dict[str, Any] = {"machine": about, "quick": options.quick}
    measure = PARTS[options.part] if options.part else _clients
    result["checks"] = _say_checks(measure(result, options.quick))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    console.out.print(f"\nwritten to {options.out}")
    return 0 if all(check["holds"] for check in result["checks"]) else 1


def _fedcia(result: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    result["fedcia"] = fedcia.main(quick, say)
    return fedcia.checks(result["fedcia"])


def _ifedrec(result: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    result["ifedrec"] = ifedrec.main(quick, say)
    return ifedrec.checks(result["ifedrec"])


PARTS = {"fedcia": _fedcia, "ifedrec": _ifedrec}


def _clients(result: dict[str, Any], quick: bool) -> list[dict[str, Any]]:
    result["ml-100k"] = speed.measure(2 if quick else 5, say)
    _show_speed(result["ml-100k"])
    result["growth"] = _growth(GROWTH[::2] if quick else GROWTH)
    _show_growth(result["growth"])
    if not quick:
        say("personal tables: 6,040 clients x 3,706 items")
        result["personal"] = scale.apart("personal", 6_040, 3_706, 1_000_000)
        _show_personal(result["personal"])
    return _checks(result)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="?", choices=sorted(PARTS), help="left out: clients and growth")
    parser.add_argument("--quick", action="store_true", help="fewer turns and sizes, no personal tables")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench.json"), help="the JSON file (default: %(default)s)"
    )
    return parser.parse_args()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)


def _growth(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    for clients in sizes:
        say(f"synthetic: {clients:,} clients x {ITEMS:,} items, {PER_CLIENT * clients:,} interactions")
        found.append(scale.apart("round", clients, ITEMS, PER_CLIENT * clients))
    return found


def _checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    ratio = result["ml-100k"]["ratio_one_by_one"]["min"]
    peak = result["growth"][-1]["peak_gib"]
    return [
        {"what": f"at least {LIMIT_RATIO:.0f} times as fast as one client at a time", "value": ratio,
         "holds": ratio >= LIMIT_RATIO},
        {"what": f"{LARGEST:,} clients within {LIMIT_GIB:.0f} GiB", "value": peak, "holds": peak <= LIMIT_GIB},
    ]  # fmt: skip


def _say_checks(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    console.out.print()
    for check in checks:
        console.out.print(f"{'holds' if check['holds'] else 'FAILS'}: {check['what']} ({check['value']:.2f})")
    return checks


def _show_speed(found: dict[str, Any]) -> None:
    names = {
        "compiled": "fedrec, compiled",
        "torch": "fedrec, torch",
        "one by one": "one client at a time",
        "sampling": "  its sampling, apart",
    }
    timing = found["timing"]
    rows = [[text, timing[n]["rounds"], timing[n]["min"], timing[n]["median"]] for n, text in names.items()]
    console.table(["seconds per round", "rounds", "min", "median"], rows,
                  title=f"\nFedMF on ml-100k: {found['clients']} clients, {found['items']:,} items, "
                  f"{found['interactions']:,} interactions")  # fmt: skip
    ratios = {
        "one client at a time / compiled (its sampling left out)": "ratio_one_by_one",
        "one client at a time / compiled (its sampling counted)": "ratio_one_by_one_with_sampling",
        "torch / compiled": "ratio_torch",
    }
    rows = [[text, f"{found[name]['min']:.0f}", f"{found[name]['median']:.0f}"] for text, name in ratios.items()]
    console.table(["ratio", "of minima", "of medians"], rows, title="\nfedrec's sampling is counted in every row")


def _show_growth(found: list[dict[str, Any]]) -> None:
    rows = [
        [r["clients"], r["interactions"], r["seconds_first_round"], r["seconds_round"],
         f"{r['microseconds_per_interaction']:.3f}", f"{r['peak_gib']:.2f}", f"{r['dense_tables_gib']:,.0f}"]
        for r in found
    ]  # fmt: skip
    columns = ["clients", "interactions", "first s", "round s", "us each", "peak GiB", "dense GiB"]
    title = (
        f"\nA FedMF round on synthetic worlds of {ITEMS:,} items, a process each\n"
        "us each: per interaction; peak: whole process, making the data too; dense: a table per client"
    )
    console.table(columns, rows, title=title)


def _show_personal(found: dict[str, Any]) -> None:
    columns = ["clients", "items", "round s", "scores s", "scores and ranking s", "peak GiB"]
    names = ["clients", "items", "seconds_round", "seconds_scores", "seconds_scores_and_ranking", "peak_gib"]
    console.table(columns, [[found[name] for name in names]], title="\nOne item table per client (method local)")


if __name__ == "__main__":
    sys.exit(main())
