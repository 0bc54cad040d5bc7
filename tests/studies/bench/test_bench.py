"""The suite: what it measures, that measuring changes nothing, and what it makes of two measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.federation.client_side import ClientSide
from fedrec.federation.simulator import Simulator
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.mixture.fedca import FedCA
from fedrec.testing import outcome, tiny_world
from fedrec.training.samples import Samples
from fedrec_studies.bench import goals
from fedrec_studies.bench.estimates import work_of
from fedrec_studies.bench.machine import describe, in_a_process
from fedrec_studies.bench.measure import measure_method
from fedrec_studies.bench.phases import PHASES, SAMPLING, TRAINING, Phases, seconds_of_draws
from fedrec_studies.bench.plain_programs import (
    FEW,
    MORE,
    NAIVE,
    PLAIN,
    Part,
    estimate_round,
    reference_of,
    seconds_of_a_round,
    select_clients,
    units_of,
)
from fedrec_studies.bench.result_file import RowFile
from fedrec_studies.bench.speed_page import speed_page
from fedrec_studies.bench.suite import compare_seconds, reach_all
from fedrec_studies.bench.task import Task

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
SMALL = "synthetic@users=80+items=200+interactions=4000"


@pytest.mark.parametrize("name", ["fedmf", "lightgcn", "ifedrec", "cgfedrec"])
def test_the_work_of_a_round_is_estimated(name: str) -> None:
    """With a trainer, in batches without a model, in batches with one, with products that a kernel counts."""
    task = Task(name, size="quick")
    work = work_of(task.run(task.interactions()).simulator, 0)
    assert work.samples >= work.interactions > 0
    assert work.flops > 0


def test_a_method_is_measured_from_the_command_line(cli: Cli, tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("print('{\"seconds_per_round\": 50}')", encoding="utf-8")
    done = cli("bench", "--methods", "fedmf", "--quick", "--yardstick", plain, "--out", "bench.json")
    assert done.code == 0, done
    found = json.loads((tmp_path / "bench.json").read_text())
    (row,) = found["methods"]
    assert row["method"] == "fedmf"
    assert row["ratio"] == pytest.approx(50 / row["seconds"]["round"])
    assert {"set_up", "compilation", "round", "evaluation"} <= set(row["seconds"])
    assert set(row["phases"]) == {*PHASES, "other"}
    assert row["phases"][TRAINING] + row["phases"][SAMPLING] > 0
    assert min(row[name] for name in ("interactions_per_s", "gflop_per_s", "gb_per_s", "peak_gib")) > 0
    assert row["roofline"] > 0
    assert found["machine"]["copy_gb_per_s"] > 0
    assert cli("bench", "--page", "speed.md", "--from", "bench.json").code == 0
    assert "| `fedmf` |" in (tmp_path / "speed.md").read_text()
    same = cli("bench", "--compare", "bench.json", "bench.json")
    assert same.code == 0
    assert "1.00" in same.out


def test_a_method_is_measured_with_settings_of_its_own(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", "--methods", "fedgram", "--set", "l2=3", "--quick", "--out", "bench.json")
    assert done.code == 0, done
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["methods"][0]["method"] == "fedgram l2=3"
    assert "--set l2=3" in found["command"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--methods", "fedmff"), "did you mean 'fedmf'?"),
        (("--compare", "a.json", "b.json"), "a.json is not a file of `fedrec bench`"),
        (("--methods", "fedmf", "--yardstick", "none.py"), "there is no such file"),
        (("--methods", "fedmf", "--device", "tpu"), "use cpu or cuda"),
        (("--methods", "fedmf", "--size", "10m"), "use quick, 100k, 1m"),
        (("--scale", "--methods", "fedmff"), "did you mean 'fedmf'?"),
        (("--goals", "--methods", "fedmff"), "did you mean 'fedmf'?"),
        (("--goals", "--scale"), "choose one"),
        (("--goals", "--data", "ml-1m"), "use synthetic or movielens"),
        (("--set", "lr=0.1"), "--set is for methods that --methods names"),
        (("--set", "lr=0.1", "--goals"), "--set is for methods that --methods names"),
        (("--page", "x.md", "--from", "none.json"), "none.json is not a file of `fedrec bench`"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, words: tuple[str, ...], says: str) -> None:
    done = cli("bench", *words)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done
    assert says in done.err


def test_watching_changes_nothing_and_leaves_nothing_behind() -> None:
    plain, watched = Simulator(FedCA(dim=4), tiny_world()), Simulator(FedCA(dim=4), tiny_world())
    before, phases = Samples.__init__, Phases(CPU)
    plain.round(0)
    with phases.watching(watched):
        watched.round(0)
    assert Samples.__init__ is before
    for owner in (watched.method, watched.server_side, watched.client_side, watched.wire, watched.group):
        assert not {"local", "aggregate", "receive", "send_up", "merged"} & set(vars(owner))
    for name, value in outcome(plain, 1).items():
        assert torch.equal(value, outcome(watched, 1)[name]), name
    for name in ("training", "preparing", "wire", "aggregation", "answer"):
        assert phases.seconds[name] > 0, name


def test_a_phase_counts_its_own_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled in training is no training. By a clock that goes only there, and in between."""
    passed = {SAMPLING: 0.0, TRAINING: 0.0, "between": 0.0}

    def taking(function: Callable[..., Any], phase: str, seconds: float) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            passed[phase] += seconds
            return function(*arguments, **options)

        return slow

    monkeypatch.setattr(Samples, "__init__", taking(Samples.__init__, SAMPLING, 1.0))
    monkeypatch.setattr(FedMF, "local", taking(FedMF.local, TRAINING, 100.0))
    monkeypatch.setattr(ClientSide, "_take", taking(ClientSide._take, "between", 10_000.0))
    simulator = Simulator(FedMF(dim=4), tiny_world(compiled=False))
    phases = Phases(CPU, clock=lambda: sum(passed.values()))
    with phases.watching(simulator):
        simulator.round(0)
    assert all(passed.values()), "each was called"
    assert phases.seconds == dict.fromkeys(PHASES, 0.0) | {name: passed[name] for name in (SAMPLING, TRAINING)}


def test_a_ratio_of_training_alone_stands_apart(tmp_path: Path) -> None:
    """Where the plain program only trains, nothing but our training is compared with it."""
    script = tmp_path / "plain.py"
    script.write_text("print('{\"seconds_per_round\": 50}')", encoding="utf-8")
    about = describe(CPU)
    for method, alone in (("fedca", True), ("fedmf", False)):
        row = measure_method(Task(method, size="quick", turns=1), {PLAIN: script})
        trained = row["phases"][TRAINING] + row["phases"][SAMPLING]
        assert row["ratio"] == pytest.approx(50 / (trained if alone else row["seconds"]["round"]))
        assert row["training_ratio"] == (row["ratio"] if alone else None)
        page = speed_page({"b.json": {"command": "bench", "complete": True, "machine": about, "methods": [row]}})
        cells = next(line for line in page.splitlines() if line.startswith(f"| `{method}`")).split(" | ")
        assert cells[2:4] == (["", f"{row['ratio']:,.0f}"] if alone else [f"{row['ratio']:,.0f}", ""])


def test_rows_of_different_days_are_told_apart() -> None:
    row = measure_method(Task("popularity", size="quick", turns=1), {})
    about = {"command": "bench", "complete": True, "machine": describe(CPU)}
    same, other = (
        [row | {"day": "2026-01-01"}, row | {"method": "fedmf"} | day] for day in ({"day": "2026-01-01"}, {})
    )
    assert "different days" not in speed_page({"b.json": about | {"methods": same}})
    page = speed_page({"b.json": about | {"methods": other}})
    assert "- 2026-01-01: `popularity`\n- an earlier day: `fedmf`" in page


def test_draws_of_kernels_are_timed_alone() -> None:
    assert seconds_of_draws(tiny_world(), 0) > 0
    assert seconds_of_draws(tiny_world(negatives=0), 0) == 0


def test_a_few_clients_stand_for_all() -> None:
    data = tiny_world(dtype=torch.float32)
    few, share = select_clients(data, 4)
    assert few.world.clients == 4
    assert share == len(few.items) / len(data.items)
    assert few.positives.min() < np.median(data.positives) < few.positives.max()
    users, _ = select_clients(tiny_world(silos=(12,)), 4)
    assert (users.world.clients, len(users.users)) == (1, 4)


def quadratic(users: int, units: int = 1_000) -> Part:
    """A reference that takes 10 s for all users on their own and 90 s for all pairs."""
    share = users / units
    return Part(10 * share + 90 * share**2, users, share)


def test_a_reference_that_compares_users_runs_on_all_of_them() -> None:
    asked: list[int] = []

    def measured(users: int, within: float) -> Part:
        asked.append(users)
        return quadratic(users)

    seconds, how = estimate_round(quadratic(FEW), 1_000, measured)
    assert seconds == pytest.approx(100)
    assert how.startswith("all users")
    assert asked == [MORE, 1_000]


def test_a_reference_that_takes_too_long_on_all_is_scaled_from_below() -> None:
    def measured(users: int, within: float) -> Part:
        if users == 1_000:
            raise FedrecError("it took more than a while")
        return quadratic(users)

    estimate, how = estimate_round(quadratic(FEW), 1_000, measured)
    assert estimate == pytest.approx(quadratic(MORE).seconds_of_all)
    assert estimate < 100
    assert how.startswith(f"{MORE} users, scaled: at least")


def test_a_reference_that_takes_them_one_by_one_is_scaled() -> None:
    def measured(users: int, within: float) -> Part:
        assert users == MORE
        return Part(0.01 * users, users, users / 1_000)

    assert estimate_round(Part(0.12, FEW, FEW / 1_000), 1_000, measured) == (pytest.approx(10), f"{MORE} users, scaled")


def test_a_slow_reference_runs_on_a_few_users_alone() -> None:
    def measured(users: int, within: float) -> Part:
        raise AssertionError

    assert estimate_round(Part(12.0, FEW, FEW / 1_000), 1_000, measured) == (
        pytest.approx(1_000),
        f"{FEW} users, scaled",
    )


def test_references_in_their_order(tmp_path: Path) -> None:
    task = Task("fedmf", SMALL, params={"dim": "4"})
    run = task.run(task.interactions())
    script, naive = tmp_path / "plain.py", tmp_path / "naive.py"
    script.write_text(
        "import sys\nrows = open(sys.argv[2]).readlines()\nprint('{\"seconds_per_round\": %d}' % len(rows))\n"
    )
    naive.write_text(
        "import json, sys\nusers = int(sys.argv[2])\n"
        "print(json.dumps({'seconds': users / 100, 'users': users, 'share': users / 80}))\n"
    )
    plain = reference_of(run, task, {PLAIN: script, NAIVE: naive})
    assert plain is not None
    assert plain.seconds == run.prepared.n_interactions
    tested = reference_of(run, task, {NAIVE: naive})
    assert tested is not None
    assert "the naive reference of its tests" in tested.what
    assert tested.seconds == pytest.approx(80 / 100)
    alone = reference_of(run, task, {}, clock=later_and_later())
    assert alone is not None
    assert alone.what.startswith("this engine without kernels")
    assert f"{FEW} clients" in alone.what
    share = select_clients(run.simulator.data, FEW)[1]
    assert alone.seconds == pytest.approx(4 / share)


def later_and_later() -> Callable[[], float]:
    """A clock that shows 0, 1, 4, 9, ...: the second of two things takes 4 s longer than the first."""
    return (float(number**2) for number in count()).__next__


def test_where_a_round_takes_no_longer_than_none_nothing_is_said() -> None:
    """As on a machine that had something else to do."""
    worked: list[int] = []
    assert seconds_of_a_round(worked.append, clock=later_and_later()) == 4
    assert seconds_of_a_round(worked.append, clock=iter([0.0, 5.0, 10.0, 14.0]).__next__) is None
    assert worked == [1, 2, 1, 2]


@pytest.mark.parametrize("on_all", [False, True])
def test_the_naive_reference_of_a_methods_tests_is_timed(on_all: bool) -> None:
    spec = importlib.util.spec_from_file_location("naive_references", ROOT / "benchmarks" / "naive.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    task = Task("fedmf", SMALL, params={"dim": "4"})
    run = task.run(task.interactions())
    users = units_of(run) if on_all else FEW
    share = select_clients(run.simulator.data, users)[1]
    assert program.naive(task, users, later_and_later()) == {"seconds": 4, "users": users, "share": share}


def test_the_library_imports_nothing_of_the_tests() -> None:
    for path in (ROOT / "src/fedrec/bench").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "sys.path" not in text, path
        assert "import_module" not in text, path


# -- interrupted, and gone on with --

MACHINE = {"device": "a machine", "cores": 2}


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    place, asked = tmp_path / "bench.json", []

    def piece(name: str) -> dict[str, Any]:
        asked.append(name)
        if name == "breaks" and asked.count(name) == 1:
            raise FedrecError("it hurts")
        if name == "stops" and asked.count(name) == 1:
            raise KeyboardInterrupt
        return {"method": name}

    def all_of(kept: RowFile) -> list[dict[str, Any]]:
        kept.begin(MACHINE, "fedrec bench")
        for name in ("first", "breaks", "stops", "last"):
            kept.row({"method": name}, partial(piece, name), lambda: None)
        return list(kept.complete()["methods"])

    with pytest.raises(KeyboardInterrupt):
        all_of(RowFile(place, "methods", resume=False))
    (first, broken) = json.loads(place.read_text())["methods"]
    assert (first["method"], broken["error"]) == ("first", "it hurts")
    with pytest.raises(FedrecError, match="continue with --resume"):
        RowFile(place, "methods", resume=False)
    with pytest.raises(FedrecError, match="another kind"):
        RowFile(place, "points", resume=True)
    rows = all_of(RowFile(place, "methods", resume=True))
    assert sorted(row["method"] for row in rows) == ["breaks", "first", "last", "stops"]
    assert not [row for row in rows if "error" in row]
    assert asked == ["first", "breaks", "stops", "breaks", "stops", "last"]
    RowFile(place, "methods", resume=False)  # it is complete: it may be measured anew


def test_another_machine_does_not_go_on(tmp_path: Path) -> None:
    place = tmp_path / "bench.json"
    kept = RowFile(place, "methods", resume=False)
    kept.begin(MACHINE, "")
    kept.complete()
    with pytest.raises(FedrecError, match="was measured on a machine, 2 cores"):
        RowFile(place, "methods", resume=True).begin(MACHINE | {"cores": 64}, "")


ENDLESS = """
from fedrec_studies.bench import suite
from fedrec.cli import main

measure = suite.in_a_process

def instead(words):
    quick = "print('{\\"method\\": \\"popularity\\"}')"
    return measure(["-c", quick if '"popularity"' in words[2] else "import threading; threading.Event().wait()"])

suite.in_a_process = instead
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_an_interrupted_suite_says_how_to_go_on(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ENDLESS, "bench", "--quick", "--methods", "popularity,fedca", "--out", "b.json"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "fedca: 2 of 2" in line:
                child.send_signal(signal.SIGTERM)
                break
        rest = child.stderr.read()
    again = "fedrec bench --quick --methods popularity,fedca --out b.json --resume"
    assert f"interrupted: 1 done, in b.json; to continue: {again}" in rest
    assert child.returncode == 128 + signal.SIGTERM
    found = json.loads((tmp_path / "b.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["popularity"]
    assert found["complete"] is False


def measurement(*seconds: float) -> dict[str, Any]:
    middle = float(np.median(seconds))
    return {"methods": [{"method": "fedmf", "seconds": {"round": middle, "rounds": list(seconds)}}]}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((1.0, 1.0, 1.0), (1.05, 1.05, 1.05), ""),
        ((1.0, 1.0, 1.0), (0.5, 0.5, 0.5), "faster"),
        ((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), "slower"),
        ((1.0, 2.0, 3.0), (1.0, 1.2, 1.4), ""),  # as far apart as each is within itself
    ],
)
def test_a_change_is_told_from_noise(before: tuple[float, ...], after: tuple[float, ...], verdict: str) -> None:
    ((name, *_, said),) = compare_seconds(measurement(*before), measurement(*after))
    assert (name, said) == ("fedmf", verdict)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(FedrecError, match="failed: it hurts"):
        in_a_process(["-c", "import sys; sys.exit('it hurts')"])


def test_goals_are_timed_whole(cli: Cli, tmp_path: Path) -> None:
    done = cli("bench", "--goals", "--quick", "--methods", "fedgram", "--out", "goals.json")
    assert done.code == 0, done
    (row,) = json.loads((tmp_path / "goals.json").read_text())["goals"]
    assert row["seconds"] >= row["rounds"] * row["seconds_round"] > 0
    assert row["met"] == (row["seconds"] <= row["within"])
    assert cli("bench", "--page", "speed.md", "--from", "goals.json").code == 0
    assert "| `fedgram` | synthetic, quick |" in (tmp_path / "speed.md").read_text()
    more = cli("bench", "--goals", "--quick", "--methods", "fedmf,fedgram", "--out", "goals.json", "--resume")
    assert more.code == 0, more
    found = json.loads((tmp_path / "goals.json").read_text())
    assert [one["goal"] for one in found["goals"]] == ["fedmf", "fedgram"]
    assert found["complete"]
    assert found["goals"][1] == row, "what was measured before is measured no second time"


def test_a_goal_that_changed_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def timed_now(words: list[str]) -> dict[str, Any]:
        timed.append(words[2])
        return {"goal": words[2], "within": goals.GOALS[words[2]].seconds}

    def reach(data: str) -> list[dict[str, Any]]:
        kept = RowFile(tmp_path / "goals.json", "goals", resume=(tmp_path / "goals.json").exists())
        return list(reach_all(["fedmf", "fedca"], "cpu", data, True, kept, "", lambda text: None)["goals"])

    monkeypatch.setattr("fedrec_studies.bench.suite.in_a_process", timed_now)
    monkeypatch.setattr("fedrec_studies.bench.suite.describe", lambda device: MACHINE)
    for data in goals.WORLDS:
        reach(data)
    assert timed == ["fedmf", "fedca"] * 2, "another world is another question"
    monkeypatch.setitem(goals.GOALS, "fedca", replace(goals.GOALS["fedca"], seconds=0.5))
    assert [(row["goal"], row["within"]) for row in reach("synthetic")] == [
        ("fedmf", 3.0),
        ("fedmf", 3.0),
        ("fedca", 1.0),
        ("fedca", 0.5),
    ]
    assert timed[4:] == ["fedca"]


def test_goals_are_for_generated_worlds_or_movielens() -> None:
    labels = [goals.task_of(goals.GOALS["cgfedrec"], "cpu", data, "100k").label for data in goals.WORLDS]
    assert labels == ["synthetic, 100k", "ml-100k"]


def test_the_page_is_what_the_measurements_say() -> None:
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    sources = re.findall(r"--from (results/\S+\.json)", page)
    assert sources
    found = {source: json.loads((ROOT / source).read_text(encoding="utf-8")) for source in sources}
    assert page == speed_page(found)
