"""Every method and preset that prints an epsilon: one client's data moves all that leaves by no more than declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedrec.errors import FedrecError
from fedrec.federation.contract import Method
from fedrec.methods import methods
from fedrec.testing import tiny_world
from fedrec.testing.coupling import find_attributes, measure_distances

SMALL = {"dim": 4, "epochs": 1, "batch": 16}


def list_presets() -> Iterator[tuple[type[Method], str]]:
    for method in methods().values():
        if not method.info.centralised and method.info.name != "local":
            yield from ((method, preset) for preset in ("", *method.info.presets))


def small(method: type[Method], preset: str) -> Method:
    """With the parameters of a preset and small sizes, and with what lets noise reach all that is sent."""
    fields = method.__dataclass_fields__
    settings = {name: value for name, value in SMALL.items() if name in fields} if preset == "" else {}
    chosen = method(**{**(method.info.presets[preset] if preset else {}), **settings})  # type: ignore[arg-type]
    return replace(chosen, **chosen.disclosure.covered_with)  # type: ignore[type-var]


@pytest.mark.parametrize(("method", "preset"), list_presets(), ids=lambda value: getattr(value, "__name__", value))
def test_neighbouring_data_are_as_close_as_declared(method: type[Method], preset: str) -> None:
    try:
        chosen = small(method, preset)
    except FedrecError as error:
        pytest.skip(f"these settings do not go together: {error}")
    data = tiny_world()
    distances = measure_distances(chosen, data, 1, find_attributes(data.world.items))
    assert all(distance <= chosen.disclosure.sensitivity * (1 + 1e-9) for distance in distances)


def test_the_measure_sees_a_client_that_moves_too_much() -> None:
    """Without the clip that a sensitivity is declared for, the bound would not hold."""
    method = methods()["fedmf"](dim=4, lr=1e4, batch=16)
    data = tiny_world()
    near = measure_distances(method, data, 1)
    assert 1 < near[0] <= 2, "large steps, clipped, go to the edge of the bound"
    counts = methods()["popularity"]()
    assert 1 < measure_distances(counts, data, 1)[0] <= 2**0.5, "counts cannot oppose each other"
