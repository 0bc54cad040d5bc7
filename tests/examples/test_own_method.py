"""The example of a method in a package of its own: installed elsewhere, it is found, runs and passes the suite."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method"


def install(place: Path) -> None:
    """With pip where the build tool is at hand; otherwise by hand what pip would write from the same pyproject."""
    if importlib.util.find_spec("hatchling") and importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
               "--target", str(place), str(EXAMPLE)]  # fmt: skip
        subprocess.run(pip, check=True, capture_output=True, timeout=120)
        return
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    for module in (EXAMPLE / "src").glob("*.py"):
        (place / module.name).write_bytes(module.read_bytes())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that sees the package."""
    place = tmp_path_factory.mktemp("site")
    install(place)
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "PYTHONPATH": str(place), "FEDREC_CACHE": str(cache), "OMP_WAIT_POLICY": "passive"}


def python(*words: str, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run([sys.executable, *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=300)
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


@pytest.mark.slow
def test_its_own_tests_pass(installed: dict[str, str], tmp_path: Path) -> None:
    tests = EXAMPLE / "tests"
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tests), "-c", os.devnull]
    printed = python("-m", "pytest", *flags, str(tests), env=installed, cwd=tmp_path)
    assert " passed" in printed
    assert "failed" not in printed
    assert int(printed.split(" passed")[0].split()[-1]) > 5
