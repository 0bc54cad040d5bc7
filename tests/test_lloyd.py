"""The one k-means: pieces change nothing, empty clusters are filled on request, seeds spread; and the one hash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedrec.models import lloyd as module
from fedrec.models.lloyd import lloyd, spread_seeds

SOURCE = Path(module.__file__).parents[1]


@pytest.fixture
def points() -> torch.Tensor:
    return torch.randn(200, 3, generator=torch.Generator().manual_seed(4))


def test_points_handled_in_pieces_give_the_same_clusters(points: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = points[:12].reshape(2, 6, 3)
    labels, centres = lloyd(points, seeds)
    monkeypatch.setattr(module, "CELLS", 12 * 7)  # seven points at a time, the last piece shorter
    again, others = lloyd(points, seeds)
    assert torch.equal(labels, again)
    torch.testing.assert_close(centres, others)


@pytest.mark.parametrize("fill_empty", [False, True])
def test_a_centre_without_points_stays_or_takes_the_farthest(fill_empty: bool) -> None:
    line = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    labels, centres = lloyd(line, torch.tensor([[[1.0], [500.0]]]), tolerance=0.0, fill_empty=fill_empty)
    assert labels.tolist() == ([0, 0, 0, 1] if fill_empty else [0, 0, 0, 0])
    assert centres.ravel().tolist() == ([1.0, 9.0] if fill_empty else [3.0, 500.0])


@pytest.mark.parametrize("fill_empty", [False, True])
def test_steps_after_the_end_change_nothing(
    points: torch.Tensor, fill_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator, which is not asked after every step whether it was the last."""
    seeds = torch.cat([points[:11].reshape(1, 11, 3), torch.full((1, 1, 3), 99.0)], 1)  # nobody is near the last one
    labels, centres = lloyd(points, seeds, tolerance=0.05, fill_empty=fill_empty)
    monkeypatch.setattr(module, "_between", lambda device: module.ASKED)
    again, others = lloyd(points, seeds, tolerance=0.05, fill_empty=fill_empty)
    assert torch.equal(labels, again)
    assert torch.equal(centres, others)


def test_no_cluster_stays_empty_among_equal_points() -> None:
    labels, _ = lloyd(torch.zeros(5, 2), torch.zeros(1, 5, 2), tolerance=0.0, fill_empty=True)
    assert sorted(labels.tolist()) == [0, 1, 2, 3, 4]


def test_the_next_seed_is_never_a_point_that_is_one_already(points: torch.Tensor) -> None:
    few = points[:6]
    draws = torch.rand(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seeds in spread_seeds(few, draws):
        assert len(seeds.unique(dim=0)) == 6


def test_the_constants_of_the_hash_stand_in_one_file() -> None:
    holders = [path.name for path in SOURCE.rglob("*.py") if "9E3779B97F4A7C15" in path.read_text().upper()]
    assert holders == ["splitmix.py"]
