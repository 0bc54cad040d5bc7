"""What a budget costs: methods with noise on their sums, beside the same without.

    python -m fedrec_studies.trials.central_privacy choose --out trials.jsonl       # on ml-100k, by validation
    python -m fedrec_studies.trials.central_privacy run ml-100k --chosen trials.jsonl --out figures.jsonl
    python -m fedrec_studies.trials.central_privacy table figures.jsonl

Every line of a file is a run; what a file has is not run again. Sums are assumed to be secure, which saves the work of
masks: the noise is the same. Choosing settings is not covered by epsilon, so they are chosen once, on ml-100k.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.errors import DivergedError

EPSILONS: tuple[float | None, ...] = (None, 8.0, 2.0, 1.0)
DELTA = 1e-5
SEEDS = (0, 1, 2)
SPACES = Path(__file__).with_suffix(".toml")
FIGURES = ("recall@10", "ndcg@10")
ADJACENCY = "zero-out"


@dataclass(frozen=True)
class Trial:
    """One run. `epsilon`: None is no noise, and no clip."""

    method: str
    data: str
    epsilon: float | None
    seed: int
    settings: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def run(self, device: str) -> dict[str, Any]:
        """Return what the run is and its figures."""
        import fedrec

        params = dict(self.settings)
        clip = params.pop("clip")
        noise: dict[str, Any] = {}
        if self.epsilon is not None:
            noise = {"privacy": f"clip={clip}", "epsilon": self.epsilon, "delta": DELTA, "adjacency": ADJACENCY}
            noise |= {"assume_secure_sums": True}
        every = int(params.get("rounds", 1))
        common: dict[str, Any] = {"seed": self.seed, "eval_every": every, "device": device, "progress": False}
        try:
            summary = fedrec.run(self.method, self.data, **common, **noise, **params).summary
        except DivergedError as error:
            nothing = {part: dict.fromkeys(FIGURES, 0.0) for part in ("valid", "test")}
            return {**asdict(self), **nothing, "spent": None, "diverged": str(error), "device": device}
        figures = {part: {name: summary[part][name] for name in FIGURES} for part in ("valid", "test")}
        spent = summary.get("privacy", {}).get("epsilon")
        return {**asdict(self), **figures, "spent": spent, "seconds": summary["seconds"]["train"], "device": device}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trial_of(line: Mapping[str, Any]) -> Trial:
    settings = tuple((str(name), value) for name, value in line["settings"])
    return Trial(line["method"], line["data"], line["epsilon"], line["seed"], settings)


def list_trials(spaces: Mapping[str, Mapping[str, list[Any]]]) -> Iterator[Trial]:
    """All combinations of every method, at every epsilon; without noise no clip is to be chosen."""
    for method, space in spaces.items():
        for epsilon in EPSILONS:
            open_to_choice = dict(space) if epsilon is not None else {**space, "clip": [0.0]}
            for values in itertools.product(*open_to_choice.values()):
                settings = tuple(zip(open_to_choice, values, strict=True))
                yield Trial(method, "ml-100k", epsilon, 0, settings)


def choose_best(lines: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """Of every method and epsilon, the trial with the best validation NDCG@10."""
    best: dict[tuple[str, float | None], Mapping[str, Any]] = {}
    for line in lines:
        place = line["method"], line["epsilon"]
        if place not in best or line["valid"]["ndcg@10"] > best[place]["valid"]["ndcg@10"]:
            best[place] = line
    return [trial_of(line) for line in best.values()]


def run_all(trials: Iterable[Trial], out: Path, device: str, jobs: int) -> None:
    """Run what the file has not yet, and append each as it ends."""
    done = {trial_of(line).key for line in read_lines(out)}
    wanted = [trial for trial in trials if trial.key not in done]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool, out.open("a") as file:
        for ended in as_completed([pool.submit(trial.run, device) for trial in wanted]):
            line = json.dumps(ended.result())
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()


def table_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """Recall@10, mean and standard deviation over seeds, one row for each method."""
    found: dict[tuple[str, str], dict[float | None, list[float]]] = {}
    for line in lines:
        row = found.setdefault((line["data"], line["method"]), {})
        row.setdefault(line["epsilon"], []).append(line["test"]["recall@10"])
    heads = ["no noise" if epsilon is None else f"epsilon {epsilon:g}" for epsilon in EPSILONS]
    rows = [f"| data | method | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for (data, method), by_epsilon in sorted(found.items()):
        cells = [_cell(by_epsilon.get(epsilon, [])) for epsilon in EPSILONS]
        rows.append(f"| {data} | {method} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--methods", default="", help="only these, e.g. fedmf,pfedrec")
    commands = parser.add_subparsers(dest="command", required=True)
    choose, run, table = (commands.add_parser(name) for name in ("choose", "run", "table"))
    choose.add_argument("--out", type=Path, required=True)
    run.add_argument("data", choices=["ml-100k", "ml-1m"])
    run.add_argument("--chosen", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    table.add_argument("files", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.command == "table":
        print(table_of(line for path in asked.files for line in read_lines(path)))
        return
    names = set(filter(None, asked.methods.split(",")))
    if asked.command == "choose":
        trials = list(list_trials(tomllib.loads(SPACES.read_text())))
    else:
        best = choose_best(read_lines(asked.chosen))
        trials = [Trial(one.method, asked.data, one.epsilon, seed, one.settings) for one in best for seed in SEEDS]
    run_all((one for one in trials if not names or one.method in names), asked.out, asked.device, asked.jobs)


if __name__ == "__main__":
    main()
