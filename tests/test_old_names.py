"""Names that have changed work for one version more, and say what they are called now."""

from __future__ import annotations

import sys
import types

import pytest

from fedrec.errors import FedrecWarning
from fedrec.experiment import Listener
from fedrec.method import Method
from fedrec.plugins import OldName, keep_old_names, lazily


class Table:
    """A class of which a method and a property have new names."""

    rows = 3

    def count(self, more: int = 0) -> int:
        return self.rows + more

    counted = OldName("count")
    lines = OldName("rows")


def test_an_old_method_and_property_work_with_a_warning() -> None:
    with pytest.warns(FedrecWarning, match=r"Table\.counted is now called count; the old name goes"):
        assert Table().counted(1) == 4
    with pytest.warns(FedrecWarning, match="now called rows") as caught:
        assert Table().lines == 3
    assert caught[0].filename == __file__, "the warning points at the line that used the old name"


def test_hooks_under_old_names_are_still_called() -> None:
    calls = []
    with pytest.warns(FedrecWarning, match=r"Follower\.started is now called start") as caught:

        class Follower(Listener):
            def started(self, run: object) -> None:
                calls.append(run)

    assert caught[0].filename == __file__
    Follower().start("a run")  # type: ignore[arg-type]
    assert calls == ["a run"]
    with pytest.warns(FedrecWarning, match="decided is now called round_parameters"):

        class Mixed(Method):
            def decided(self, round: int) -> dict[str, float]:
                return {"mix": 0.5}

    assert Mixed().round_parameters(3) == {"mix": 0.5}


def test_an_old_name_of_a_module_warns_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_module")
    module.new = 7  # type: ignore[attr-defined]
    module.__getattr__ = keep_old_names("a_module", {"old": "new"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "a_module", module)
    for _ in range(2):
        with pytest.warns(FedrecWarning, match=r"a_module\.old is now called new"):
            from a_module import old  # type: ignore[import-not-found]
        assert old == 7
    with pytest.raises(AttributeError, match="module 'a_module' has no attribute 'absent'"):
        _ = module.absent


def test_a_lazy_package_keeps_old_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_package")
    module.__getattr__, _ = lazily("a_package", {"math": ["floor"]}, {"cut": "floor"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "a_package", module)
    with pytest.warns(FedrecWarning, match=r"a_package\.cut is now called floor"):
        assert module.cut(2.5) == 2
    assert module.floor(1.5) == 1
