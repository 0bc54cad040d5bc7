"""Variants are found where this package is installed; where it is not, one line says what to install."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.methods import kinds, method_class

DECLARED = tomllib.loads((Path(__file__).parents[3] / "studies" / "pyproject.toml").read_text(encoding="utf-8"))
POINTS: dict[str, str] = DECLARED["project"]["entry-points"][kinds.VARIANTS]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library without this package."""
    monkeypatch.setattr(kinds, "entry_points", lambda group: [])
    kinds._variants.cache_clear()
    yield
    kinds._variants.cache_clear()


def test_the_library_knows_of_which_methods_there_are_variants() -> None:
    assert {name.split(".")[0] for name in POINTS} == set(kinds.STUDIED)


@pytest.mark.parametrize("point", POINTS)
def test_every_variant_is_found_by_its_presets(point: str) -> None:
    name = point.split(".")[0]
    usual = method_class(name)[0]
    (variant,) = (kind for kind in kinds.variants_of(usual) if POINTS[point].endswith(f":{kind.__name__}"))
    assert issubclass(variant, usual)
    assert variant is not usual
    own = variant.info.presets.keys() - usual.info.presets.keys()
    assert own
    assert {type(build_method(name, preset=preset)) for preset in own} == {variant}
    assert type(build_method(name)) is usual


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "asked",
    [
        {"preset": "released"},
        {"params": {"similarity": "pca1"}},
        {"params": {"outer": "sin", "alpha": 0.3}},
    ],
)
def test_without_the_package_one_line_says_what_to_install(asked: dict[str, object]) -> None:
    with pytest.raises(FedrecError, match=r"variants of fedca need pip install 'fedrec\[studies\]'"):
        build_method("fedca", **asked)  # type: ignore[arg-type]
