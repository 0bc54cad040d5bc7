"""Variants of methods that other packages add: found by preset, parameter or value, and only where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.contract import MethodInfo
from fedrec.federation.declarations import Preset
from fedrec.methods import kinds
from fedrec.methods.average.fedmf import FedMF


@dataclasses.dataclass(frozen=True)
class OddFedMF(FedMF):
    info: ClassVar[MethodInfo] = dataclasses.replace(
        FedMF.info, presets={**FedMF.info.presets, "odd": Preset("As nobody does it.", {"oddity": 3})}
    )

    oddity: int = 0
    optimiser: Literal["sgd", "adam", "odd"] = "sgd"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """A variant of fedmf is installed, by the target that the test names."""
    point = EntryPoint("fedmf.odd", request.param, kinds.VARIANTS)
    monkeypatch.setattr(kinds, "entry_points", lambda group: [point])
    kinds._variants.cache_clear()
    yield
    kinds._variants.cache_clear()


HERE = "methods.test_variants:OddFedMF"


@pytest.mark.parametrize("entry", [HERE], indirect=True)
@pytest.mark.usefixtures("entry")
def test_a_variant_is_chosen_where_only_it_fits() -> None:
    assert type(build_method("fedmf")) is FedMF
    assert type(build_method("fedmf", preset="tuned")) is FedMF
    assert type(build_method("fedmf", params={"optimiser": "adam"})) is FedMF
    assert build_method("fedmf", preset="odd") == OddFedMF(oddity=3)
    assert build_method("fedmf", params={"oddity": "2"}) == OddFedMF(oddity=2)
    assert build_method("fedmf", params={"optimiser": "odd"}) == OddFedMF(optimiser="odd")
    with pytest.raises(FedrecError, match="optimiser=even does not fit fedmf"):
        build_method("fedmf", params={"optimiser": "even"})


@pytest.mark.parametrize("entry", ["methods.no_such_module:Nothing"], indirect=True)
@pytest.mark.usefixtures("entry")
def test_a_broken_variant_hurts_only_who_needs_it() -> None:
    assert type(build_method("fedmf", params={"dim": 4})) is FedMF
    with pytest.raises(FedrecError, match=r"the variant 'fedmf.odd' cannot be used: ModuleNotFoundError"):
        build_method("fedmf", preset="odd")
