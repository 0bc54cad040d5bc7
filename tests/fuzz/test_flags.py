"""Flags with values nobody means: every command works or says so in one line, and a refusal leaves nothing behind.

No value names a place outside the test's own folder: the tests may run as root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Cli
from fuzz.property import RUN, SMALL, everything_below, fuzz, tidy
from fuzz.test_folders import FEDMF

HUGE, LONG = str(10**30), "9" * 5000
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1e-320",
    "1e308",
    "-1e308",
    "nan",
    "inf",
    "",
    " ",
    "²",
    "٣",
    "1_0",
    "0x1",
    HUGE,
    LONG,
]
WORDS = [
    "",
    " ",
    "x",
    ",",
    "=",
    ":",
    "@",
    "+",
    "ß",
    "🎬",
    "a\nb",
    "[/b]",
    "%s",
    "{0}",
    "--x",
    "\udcff",
    "\0",
    "x" * 300,
    "x" * 5000,
]
PATHS = [
    "",
    ".",
    "none",
    "none.csv",
    "file",
    "file/x",
    "folder",
    "pipe",
    "loop",
    "loop/x",
    "run",
    "run/summary.json",
    "mine.csv",
    "x" * 300,
    "a\nb",
    "\udcff.csv",
    "\0",
]
DATA = [
    SMALL,
    f"{SMALL}+ties1",
    "synthetic@",
    "synthetic@users=-1",
    f"synthetic@users={HUGE}",
    "synthetic@users=²",
    f"synthetic@ties{HUGE}",
    "synthetic@ties²",
    "synthetic@popularity_skew=inf",
    "filmtrust",
    "ml-100k:fedcia100",
    "ml-1m@x",
    "@",
    *PATHS,
]
FIELDS = [
    "ks",
    "select_metric",
    "min_interactions",
    "min_interactions_at",
    "min_rating",
    "negatives",
    "train_fraction",
    "test_share",
    "valid_share",
    "split",
    "time",
    "time_missing",
    "partition",
    "candidates",
    "ties",
    "patience",
    "metrics",
    "neg_pool",
    "select_on",
    "name",
    "",
]
BASE = RUN[5]
protocols = st.sampled_from(
    ["honest", "honest-time", "fedca", "ifedrec", "fedcia", "fedrkg", "", "x", BASE]
) | st.builds(
    lambda field, value: f"{BASE},{field}={value}",
    st.sampled_from(FIELDS),
    st.sampled_from([*NUMBERS, *WORDS, "ratio", "cold-items", "global-time", "ndcg@5", "ndcg@²", "4:taste", "random"]),
)
privacy = st.builds(
    lambda stages: ",".join(f"{name}={value}" for name, value in stages),
    st.lists(
        st.tuples(st.sampled_from(["clip", "gaussian", "laplace", "quantise", "x", ""]), st.sampled_from(NUMBERS)),
        max_size=3,
    ),
)
numbers, words, paths = st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.sampled_from(PATHS)
few = numbers.filter(lambda value: value != HUGE)  # rounds that nobody lives to see are not a mistake

RUN_FLAGS: dict[str, st.SearchStrategy[str]] = {
    "--data": st.sampled_from(DATA),
    "--protocol": protocols,
    "--backbone": words | st.just("ncf"),
    "--preset": words,
    "--rounds": few,
    "--seed": numbers,
    "--seeds": numbers | st.sampled_from(["0,0", "0,1", "0,,1", "0;1"]),
    "--silos": numbers | st.sampled_from(["4:taste", "4:", ":", "4:x", "²:taste", "13", f"{LONG}:random"]),
    "--participation": numbers,
    "--eval-every": numbers,
    "--patience": numbers,
    "--privacy": privacy | words,
    "--epsilon": numbers,
    "--delta": numbers,
    "--device": words,
    "--config": paths,
    "--memory": st.builds(lambda number, unit: number + unit, numbers, st.sampled_from(["", "G", "TiB", " mb", "x"])),
    "--train": paths,
    "--valid": paths,
    "--test": paths,
    "--out": paths,
    "--set": st.builds(
        lambda name, value: f"{name}={value}",
        st.sampled_from(["dim", "lr", "batch", "epochs", "rounds", "optimiser", "backbone", "loss", "init_std", "x"]),
        st.sampled_from([value for value in NUMBERS + WORDS if value != HUGE]),
    ),
}
OTHERS: dict[tuple[str, ...], dict[str, st.SearchStrategy[str]]] = {
    ("recommend", "run"): {"--user": words | numbers, "--history": paths, "-k": numbers, "--out": paths},
    ("recommend",): {"": paths, "--user": numbers},
    ("compare", "run", "--no-references"): {
        "": paths,
        "--metrics": words | st.sampled_from(["ndcg@5", "ndcg@5,", "hr@5"]),
        "--out": paths,
        "--format": words | st.sampled_from(["json", "csv", "latex", "JSON"]),
        "--groups": words | st.sampled_from(["activity", "taste", "popularity"]),
    },
    ("report", "run"): {"": paths, "--out": paths},
    ("report",): {"": paths},
    ("data", "show"): {"": st.sampled_from(DATA), "--out": paths},
    ("data", "get"): {"": st.sampled_from(DATA)},
    ("data", "list"): {"": words},
    ("data", "split"): {"": st.sampled_from(DATA), "--out": paths, "--protocol": protocols},
    ("data", "import"): {
        "": paths,
        "--name": words | paths,
        "--user": words | numbers,
        "--item": words | numbers,
        "--rating": numbers,
        "--timestamp": numbers,
    },
    ("audit", "leak", "--quick"): {
        "--data": st.sampled_from(DATA),
        "--protocol": protocols,
        "--rounds": few,
        "--train": paths,
        "--test": paths,
        "--valid": paths,
        "--negatives": paths,
        "--train-negatives": paths,
        "--scores": paths,
        "--out": paths,
    },
    ("protocols",): {"": protocols},
    ("methods",): {"": words | st.sampled_from(["fedmf", "WAA", "FCF"])},
    ("doctor",): {"": words},
    (): {"": words, "--version": words},
}


@pytest.fixture
def furnished(cli: Cli, tmp_path: Path) -> Path:
    """A folder with one thing of every kind that a path can lead to."""
    assert cli(*FEDMF, "--out", "run").code == 0
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine.csv").write_text(
        "user,item\n" + "".join(f"{u},{u * i % 31}\n" for u in range(9) for i in range(9))
    )
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


class Folder:
    """A furnished folder that is put back as it was after a command that changed it."""

    def __init__(self, path: Path) -> None:
        self.path, self.before = path, everything_below(path)

    def settle(self, worked: bool) -> None:
        after = everything_below(self.path)
        changed = {name for name in after.keys() | self.before.keys() if after.get(name) != self.before.get(name)}
        files = {name for name in changed if after.get(name) is not None and not name.startswith("cache/references")}
        assert worked or not files, files
        assert not {name for name in self.before if name not in after}
        for name in sorted(changed, reverse=True):
            path = self.path / name.encode("latin-1").decode("utf-8", "surrogateescape")
            if name in self.before:
                path.write_bytes(self.before[name] or b"")
            else:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def reads_a_pipe(line: list[str]) -> bool:
    """A pipe that nobody writes to is waited for, as everywhere."""
    return any(a in ("--config", "--history") and b == "pipe" for a, b in pairwise(line))


def drawn(data: st.DataObject, flags: Mapping[str, st.SearchStrategy[str]], most: int) -> list[str]:
    line = []
    for name in data.draw(st.lists(st.sampled_from(sorted(flags)), min_size=1, max_size=most, unique=True)):
        value = data.draw(flags[name])
        line += ([name] if name else []) + [value]
    return line


@fuzz(140)
@given(data=st.data())
def test_run(cli: Cli, furnished: Path, data: st.DataObject) -> None:
    line = ["run", "popularity" if data.draw(st.booleans()) else "fedmf", "--quiet", *drawn(data, RUN_FLAGS, 3)]
    line += [word for pair in zip(RUN[2::2], RUN[3::2], strict=True) if pair[0] not in line for word in pair]
    line += [] if "--rounds" in line else ["--rounds", "1"]
    line += [] if "--out" in line else ["--out", "new/run"]
    if reads_a_pipe(line):
        return
    folder = Folder(furnished)
    outcome = cli(*line)
    started = "diverged" in outcome.err  # a run that failed in its midst leaves what it has
    folder.settle(tidy(outcome) or started)


@fuzz(140)
@given(data=st.data())
def test_other_commands(cli: Cli, furnished: Path, data: st.DataObject) -> None:
    words = data.draw(st.sampled_from(sorted(OTHERS)))
    line = [*words, *drawn(data, OTHERS[words], 3)]
    if reads_a_pipe(line):
        return
    folder = Folder(furnished)
    folder.settle(tidy(cli(*line), also=(1,) if words[:1] == ("audit",) else ()))


BAD_FLAGS: dict[str, tuple[tuple[str, ...], str]] = {
    "a superscript as a number of silos": (("--silos", "²"), "--silos ²: write K, K:contiguous"),
    "silos of 5,000 digits": (("--silos", LONG), "write K"),
    "memory of 400 digits": (("--memory", "1" * 400 + "G"), "is not a size"),
    "a tie order beyond 64 bits": (("--data", f"synthetic@ties{HUGE}"), "write the tie order once, as tiesN"),
    "more users than there are": (("--data", f"synthetic@users={HUGE}"), "users must be at most 1,000,000,000"),
    "infinite popularity": (("--data", "synthetic@popularity_skew=inf"), "popularity_skew must be from -20 to 20"),
    "more dimensions than addresses": (("--set", f"dim={10**12}"), "it must be at most 2,147,483,648"),
    "more negatives than numbers": (("--protocol", f"{BASE},negatives={HUGE}"), "negatives cannot be"),
    "a name that is not UTF-8": (("--out", "\udcff"), r"'\udcff' is not UTF-8 text; rename the file or folder"),
}


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_the_worst_that_were_found(cli: Cli, tmp_path: Path, name: str) -> None:
    flags, says = BAD_FLAGS[name]
    line = [word for pair in zip(RUN[2::2], RUN[3::2], strict=True) if pair[0] not in flags for word in pair]
    outcome = cli("run", "fedmf", *line, *flags)
    assert not tidy(outcome)
    assert says in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 29 TiB"), RuntimeError("can't allocate memory: 9 TB")]
)
def test_no_memory(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    import fedrec.data.catalogue as catalogue

    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr(catalogue, "from_options", refuse)
    outcome = cli(*RUN)
    assert not tidy(outcome)
    assert outcome.err.startswith("error: not enough memory: ")


def test_a_mistake_of_ours_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line is for mistakes of the user; a defect must show where it is."""
    import fedrec.data.catalogue as catalogue

    def broken(_: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(catalogue, "from_options", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        cli(*RUN)
