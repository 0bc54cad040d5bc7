"""Kernels are found by name and device, and nobody reaches them by another way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrec
from fedrec.kernels import find, log_path, registry
from fedrec.kernels.registry import KERNELS, Source
from fedrec.methods import FedAvg, FedMF, PFedRec
from fedrec.testing import run, tiny_world

from .users import USERS

ROOT = Path(fedrec.__file__).parent
CPU, OTHER = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("name", [name for name, device in KERNELS if device == "cpu"])
def test_every_kernel_is_found(name):
    assert callable(find(name, CPU))


def test_none_where_there_is_none_or_it_is_not_wanted():
    assert find("mf", OTHER) is None
    assert find("no such kernel", CPU) is None
    assert find("mf", CPU, compiled=False) is None


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FedMF(dim=4, batch=16), "mf on cpu: compiled kernel"),
        (PFedRec(dim=4, batch=16, optimiser="sgd"), "linear on cpu: compiled kernel"),
        (PFedRec(dim=4, batch=16, optimiser="adam"), "linear on cpu: torch"),
        (FedAvg(backbone="sasrec", dim=4, batch=16), "sasrec on cpu: torch"),
    ],
)
def test_the_log_says_whether_a_kernel_trains_or_torch(
    method: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_path.cache_clear()
    with caplog.at_level("INFO", logger="fedrec.kernels"):
        run(method, tiny_world(), 1)
    training = [record.getMessage() for record in caplog.records if record.getMessage().startswith(said.split()[0])]
    assert training == [said]


def test_none_without_the_package_it_needs(monkeypatch):
    monkeypatch.setitem(KERNELS, ("mf", "cpu"), Source("fedrec.kernels.mf", "train_clients", needs="no_such_package"))
    assert find("mf", CPU) is None


def given(*arguments: Any) -> tuple[Any, ...]:
    """A kernel that hands back what it is given."""
    return arguments


def test_a_kernel_of_another_device_is_one_line(monkeypatch):
    """It gets tensors, where one of numba gets arrays of the same memory."""
    monkeypatch.setitem(KERNELS, ("mf", "meta"), Source(__name__, "given", needs="torch"))
    monkeypatch.setitem(KERNELS, ("mf", "cpu"), Source(__name__, "given", needs="numba"))
    value = torch.arange(3.0)
    elsewhere, here = find("mf", OTHER), find("mf", CPU)
    assert elsewhere is not None
    assert here is not None
    assert elsewhere(value, 2)[0] is value
    array, two = here(value, 2)
    array[0] = 5
    assert (float(value[0]), two) == (5, 2)


class AskedForError(Exception):
    pass


def refuse(*arguments: Any) -> None:
    raise AskedForError


@pytest.mark.parametrize("name", USERS)
def test_methods_use_what_is_registered(name, monkeypatch):
    monkeypatch.setitem(KERNELS, (name, "cpu"), Source(__name__, "refuse", needs="torch"))
    with pytest.raises(AskedForError):
        USERS[name](torch.float32)


AGAIN = """
from fedrec.kernels.mf import train_clients
from fedrec.methods.average.fedmf import FedMF
from fedrec.testing import run, tiny_world

run(FedMF(dim=4), tiny_world(), 1)
assert train_clients.signatures
print(sum(train_clients.stats.cache_misses.values()))
"""


def test_another_process_finds_what_was_compiled_before():
    """Workers of `pytest -n` and the commands that they start share one cache.

    It lies beside the modules, or where NUMBA_CACHE_DIR says, which all of them inherit.
    """
    USERS["mf"](torch.float64)
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_methods_reach_kernels_through_training_alone():
    found = [
        (path.name, name)
        for path in (ROOT / "methods").rglob("*.py")
        for name in imported(path)
        if name.startswith("fedrec.kernels")
    ]
    assert found == []


def test_kernels_use_no_other_room():
    own = ("fedrec.kernels.", "fedrec.random.")
    found = [
        (path.name, name)
        for path in Path(registry.__file__).parent.glob("*.py")
        for name in imported(path)
        if name.startswith("fedrec.") and not name.startswith(own)
    ]
    assert found == []
