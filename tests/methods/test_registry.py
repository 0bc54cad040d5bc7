from __future__ import annotations

import dataclasses

import pytest

from fedrec.errors import FedrecError
from fedrec.methods import BUILT_IN, method_class, methods


def test_every_name_and_alias_finds_its_method():
    for method in BUILT_IN:
        assert method_class(method.info.name) == (method, {})
        for alias, implied in method.info.aliases.items():
            assert method_class(alias.upper()) == (method, implied)
            method(**implied)


def test_names_and_aliases_are_unique():
    spoken = [name.lower() for m in BUILT_IN for name in (m.info.name, *m.info.aliases)]
    assert len(spoken) == len(set(spoken))
    assert set(methods()) >= {m.info.name for m in BUILT_IN}


def test_unknown_method_offers_the_nearest():
    with pytest.raises(FedrecError, match="did you mean 'fedavg'"):
        method_class("fedavgg")


@pytest.mark.parametrize("method", BUILT_IN)
def test_methods_are_frozen_records_with_defaults(method):
    made = method()
    assert made == method()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rounds = 3
    assert made.info.summary
