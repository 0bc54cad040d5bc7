"""Inheritance stays flat: what methods share is a member or a function."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedrec.federation.contract import Method
from fedrec.methods import BUILT_IN


def below(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        yield sub
        yield from below(sub)


def bases(kind: type) -> list[type]:
    return [base for base in kind.__bases__ if issubclass(base, Method)]


def depth(kind: type) -> int:
    return 0 if kind is Method else 1 + max(depth(base) for base in bases(kind))


CLASSES = sorted({kind for kind in below(Method) if kind.__module__.startswith("fedrec.")}, key=lambda k: k.__name__)


def test_all_methods_are_looked_at():
    assert set(BUILT_IN) <= set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_method_has_one_base(kind):
    assert len(bases(kind)) == 1


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_only_a_special_case_of_another_method_stands_below_it(kind):
    """A base with the fields of a kind of training, a method; and a method that is another one with settings of its
    own, which its docstring says."""
    assert depth(kind) <= 3
    if depth(kind) == 3:
        (general,) = bases(kind)
        assert general.info.name, f"{general.__name__} is no method"
        assert general.__name__ in kind.__doc__.split("(")[0], f"which {general.__name__} is {kind.__name__}?"
