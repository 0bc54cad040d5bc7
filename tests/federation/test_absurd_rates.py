"""At rates that nobody means every method ends in one line, or stays finite: on the processor, and as on a GPU.

`tests/gpu` has the same on a GPU.
"""

from __future__ import annotations

import pytest
import torch

from federation.absurd import DIVERGED, NAMES, cases_of, steps, usual_cases
from federation.accelerator import as_on_one
from fedrec.methods.mixture.aggregation import simplex_project


@pytest.mark.parametrize("name", NAMES)
def test_a_run_ends_in_one_line_or_stays_finite(name: str) -> None:
    ends = [case.ends("cpu") for case in usual_cases(name)]
    assert (DIVERGED in ends) == steps(name)


@pytest.mark.parametrize("name", NAMES)
def test_it_does_where_figures_are_read_later(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server and the clients then work with what is not finite, and must not make an index of it."""
    as_on_one(monkeypatch)
    ends = [case.ends("cpu") for case in cases_of(name)]
    assert (DIVERGED in ends) == steps(name)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_has_no_projection(broken: float) -> None:
    """And the rows beside it have theirs."""
    points = torch.tensor([[0.5, 2.0, 0.1], [broken, 0.2, 0.1], [broken] * 3])
    found = simplex_project(points)
    assert found[0].tolist() == [0.0, 1.0, 0.0]
    assert not found[2].isfinite().any()
    assert broken == -float("inf") or not found[1].isfinite().all()
