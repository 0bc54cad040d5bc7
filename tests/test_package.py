"""The package itself: what it needs, what it says about itself, and that it can be used from Python."""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedrec
import fedrec.evaluation
from fedrec.commands.doctor import EXTRAS

WORLD = "synthetic@users=40+items=80+interactions=700+seed=1"
LEAN = """
import sys

BLOCKED = {"numba", "polars", "typer", "rich", "safetensors", "tomli_w", "dp_accounting"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not installed on this machine")
        return None

sys.meta_path.insert(0, Absent())
"""
CORE = """
import fedrec
import fedrec.evaluation, fedrec.methods, fedrec.models, fedrec.privacy.accountant
import fedrec.federation.loop, fedrec.federation.simulator, fedrec.training.local_training, fedrec.federation.wire
import numpy as np
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods import method_class

rng = np.random.default_rng(0)
pairs = np.unique(np.stack([np.repeat(np.arange(20), 6), rng.integers(0, 50, 120)]), axis=1)
for name in ("fedmf", "fedncf", "local", "popularity", "ease", "mf"):
    cls, implied = method_class(name)
    clients = 1 if cls.info.centralised else 20
    world = World(items=50, clients=clients)
    data = ClientData.build(world, *pairs, users=np.arange(20), client_ptr=np.linspace(0, 20, clients + 1).astype(int))
    simulator = Simulator(cls(**implied), data)
    logs = [simulator.round(number) for number in range(2)]
    scores = np.concatenate([part.numpy() for _, part in simulator.scores(1)])
    assert scores.shape == (20, 50) and np.isfinite(scores).all(), name
    assert all(np.isfinite(value) for log in logs for value in log.observed.values())
assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
print("fine")
"""
WHOLE = f"""
import fedrec

result = fedrec.run("fedmf", "{WORLD}", rounds=2, dim=4, privacy="clip=1,gaussian=1")
assert result.test and "fedrec[privacy]" in result.summary["privacy"]["meaning"]
assert not BLOCKED & {{name.split(".")[0] for name in sys.modules}}
print("fine")
"""


def python(code: str, *flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", [CORE, WHOLE], ids=["engine", "fedrec.run"])
def test_torch_numpy_and_scipy_are_enough(code: str) -> None:
    """The machine with the accelerator has nothing else."""
    assert python(LEAN + code) == "fine\n"


def test_the_lean_path_gives_the_same_numbers() -> None:
    code = f'import fedrec\nprint(fedrec.run("fedmf", "{WORLD}", rounds=2, dim=4).test["ndcg@10"])'
    lean, full = float(python(LEAN + code)), fedrec.run("fedmf", WORLD, rounds=2, dim=4).test["ndcg@10"]
    assert lean == pytest.approx(full, abs=1e-6)


HEAVY = ("torch", "scipy", "numba", "polars")
COMMAND = f"""
import sys
from fedrec.cli import main
try:
    main()
finally:
    print(sorted({{*{HEAVY}}} & {{*sys.modules}}), end="", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", ["methods", "protocols", "protocols honest", "data list", "--version", "--help", "run --help"]
)
def test_listing_imports_nothing_heavy(words: str) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > (words != "--version")
    assert done.stderr == "[]"


def test_the_package_is_light_and_names_all_it_has() -> None:
    code = f"import fedrec, sys; print(sorted({{*{HEAVY!r}, 'numpy'}} & set(sys.modules)), *dir(fedrec))"
    imported, *names = python(code).split()
    assert imported == "[]"
    assert set(fedrec.__all__) <= set(names)
    assert {"Evaluator", "evaluate", "protocol", "top_k"} <= set(dir(fedrec.evaluation))
    assert set(fedrec.evaluation.__all__) <= set(dir(fedrec.evaluation))


@pytest.mark.parametrize("package", ["fedrec", "fedrec.data", "fedrec.evaluation"])
def test_no_name_is_hidden_by_a_module_of_the_same_name(package: str) -> None:
    """A module that is imported becomes an attribute of its package, as `evaluation.protocol` would."""
    code = f"""
import importlib, pkgutil, types
import {package} as package
for module in pkgutil.iter_modules(package.__path__):
    if package.__name__ != "fedrec":
        importlib.import_module(f"{package}.{{module.name}}")
print([name for name in package.__all__ if isinstance(getattr(package, name), types.ModuleType)])
"""
    assert python(code) == "[]\n"


def test_one_version_everywhere() -> None:
    assert fedrec.__version__ == importlib.metadata.version("fedrec")
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z0-9.]+)?", fedrec.__version__)


def test_types_are_shipped() -> None:
    assert (importlib.resources.files("fedrec") / "py.typed").is_file()


def test_all_is_what_it_says() -> None:
    for name in fedrec.__all__:
        assert getattr(fedrec, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fedrec.nothing


def test_run_from_python(tmp_path: Path) -> None:
    table = fedrec.load(WORLD)
    result = fedrec.run("fedmf", table, rounds=2, seed=3, dim=4, out=tmp_path / "run", participation=0.5)
    named = fedrec.run("fedmf", WORLD, rounds=2, seed=3, dim=4, participation=0.5)
    assert result.test == named.test
    assert result.folder == tmp_path / "run"
    assert named.folder is None
    assert 0 <= result.test["ndcg@10"] <= 1
    assert result.valid.keys() == result.test.keys()
    assert len(result.evaluation.users) == result.summary["dataset"]["users"]
    assert result.evaluation.per_user["ndcg@10"].mean() == pytest.approx(result.test["ndcg@10"])
    with pytest.raises(fedrec.FedrecError, match="started with other settings"):
        fedrec.run("fedmf", table, rounds=2, out=tmp_path / "run")
    with pytest.raises(fedrec.FedrecError, match="already holds a run"):
        fedrec.run("fedmf", table, rounds=2, out=tmp_path / "run", resume=False)


def test_a_result_has_the_figures_of_every_user(tmp_path: Path) -> None:
    """The columns of per_user.csv, also where nothing is written."""
    kept = fedrec.run("fedmf", WORLD, rounds=2, dim=4, out=tmp_path / "run").per_user
    with (tmp_path / "run" / "per_user.csv").open(newline="") as file:
        names, *rows = csv.reader(file)
    assert kept.columns == names
    assert [
        [str(value) for value in row] for row in zip(*(kept[name].to_list() for name in names), strict=True)
    ] == rows
    result = fedrec.run("fedmf", WORLD, rounds=2, dim=4)
    assert result.folder is None
    assert result.per_user["user"].to_list() == kept["user"].to_list()
    assert result.per_user["ndcg@10"].mean() == pytest.approx(result.test["ndcg@10"])


ROOT = Path(__file__).parents[1]


def test_no_extra_is_offered_for_what_does_not_exist() -> None:
    """Every extra is there for something, and `fedrec doctor` knows no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == {
        "privacy",
        "secure",
        "figures",
        "tune",
        "serve",
        "flower",
        "export",
        "studies",
        "tensorboard",
        "mlflow",
        "wandb",
        "docs",
        "test",
        "dev",
    }
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    assert "simulat" in project["description"]
    assert not re.search("every published", project["description"])


def test_the_readme_says_that_clients_are_simulated() -> None:
    assert "simulat" in (ROOT / "README.md").read_text(encoding="utf-8").split("## Try it")[0]


def test_runs_with_equal_seeds_are_equal_and_others_are_not() -> None:
    first, again, other = (fedrec.run("fedmf", WORLD, rounds=2, dim=4, seed=seed).test for seed in (1, 1, 2))
    assert first == again != other


def test_only_the_top_floor_speaks_to_the_terminal() -> None:
    source = Path(fedrec.__file__).parent
    upstairs = {"cli.py", "console.py", "doctor.py", "commands"}
    speaking = [
        path for path in source.rglob("*.py") if re.search(r"import console\b|fedrec\.console", path.read_text())
    ]
    assert speaking
    assert {path.relative_to(source).parts[0] for path in speaking} <= upstairs
