"""k-means: found groups, quality against another implementation, agreement of clusterings by hand."""

from __future__ import annotations

import pytest
import torch

from fedrec.methods.cluster.kmeans import adjusted_rand, kmeans, random_labels


def test_separate_groups_are_found():
    generator = torch.Generator().manual_seed(0)
    centre = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    truth = torch.arange(90) % 3
    points = centre[truth] + 0.1 * torch.randn(90, 2, generator=generator)
    labels, centres = kmeans(points, 3, key=1)
    assert adjusted_rand(labels, truth) == 1
    assert torch.allclose(centres.sort(0).values, centre.double().sort(0).values, atol=0.2)
    again, _ = kmeans(points, 3, key=2, centres=centres)
    assert torch.equal(again, labels), "from the centres nothing moves"


def test_as_good_as_another_implementation():
    cluster = pytest.importorskip("sklearn.cluster")
    points = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    labels, centres = kmeans(points, 12, key=5)
    mine = float((points - centres[labels]).square().sum())
    theirs = cluster.KMeans(12, n_init=10, random_state=0).fit(points.numpy()).inertia_
    assert mine <= 1.03 * theirs


def test_more_clusters_than_points():
    labels, _ = kmeans(torch.tensor([[0.0], [1.0], [5.0]]), 8, key=3)
    assert len(labels.unique()) == 3


def test_agreement_by_hand():
    left, right = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2])
    assert adjusted_rand(left, right) == pytest.approx(4 / 7)
    assert adjusted_rand(left, 1 - left) == 1
    assert adjusted_rand(left, torch.tensor([0, 1, 0, 1])) == pytest.approx(-0.5)


def test_random_labels_use_all_clusters_evenly():
    labels = random_labels(20_000, 8, key=9)
    assert torch.equal(labels, random_labels(20_000, 8, key=9))
    counts = torch.bincount(labels, minlength=8)
    assert len(counts) == 8
    assert (counts - 2500).abs().max() < 250
