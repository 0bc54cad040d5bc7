"""Presets and search spaces as data: a TOML beside the module of a method is read when the method is defined."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

MODULE = """
from dataclasses import dataclass, replace
from fedrec.methods.average.fedmf import FedMF

@dataclass(frozen=True)
class Mine(FedMF):
    info = replace(FedMF.info, name="mine")
"""


def test_what_lies_beside_a_method_is_added_to_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lonely_method.py").write_text(MODULE)
    (tmp_path / "described_method.py").write_text(MODULE)
    (tmp_path / "described_method.toml").write_text(
        '[space]\nlr = "1..2"\n[presets.quick]\nmeaning = "In a hurry."\n[presets.quick.set]\nepochs = 1\n'
    )
    lonely, described = (importlib.import_module(name).Mine.info for name in ("lonely_method", "described_method"))
    for name in ("lonely_method", "described_method"):
        monkeypatch.delitem(sys.modules, name)
    assert {*described.presets} - {*lonely.presets} == {"quick"}
    assert described.presets["quick"] == {"epochs": 1}
    assert described.presets["quick"].meaning == "In a hurry."
    assert described.space == {"lr": "1..2"} != lonely.space
