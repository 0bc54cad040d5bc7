"""The scripts start, and the method printed in the contributing guide is a method."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedrec.methods import Popularity
from fedrec.testing import MethodTests, run, tiny_world
from waiting import GENEROUS

ROOT = Path(__file__).parents[2]
IMPORTS = """
from dataclasses import dataclass
from typing import ClassVar
from fedrec.federation.contract import Down, Mean, State
from fedrec.training.local_training import LocalMethod
"""


@pytest.mark.parametrize("script", ["demo.py", "ml100k_table.py"])
def test_a_script_says_what_it_does(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=GENEROUS)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
    assert list(tmp_path.iterdir()) == []


def guide() -> dict[str, object]:
    """The code blocks of the guide, run one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 5, "the guide shows two methods, their tests and a reference"
    module = sys.modules.setdefault("guide", ModuleType("guide"))  # dataclasses look for the module of a class
    for block in (IMPORTS, *blocks):
        exec(compile(block, "CONTRIBUTING.md", "exec"), vars(module))
    return vars(module)


GUIDE = guide()


class TestMyMethod(GUIDE["TestMyMethod"]):  # type: ignore[misc]
    """The guide's own test class, collected here."""


class TestNeighbours(GUIDE["TestNeighbours"]):  # type: ignore[misc]
    """That of the method which does not train a backbone."""


def test_the_reference_of_the_guide_counts_items() -> None:
    data = tiny_world(participation=0.5)
    counted = GUIDE["reference"](None, data, 2)["server.count"]  # type: ignore[operator]
    assert torch.equal(counted, run(Popularity(), data, 2)["server.popularity"][:, 0])


def test_the_guide_uses_the_conformance_suite() -> None:
    assert issubclass(TestMyMethod, MethodTests)
    assert TestMyMethod.method.info.name == "mymethod"
