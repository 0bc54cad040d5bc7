"""Resume = never stopped: however a run ends early, going on gives the numbers and bytes of the undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from fedrec.data import leave_one_out, load, write
from fedrec.errors import FedrecError
from fedrec.experiment import checkpoint
from fedrec.experiment import driver as runs
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.driver import Listener, execute
from fedrec.experiment.result import Result
from fedrec.federation.client_side import ClientSide
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog, Simulator
from fedrec.serve import Recommender
from waiting import GENEROUS

from . import SMALL

ROUNDS = 6
PLAIN = RunConfig("fedmf", data=SMALL, rounds=ROUNDS, params={"dim": 8})
EARLY_BEST = {"dim": 8, "lr": 0.04, "optimiser": "adam"}
"""Parameters that overfit at once, so that the best round is not the last."""
CONFIGS = {
    "fedmf": PLAIN,
    "local": RunConfig("local", data=SMALL, rounds=ROUNDS, params={"dim": 4}),
    "ncf, half of the clients": RunConfig(
        "fedavg", data=SMALL, rounds=ROUNDS, backbone="ncf", participation=0.5, params={"dim": 4, "lr": 1.0}
    ),
    "private": RunConfig(
        "fedmf", data=SMALL, rounds=ROUNDS, participation=0.5, privacy="clip=1,gaussian=0.01", params={"dim": 8}
    ),
    "silos": RunConfig("fedavg", data=SMALL, rounds=ROUNDS, silos="4:taste", params={"dim": 4}),
    "seldom evaluated": RunConfig("fedmf", data=SMALL, rounds=ROUNDS, eval_every=3, params={"dim": 8}),
    "work left": RunConfig("pfedrec", data=SMALL, rounds=ROUNDS, eval_every=3, params={"dim": 8}),
}


class StopAfter(Listener):
    """Ctrl-C at the end of a round."""

    def __init__(self, round: int) -> None:
        self.last = round

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        if log.round == self.last:
            raise KeyboardInterrupt


def facts(result: Result) -> dict[str, Any]:
    """What must not depend on interruptions; seconds and memory may."""
    return {k: v for k, v in result.summary.items() if k not in ("seconds", "peak_memory_mb", "finished")}


def rounds_logged(folder: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(folder: Path, whole: Path) -> None:
    """Two run folders hold the same run."""
    results = [json.loads((path / "summary.json").read_text()) for path in (folder, whole)]
    for result in results:
        del result["seconds"], result["peak_memory_mb"], result["finished"]
    assert results[0] == results[1]
    assert rounds_logged(folder) == rounds_logged(whole) == list(range(len(rounds_logged(whole))))
    for name in ("checkpoint.safetensors", "per_user.csv", "items.csv", "users.csv", "config.toml"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    ends = [checkpoint.load(path / "last.safetensors") for path in (folder, whole)]
    assert ends[0][1]["ledger"] == ends[1][1]["ledger"]
    assert all(bool((ends[0][0][name] == value).all()) for name, value in ends[1][0].items())
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())


@pytest.mark.parametrize("name", CONFIGS)
def test_interrupted_between_rounds(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    execute(config, tmp_path / "whole")
    for stops in ([0], [ROUNDS - 1], [1, 2, 4]):
        folder = tmp_path / "-".join(map(str, stops))
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                execute(config, folder, resume=True, listener=StopAfter(stop))
            assert not (folder / "summary.json").exists()
        execute(config, folder, resume=True)
        same(folder, tmp_path / "whole")


@pytest.mark.parametrize("name", ["fedmf", "local"])
@pytest.mark.parametrize("where", ["training", "evaluating", "after training"])
def test_interrupted_in_the_midst_of_a_round(
    name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients have already trained when Ctrl-C arrives: that half of a round must not be saved."""
    config = CONFIGS[name]
    execute(config, tmp_path / "whole")
    folder = tmp_path / "run"
    owner, target = {
        "training": (ClientSide, "_train"),
        "evaluating": (Simulator, "scores"),
        "after training": (Simulator, "_answer"),
    }[where]
    original, calls = getattr(owner, target), []

    def interrupted(self: object, *args: Any, **more: Any) -> Any:
        calls.append(None)
        result = original(self, *args, **more)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, target, interrupted)
        patched.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
        patched.setattr(runs, "CHECKPOINT_SHARE", float("inf"))
        with pytest.raises(KeyboardInterrupt):
            execute(config, folder)
    assert 2 <= checkpoint.load(folder / "last.safetensors")[1]["progress"]["next_round"] <= 4
    execute(config, folder, resume=True)
    same(folder, tmp_path / "whole")


@pytest.mark.parametrize(("share", "saves"), [(float("inf"), 7), (1e-9, 2)])
def test_slow_checkpoints_are_seldom(share: float, saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every round where they may take all the time; once and at the end where they may take next to none."""
    written: list[Path] = []
    original = checkpoint.save_resume

    def counted(path: Path, *rest: Any) -> None:
        written.append(path)
        original(path, *rest)

    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runs, "CHECKPOINT_SHARE", share)
    monkeypatch.setattr(checkpoint, "save_resume", counted)
    execute(replace(CONFIGS["local"], rounds=6), tmp_path / "run")
    assert len(written) == saves


def test_a_best_round_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again after a resume, which finds it there; every checkpoint beside it is of the last round."""
    written: list[Any] = []
    original = checkpoint.save

    def counted(path: Path, tensors: Any, about: Any) -> None:
        written.append(about.get("round"))
        original(path, tensors, about)

    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runs, "CHECKPOINT_SHARE", float("inf"))
    monkeypatch.setattr(checkpoint, "save", counted)
    config = replace(PLAIN, params=EARLY_BEST)
    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path / "run", listener=StopAfter(4))
    best = execute(config, tmp_path / "run", resume=True).summary["best_round"]
    assert best < 4, "the world makes the test empty"
    assert written.count(best) == 1
    assert written.count(None) == ROUNDS + 1  # the place to resume, and at the end


def test_half_written_files_are_swept_up(tmp_path: Path) -> None:
    """Those that a kill leaves: ours by their name, and those in which safetensors builds a file."""
    execute(CONFIGS["local"], tmp_path / "run")
    there = sorted(path.name for path in (tmp_path / "run").iterdir())
    for name in (".last.safetensors." + 32 * "a", ".tmpB3x9Qz"):
        (tmp_path / "run" / name).write_bytes(b"half")
    (tmp_path / "run" / ".mine").write_text("kept")
    execute(CONFIGS["local"], tmp_path / "run", resume=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".mine", *there]


KILLED = """
import os, signal, sys
from pathlib import Path
from fedrec.experiment import driver as runs
from fedrec.experiment.config import RunConfig

calls = 0

def count(*event):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

class Begin(runs.Listener):
    def round(self, log, score, progress):
        sys.setprofile(count)

runs.CHECKPOINT_SECONDS, runs.CHECKPOINT_SHARE = 0.0, float("inf")
runs.execute(RunConfig(**eval(sys.argv[1])), Path(sys.argv[2]), resume=True, listener=Begin())
"""


@pytest.mark.parametrize("name", ["local", "private"])
def test_killed_at_a_random_moment(name: str, tmp_path: Path) -> None:
    """A real process and a real SIGKILL, several times over, while checkpoints are written after every round.

    Before or after any call of a function since its first round, of which a round has some 6,000.
    """
    config = replace(CONFIGS[name], rounds=15)
    execute(config, tmp_path / "whole")
    folder, draw = tmp_path / "run", random.Random(name)
    for _ in range(2):
        words = [repr(config.to_dict()), str(folder), str(draw.randrange(1, 25_000))]
        assert subprocess.run([sys.executable, "-c", KILLED, *words], timeout=GENEROUS).returncode == -signal.SIGKILL
    assert 2 <= len(rounds_logged(folder)) < 15
    execute(config, folder, resume=True)
    same(folder, tmp_path / "whole")


def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    execute(PLAIN, whole)
    with pytest.raises(KeyboardInterrupt):
        execute(PLAIN, folder, listener=StopAfter(2))
    (folder / "last.safetensors").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "cli')  # cut short
    (folder / f".last.safetensors.{'0' * 32}").write_bytes(b"half a checkpoint")
    execute(PLAIN, folder, resume=True)
    same(folder, whole)


def test_killed_between_the_two_checkpoint_files(tmp_path: Path) -> None:
    """`checkpoint.safetensors` is then of a later round than `last.safetensors`."""
    whole, early, late = (tmp_path / name for name in ("whole", "early", "late"))
    execute(PLAIN, whole)
    for folder, stop in ((early, 1), (late, 5)):
        with pytest.raises(KeyboardInterrupt):
            execute(PLAIN, folder, listener=StopAfter(stop))
    (early / "checkpoint.safetensors").write_bytes((late / "checkpoint.safetensors").read_bytes())
    execute(PLAIN, early, resume=True)
    same(early, whole)


def test_killed_after_early_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision to stop is part of what a resume takes over: not a round more is trained."""
    config = RunConfig("fedmf", data=SMALL, rounds=60, patience=2, params=EARLY_BEST)
    whole = execute(config, tmp_path / "whole")
    assert whole.summary["stopped_early"]
    with monkeypatch.context() as patched:
        patched.setattr(runs.Run, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            execute(config, tmp_path / "run")
    execute(config, tmp_path / "run", resume=True)
    same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("data", ["validated", "no validation part"])
def test_a_finished_run_goes_on_for_more_rounds(data: str, tmp_path: Path) -> None:
    long = replace(PLAIN, rounds=12, params=EARLY_BEST)
    if data == "no validation part":
        write(leave_one_out(load(SMALL)), tmp_path)
        long = replace(long, train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"))
    whole = execute(long, tmp_path / "whole")
    short = execute(replace(long, rounds=6), tmp_path / "run")
    assert data != "validated" or short.summary["best_round"] < 5, "the world makes the test empty"
    assert execute(long, tmp_path / "run", resume=True).summary["rounds_run"] == 12
    assert whole.summary["best_round"] == (11 if data == "no validation part" else whole.summary["best_round"])
    same(tmp_path / "run", tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    once = execute(PLAIN, tmp_path / "run")
    again = execute(PLAIN, tmp_path / "run", resume=True)
    assert facts(once) == facts(again)
    assert rounds_logged(tmp_path / "run") == list(range(ROUNDS))


def test_state_too_large_to_hold_twice_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrec.experiment.config.SMALLEST_MEMORY", 1)
    small = replace(PLAIN, memory="64K", params=EARLY_BEST)
    execute(small, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        execute(small, tmp_path / "run", listener=StopAfter(4))
    execute(small, tmp_path / "run", resume=True)
    same(tmp_path / "run", tmp_path / "whole")


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        execute(PLAIN, tmp_path / "run", listener=StopAfter(3))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", 1), ("participation", 0.5), ("params", {"dim": 4}), ("protocol", "honest,negatives=1"), ("silos", "3")],
)
def test_other_settings_are_refused(stopped: Path, field: str, value: Any) -> None:
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(FedrecError, match=rf"other settings \({field}\)"):
        execute(replace(PLAIN, **{field: value}), stopped, resume=True)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_a_privacy_budget_cannot_be_stretched(tmp_path: Path) -> None:
    config = replace(PLAIN, rounds=3, privacy="clip=1", epsilon=2.0, delta=1e-5)
    execute(config, tmp_path / "run")
    with pytest.raises(FedrecError, match=r"noise of .*run was chosen for 3 rounds \(--epsilon\), so .* cannot change"):
        execute(replace(config, rounds=6), tmp_path / "run", resume=True)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = bytearray()
    elif how == "text":
        content = bytearray(b"this is not a checkpoint\n")
    elif how == "one bit":
        content[-100] ^= 1
    elif how == "header":
        content[20] ^= 0xFF
    else:
        content[-40:] = bytes(40)
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "empty", "text", "one bit", "header", "overwritten"])
@pytest.mark.parametrize("name", ["last.safetensors", "checkpoint.safetensors"])
def test_a_damaged_checkpoint_is_noticed(stopped: Path, name: str, how: str) -> None:
    damage(stopped / name, how)
    with pytest.raises(FedrecError, match=rf"{name} is damaged or not a fedrec checkpoint"):
        execute(PLAIN, stopped, resume=True)


def test_a_foreign_checkpoint_is_refused(stopped: Path, tmp_path: Path) -> None:
    foreign = stopped / "last.safetensors"
    own = foreign.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        execute(replace(PLAIN, seed=9), tmp_path / "other", listener=StopAfter(3))
    foreign.write_bytes((tmp_path / "other" / "last.safetensors").read_bytes())  # same shapes, another seed
    with pytest.raises(FedrecError, match=r"other settings \(seed\)"):
        execute(PLAIN, stopped, resume=True)
    foreign.write_bytes((stopped / "checkpoint.safetensors").read_bytes())  # a model, not a place to resume
    with pytest.raises(FedrecError, match="not a fedrec checkpoint"):
        execute(PLAIN, stopped, resume=True)
    tensors, _ = checkpoint.load(stopped / "checkpoint.safetensors")
    save_file(tensors, foreign)  # written by something else
    with pytest.raises(FedrecError, match="not a fedrec checkpoint"):
        execute(PLAIN, stopped, resume=True)
    foreign.write_bytes(own)
    execute(PLAIN, stopped, resume=True)


def test_a_damaged_config_is_one_line(stopped: Path) -> None:
    (stopped / "config.toml").write_bytes(b"method = \xff\xfe")
    with pytest.raises(FedrecError, match="not valid TOML"):
        execute(PLAIN, stopped, resume=True)


@pytest.mark.parametrize("changed", ["data", "items"])
def test_files_that_changed_since_are_noticed(changed: str, tmp_path: Path) -> None:
    """Of the same size, but other items are held out or described; nothing but the checksum could tell."""
    pairs = [f"u{user},i{(user * 7 + k * k) % 30}" for user in range(30) for k in range(8)]
    files = {"data": ["user,item", *dict.fromkeys(pairs)], "items": ["item,price", *(f"i{i},{i}" for i in range(30))]}
    paths = {name: tmp_path / f"{name}.csv" for name in files}
    for name, lines in files.items():
        paths[name].write_text("\n".join(lines) + "\n")
    values = {
        "method": "ifedrec",
        "data": str(paths["data"]),
        "attributes": str(paths["items"]),
        "rounds": 2,
        "protocol": "ifedrec,ks=3,select_metric=recall@3",
        "params": {"dim": 4, "align": 0.01},
    }
    config, folder = make_config(values), tmp_path / "run"
    execute(config, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    head, *lines = files[changed]
    paths[changed].write_text("\n".join([head, *reversed(lines)]) + "\n")
    with pytest.raises(FedrecError, match=r"was made with data\.csv@sha256-.*, but the data is now data\.csv@sha256-"):
        execute(replace(config, rounds=3), folder, resume=True)
    assert len(Recommender(folder).for_user("u1", 3)) == 3, "a model outlives its data"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    paths[changed].write_text("\n".join(files[changed]) + "\n")
    execute(replace(config, rounds=3), folder, resume=True)


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """A second run is refused before it touches anything, and the first ends as if it had been alone."""
    config, refused = replace(CONFIGS["local"], rounds=4), []

    class Second(Listener):
        def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
            with pytest.raises(FedrecError, match="another run is in progress in") as error:
                execute(config, tmp_path / "run", resume=True)
            refused.append(str(error.value))

    execute(config, tmp_path / "run", listener=Second())
    assert len(refused) == 4
    execute(config, tmp_path / "alone")
    same(tmp_path / "run", tmp_path / "alone")
    assert execute(replace(config, rounds=5), tmp_path / "run", resume=True).summary["rounds_run"] == 5


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_tells_of_single_users_is_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    """State of clients and figures of users, also while the run goes on; results are as readable as any new file."""
    seen: list[set[str]] = []

    class Look(Listener):
        def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
            seen.append(open_to_others(tmp_path / "run"))
            if log.round == 2:
                raise KeyboardInterrupt

    before = os.umask(umask)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(CONFIGS["local"], tmp_path / "run", listener=Look())
        assert (tmp_path / "run" / "last.safetensors").exists()
        seen.append(open_to_others(tmp_path / "run"))
        execute(CONFIGS["local"], tmp_path / "run", resume=True)
    finally:
        os.umask(before)
    results = {"config.toml", "plan.json", "metrics.jsonl", "summary.json", "items.csv"}
    assert open_to_others(tmp_path / "run") == (set() if umask == 0o077 else results)
    assert all(names <= results for names in seen)


def open_to_others(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything, Windows has no such modes")
def test_a_state_that_may_not_be_read_is_not_called_damaged(stopped: Path) -> None:
    (stopped / "last.safetensors").chmod(0)
    with pytest.raises(FedrecError, match=r"cannot read .*last\.safetensors: Permission denied"):
        execute(PLAIN, stopped, resume=True)


def test_data_handed_over_without_a_version_is_told_by_its_rows(tmp_path: Path) -> None:
    table = load(SMALL)
    given = replace(table, version="")
    other = replace(given, item=np.roll(given.item, 1))
    for data, rounds in ((given, 2), (given, 3)):
        execute(replace(PLAIN, rounds=rounds), tmp_path / "run", resume=True, data=data)
    with pytest.raises(FedrecError, match=r"was made with .*@rows-"):
        execute(replace(PLAIN, rounds=4), tmp_path / "run", resume=True, data=other)
