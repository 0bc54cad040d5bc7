"""What the leaderboard's runs came to, as data: one JSON file for each dataset, one for the trials of each row."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.evaluation import LEVEL, holm, paired_bootstrap
from fedrec.experiment import (
    Run,
    RunConfig,
    RunFolder,
    Trial,
    folder_name,
    method_of,
    plan_run,
    read_run,
    settings_text,
)
from fedrec.federation import schema_of
from fedrec.report import Row as ComparisonRow
from fedrec.schema import COUNT, METRICS, NUMBER, TEXT, Shape, damage_error, optional, read_json, table_of
from fedrec_studies.leaderboard import users
from fedrec_studies.leaderboard.board_definition import Board, best_trials, cells_of, study_file, trials_found
from fedrec_studies.leaderboard.pace import clock_of, too_long
from fedrec_studies.leaderboard.users import Array
from fedrec_studies.leaderboard.work import has_ended, read_origin, why_not
from fedrec_studies.reproduce.cells import STOPPED, Cell
from fedrec_studies.reproduce.estimate import Clock
from fedrec_studies.reproduce.measured import MeasuredRun, read_shipped
from fedrec_studies.reproduce.run_figures import sent

CELL: Shape = {
    "seed": COUNT,
    "command": TEXT,
    "version": TEXT,
    "commit": TEXT,
    "device": TEXT,
    "best_round": COUNT,
    "rounds_run": COUNT,
    "seconds": NUMBER,
    "test": METRICS,
    "up": NUMBER,
    "down": NUMBER,
}
ROW: Shape = {
    "label": TEXT,
    "method": TEXT,
    "kind": TEXT,
    "server": TEXT,
    "trials": COUNT,
    "settings": TEXT,
    "group": optional(COUNT),
    "why": TEXT,
    "cells": [CELL],
}
RECORD: Shape = {
    "dataset": TEXT,
    "protocol": TEXT,
    "metrics": [TEXT],
    "chance": METRICS,
    "rows": [ROW],
    "tested": {"row": TEXT, "p": table_of(NUMBER, "rows with numbers")},
}
Record = Mapping[str, Any]  # of one dataset, or of one of its rows
FEDERATED, ALONE, TOGETHER = "federated", "alone", "centralised"
SUMS, SINGLE, NOTHING, ALL = "sums alone", "single uploads", "nothing", "all data"
USERS = "users"  # folder, beside the results, of what single users got
# what a server sees follows from the messages of one round, which a tiny world shows as well as a large one
WORLD = "synthetic@users=50+items=200"


def write_records(whole: Board, datasets: Sequence[str], runs: Path, results: Path) -> None:
    """Bring the files up to date with the runs that have ended; what only the files know stays."""
    found = trials_found(whole, runs, results)
    _write_trials(whole, found, runs, results)
    best = best_trials(whole, found)
    clock = clock_of(read_records(results, whole.every_dataset()).values())
    for dataset in datasets:
        before = _before(results / f"{folder_name(dataset)}.json")
        planned = cells_of(whole, dataset, best, runs, "cpu")
        labels = list(dict.fromkeys(cell.row for cell in planned))
        known = _runs_of_table(whole, dataset)
        rows = [
            _row(whole, label, [c for c in planned if c.row == label], found, best, before, known, clock)
            for label in labels
        ]
        metric, of_users = whole.metrics_on(dataset)[-1], results / USERS / f"{folder_name(dataset)}.npz"
        values = users.merge_user_values(
            users.read(of_users), users.collect_user_values(_comparable(planned, rows), metric), rows, metric
        )
        users.write(of_users, values)
        ranked = {row["label"] for row in rows if is_ranked(row)}
        fair = {label: of_row for label, of_row in values.of_row.items() if label in ranked}
        together = reuse_groups(rows, before, [*fair]) or groups(fair)
        for row in rows:
            row["group"] = together.get(row["label"])
        tested = against_all(fair, best_federated(rows, metric, whole.chosen_elsewhere()))
        _write(
            results / f"{folder_name(dataset)}.json",
            {
                "dataset": dataset,
                "protocol": planned[0].protocol,
                "metrics": list(whole.metrics_on(dataset)),
                "chance": _chance(planned) or before.get("chance", {}),
                "tested": tested | {"p": reuse_tests(rows, before, tested["row"]) | tested["p"]},
                "rows": rows,
            },
        )


def read_records(results: Path, datasets: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By dataset, as far as there is a file."""
    found = {dataset: _before(results / f"{folder_name(dataset)}.json") for dataset in datasets}
    return {dataset: record for dataset, record in found.items() if record}


def is_ranked(row: Record) -> bool:
    """Whether a row of a record has a figure that counts; in earlier records every figure did."""
    return bool(row["cells"]) and not row.get("unranked")


def mean_of(row: Record, metric: str) -> float:
    """Its figure: the mean over its seeds."""
    return mean(cell["test"][metric] for cell in row["cells"])


def groups(values: Mapping[str, Array]) -> dict[str, int]:
    """Rows by group, from their users' values: 1 is the best and those not significantly different from it, 2 the best
    of the rest, and so on."""
    left, found = sorted(values, key=lambda label: -values[label].mean()), dict[str, int]()
    while left:
        best, *others = left
        corrected = holm([paired_bootstrap(values[best], values[label]).p for label in others])
        like = {label for label, p in zip(others, corrected, strict=True) if p >= 1 - LEVEL}
        number = max(found.values(), default=0) + 1
        found |= dict.fromkeys([best, *like], number)
        left = [label for label in others if label not in like]
    return found


def best_federated(rows: Sequence[Record], metric: str, elsewhere: Sequence[str]) -> str:
    """The label of the highest ranked federated row that was not tuned elsewhere; empty where there is none."""
    fair = [row for row in rows if row["kind"] == FEDERATED and row["label"] not in elsewhere and is_ranked(row)]
    return max(fair, key=lambda row: mean_of(row, metric))["label"] if fair else ""


def against_all(values: Mapping[str, Array], label: str) -> dict[str, Any]:
    """One row against every other whose users are known: Holm-corrected p of the paired bootstrap over users."""
    others = [name for name in values if name != label] if label in values else []
    p = holm([paired_bootstrap(values[label], values[name]).p for name in others])
    return {"row": label, "p": dict(zip(others, (round(one, 4) for one in p), strict=True))}


def reuse_groups(rows: Sequence[Record], before: Record, here: Sequence[str]) -> dict[str, int]:
    """The groups of an earlier time, where they name more rows than have their users' values `here`; others then have
    none, nor has a group without its best, which all others were compared with. Empty where those here are grouped
    afresh: groups of two times do not fit together."""
    same = _find_unchanged(rows, before)
    old = [row for row in before.get("rows", ()) if row["group"] is not None]
    best = {row["group"]: row["label"] for row in sorted(old, key=lambda row: mean_of(row, before["metrics"][-1]))}
    kept = {row["label"]: row["group"] for row in old if {row["label"], best[row["group"]]} <= same}
    return kept if len(kept) > len(here) else {}


def reuse_tests(rows: Sequence[Record], before: Record, label: str) -> dict[str, float]:
    """Reuse the p values of an earlier record against rows whose runs have not changed since."""
    same, old = _find_unchanged(rows, before), before.get("tested", {"row": "", "p": {}})
    return {name: p for name, p in old["p"].items() if name in same} if label == old["row"] and label in same else {}


def _find_unchanged(rows: Sequence[Record], before: Record) -> set[str]:
    """Find ranked rows with the same figures as before."""
    old = {row["label"]: _tests(row) for row in before.get("rows", ())}
    return {row["label"] for row in rows if is_ranked(row) and old.get(row["label"]) == _tests(row)}


def _tests(row: Record) -> list[tuple[int, dict[str, float]]]:
    return [(cell["seed"], cell["test"]) for cell in row["cells"]]


def server_sees(config: RunConfig) -> str:
    """What reaches the server, by an example client in a small world."""
    method = method_of(config)
    if method.info.centralised:
        return ALL
    run = Run(plan_run(dataclasses.replace(config, data=WORLD, silos=None, device="cpu")))
    fields = [
        kind
        for kinds in schema_of(run.simulator.server_side, run.simulator.client_setup()).fields.values()
        for kind in kinds
    ]
    return NOTHING if not fields else SINGLE if any(kind.gathered for kind in fields) else SUMS


def _row(
    whole: Board,
    label: str,
    planned: Sequence[Cell],
    found: Mapping[str, Sequence[Trial]],
    best: Mapping[str, Trial],
    before: Mapping[str, Any],
    known: Mapping[str, MeasuredRun],
    clock: Clock,
) -> dict[str, Any]:
    config, row = planned[0].config, whole.row(label)
    method = method_of(config)
    info = method.info
    old = next((one for one in before.get("rows", ()) if one["label"] == label), None)
    kept = {
        one["seed"]: one for one in (old or {}).get("cells", ()) if one["command"] in {_command(c) for c in planned}
    }
    kept = {c.config.seed: _record_from_run(known[c.command()]) for c in planned if c.command() in known} | kept
    done = kept | {cell.config.seed: _cell(cell) for cell in planned if has_ended(cell)}
    waits, source = label in whole.waiting(best), label if row is None else row.source
    why = "" if done else _why(whole, planned, old or {}, len(found[source]) if waits else None, clock)
    trials = len(found[source]) if source in best else row.chosen_from if row is not None else 0
    return {
        "label": label,
        "method": info.name,
        "kind": TOGETHER if info.centralised else ALONE if info.name == "local" else FEDERATED,
        "server": (old or {}).get("server") or _sees(config),
        "trials": trials,
        "settings": _settings(config),
        "group": None,
        "unranked": whole.reason_not_to_rank(label, method, trials),
        "why": why,
        "cells": [done[seed] for seed in sorted(done)] if not waits else [],
    }


def _why(whole: Board, planned: Sequence[Cell], old: Mapping[str, Any], trials: int | None, clock: Clock) -> str:
    """Why a row is empty. `trials`: how many it has had, where it waits for more."""
    if skipped := whole.reason_to_skip(planned[0]):
        return skipped
    if trials is not None:
        return f"{trials} of its {whole.trials} trials done"
    same = old.get("settings") == _settings(planned[0].config)
    stopped = old["why"] if same and old.get("why", "").startswith(STOPPED) else ""
    tried = next(filter(None, map(why_not, planned)), "") or stopped
    return tried or too_long(clock, planned[0], whole.minutes) or "not run yet"


def _sees(config: RunConfig) -> str:
    try:
        return server_sees(config)
    except FedrecError:
        return ""  # a method that this small world has no attributes for


def _cell(cell: Cell) -> dict[str, Any]:
    summary, about, config = cell.summary(), read_origin(cell), RunFolder(cell.folder).settings()
    assert summary is not None
    up, down = sent(summary, cell.folder)
    return {
        "seed": summary["seed"],
        "command": _command(cell),
        "version": about.get("version", ""),
        "commit": about.get("commit", ""),
        "device": config.get("device", "cpu"),
        "best_round": summary["best_round"],
        "rounds_run": summary["rounds_run"],
        "seconds": round(summary["seconds"]["total"], 1),
        "diverged": summary.get("diverged", ""),
        "test": {name: round(value, 6) for name, value in summary["test"].items() if not name.startswith("hr@")},
        "valid": {name: round(value, 6) for name, value in summary["valid"].items() if not name.startswith("hr@")},
        "up": round(up),
        "down": round(down),
    }


def _runs_of_table(whole: Board, dataset: str) -> dict[str, MeasuredRun]:
    """Return the shipped runs of the table whose rows these are, by command."""
    if dataset != whole.new_items["dataset"]:
        return {}
    paper, _, name = whole.new_items["table"].partition("/")
    return {run.command: run for run in read_shipped(paper) if run.table == name and run.seeds == 1}


def _record_from_run(run: MeasuredRun) -> dict[str, Any]:
    """Make the record of a shipped run, which has figures but no traffic."""
    return {
        "seed": run.seed,
        "command": run.command,
        "version": run.fedrec,
        "commit": "",
        "device": run.device,
        "best_round": run.best_round,
        "rounds_run": run.rounds,
        "seconds": round(run.seconds, 1),
        "diverged": run.diverged,
        "test": dict(run.figures),
        "up": 0,
        "down": 0,
    }


def _command(cell: Cell) -> str:
    """What runs a cell again. The machine is not part of it."""
    config = dataclasses.replace(cell.config, device=RunConfig.device, memory=RunConfig.memory)
    return shlex.join(["fedrec", "run", config.method, *config.flags()])


def _settings(config: RunConfig) -> str:
    parts = [config.backbone or "", f"--preset {config.preset}" if config.preset else "", settings_text(config.params)]
    return " ".join(part for part in parts if part)


def _comparable(planned: Sequence[Cell], rows: Sequence[Record]) -> list[ComparisonRow]:
    """Rows with all their runs at hand, user by user."""
    found = []
    for row in rows:
        done = [cell for cell in planned if cell.row == row["label"] and has_ended(cell)]
        if done and len(done) == len(row["cells"]):
            found.append(ComparisonRow(row["label"], tuple(read_run(cell.folder) for cell in done)))
    return found


def _chance(planned: Sequence[Cell]) -> dict[str, float]:
    done = next((summary for cell in planned if (summary := cell.summary()) is not None), {})
    return dict(done.get("chance", {}))


def _write_trials(whole: Board, found: Mapping[str, Sequence[Trial]], runs: Path, results: Path) -> None:
    """Of studies at hand; what is kept of others stays as it was written."""
    for row in whole.studies:
        study, trials = whole.study(row, runs, "cpu"), found[row.label]
        if began := study.began() if trials == study.read_trials() else {}:
            _write(
                study_file(results, row.label),
                {
                    "label": row.label,
                    "data": whole.tuned_on,
                    "searched": began["space"],
                    "config": began["config"],
                    "version": began["version"],
                    "trials": [dataclasses.asdict(trial) for trial in trials],
                },
            )


def _before(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(read_json(path, "leaderboard", RECORD))
    except (ValueError, OSError) as error:
        raise damage_error(path, error) from None


def _write(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
