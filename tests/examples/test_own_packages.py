"""Examples in packages of their own: a method, a metric, a command, a listener. Installed they are found and pass."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from waiting import GENEROUS

EXAMPLES = [
    Path(__file__).parents[2] / "examples" / f"own_{kind}" for kind in ("method", "metric", "command", "listener")
]


def install(example: Path, place: Path) -> None:
    """With pip where the build tool is at hand; otherwise by hand what pip would write from the same pyproject."""
    if importlib.util.find_spec("hatchling") and importlib.util.find_spec("pip"):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--target",
            str(place),
            str(example),
        ]
        subprocess.run(pip, check=True, capture_output=True, timeout=GENEROUS)
        return
    project = tomllib.loads((example / "pyproject.toml").read_text())["project"]
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    for module in (example / "src").glob("*.py"):
        (place / module.name).write_bytes(module.read_bytes())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees the packages."""
    place = tmp_path_factory.mktemp("site")
    for example in EXAMPLES:
        install(example, place)
    cache = tmp_path_factory.mktemp("cache")
    paths = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths, "FEDREC_CACHE": str(cache), "OMP_WAIT_POLICY": "passive"}


def python(*words: str, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run([sys.executable, *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_and_shown(installed: dict[str, str], tmp_path: Path) -> None:
    listed = python("-m", "fedrec.cli", "methods", env=installed, cwd=tmp_path)
    federated, _, _ = listed.partition("references")
    assert any(line.startswith("fedavgm ") for line in federated.splitlines())
    shown = python("-m", "fedrec.cli", "methods", "fedavgm", env=installed, cwd=tmp_path)
    assert "v <- beta v + D" in shown
    assert "momentum" in shown


def test_it_runs(installed: dict[str, str], tmp_path: Path) -> None:
    data = "synthetic@users=80+items=60"
    words = ["-m", "fedrec.cli", "run", "fedavgm", "--data", data, "--rounds", "3", "--quiet", "--out", "run"]
    printed = python(*words, "--set", "momentum=0.5", env=installed, cwd=tmp_path)
    assert printed.startswith("fedavgm  synthetic@")
    assert (tmp_path / "run" / "summary.json").is_file()
    recommended = python("-m", "fedrec.cli", "recommend", "run", "--user", "7", "-k", "3", env=installed, cwd=tmp_path)
    assert len(recommended.splitlines()) == 4


def test_the_metric_is_listed_and_judges_a_run(installed: dict[str, str], tmp_path: Path) -> None:
    assert "rbp " in python("-m", "fedrec.cli", "metrics", env=installed, cwd=tmp_path)
    words = ["-m", "fedrec.cli", "run", "fedmf", "--data", "synthetic@users=80+items=60", "--rounds", "2", "--quiet"]
    asked = ["--protocol", "honest,metrics=recall+ndcg+rbp,select_metric=rbp@10", "--out", "judged"]
    python(*words, *asked, env=installed, cwd=tmp_path)
    compared = python("-m", "fedrec.cli", "compare", "judged", "--metrics", "rbp@10", env=installed, cwd=tmp_path)
    assert "on rbp@10 (paired bootstrap" in " ".join(compared.split())


def test_the_command_is_listed_and_called(installed: dict[str, str], tmp_path: Path) -> None:
    assert "survey" in python("-m", "fedrec.cli", "--help", env=installed, cwd=tmp_path)
    words = ["-m", "fedrec.cli", "run", "ease", "--data", "synthetic@users=80+items=60", "--quiet", "--out", "run"]
    python(*words, env=installed, cwd=tmp_path)
    assert "ease" in python("-m", "fedrec.cli", "survey", "run", env=installed, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_its_own_tests_pass(example: Path, installed: dict[str, str], tmp_path: Path) -> None:
    tests = example / "tests"
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tests), "-c", os.devnull]
    printed = python("-m", "pytest", *flags, str(tests), env=installed, cwd=tmp_path)
    assert " passed" in printed
    assert "failed" not in printed
    assert int(printed.split(" passed")[0].split()[-1]) > 0
