"""The worked example: four users, five items, one of which nobody met."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedrec.models import gfcf
from fedrec.models.gfcf import GFCF, leading_singular, round_scores

A = sp.csr_matrix(np.array([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0], [1, 0, 0, 1, 0]], dtype=np.float64))


def test_linear_part():
    normal, _ = GFCF().normalise(A)
    assert np.linalg.svd(normal.toarray(), compute_uv=False) == pytest.approx([1, 0.5, 0.5, 0.5])
    linear = (normal.T @ normal).toarray()
    assert np.diag(linear) == pytest.approx([0.5, 0.416667, 0.416667, 0.416667, 0], abs=1e-6)
    assert linear[0, 1:4] == pytest.approx([0.204124] * 3, abs=1e-6)
    assert linear[[1, 1, 2], [2, 3, 3]] == pytest.approx([0.166667] * 3, abs=1e-6)
    assert not linear[4].any()
    assert not linear[:, 4].any()


def test_whole_filter():
    mixed = GFCF(1, 0.3).fit(A).dense()
    assert mixed[0] == pytest.approx([0.6, 0.270791, 0.270791, 0.270791, 0], abs=1e-6)
    assert mixed[1] == pytest.approx([0.304124, 0.483333, 0.233333, 0.233333, 0], abs=1e-6)
    ideal = (mixed - GFCF(1, 0.0).fit(A).dense()) / 0.3
    assert ideal[:4] == pytest.approx(np.tile([0.333333, 0.222222, 0.222222, 0.222222, 0], (4, 1)), abs=1e-6)
    assert not ideal[4].any()
    full = np.diag(GFCF(4, 0.3).fit(A).dense())
    assert full == pytest.approx([0.8, 0.716667, 0.716667, 0.716667, 0], abs=1e-6)


def test_scores_of_all_users_in_one_place():
    scores = round_scores(GFCF(1, 0.3).fit(A).apply(A))
    expected = [
        [0.904124, 0.754124, 0.504124, 0.504124, 0],
        [0.904124, 0.504124, 0.754124, 0.504124, 0],
        [0.912372, 0.95, 0.95, 0.95, 0],
        [0.904124, 0.504124, 0.504124, 0.754124, 0],
    ]
    assert scores == pytest.approx(np.array(expected), abs=1e-6)
    unseen = np.where(A.toarray() > 0, -np.inf, scores)
    assert unseen[2].argmax() == 0
    assert unseen[0, 2] == unseen[0, 3], "a tie to the last bit, which the lower number wins"


@pytest.mark.parametrize(("first", "frequencies"), [("two", 1), ("last", 1)])
def test_silos(first, frequencies):
    rows = A[:2] if first == "two" else A[2:]
    found = GFCF(frequencies, 0.3).fit(rows).dense()
    expected = {
        "two": [[0.65, 0.428553, 0.428553, 0, 0], [0.503553, 0.575, 0.075, 0, 0], [0.503553, 0.075, 0.575, 0, 0]],
        "last": [
            [0.56, 0.06, 0.06, 0.473553, 0],
            [0.06, 0.393333, 0.393333, 0.355702, 0],
            [0.06, 0.393333, 0.393333, 0.355702, 0],
            [0.413553, 0.295702, 0.295702, 0.536667, 0],
        ],
    }[first]
    assert found[: len(expected)] == pytest.approx(np.array(expected), abs=1e-6)


def test_more_frequencies_than_rank_change_nothing():
    """Vectors beyond the rank would be arbitrary; two users have two."""
    few, many = (GFCF(s, 0.3).fit(A[:2]).dense() for s in (2, 32))
    assert np.array_equal(few, many)
    assert GFCF(32).fit(A[:2]).vectors.shape == (5, 2)
    assert GFCF(32).fit(sp.csr_matrix((2, 5))).dense().sum() == 0


def test_both_ways_to_singular_vectors(monkeypatch):
    wide = sp.random(30, 50, 0.3, format="csr", random_state=0)
    expected = np.linalg.svd(wide.toarray(), compute_uv=False)
    for matrix in (wide, sp.csr_matrix(wide.T)):
        for limit in (2_000, 5):
            monkeypatch.setattr(gfcf, "DIRECT", limit)
            vectors, values = leading_singular(matrix, 6)
            assert values == pytest.approx(expected[:6])
            assert np.linalg.norm(matrix @ vectors, axis=0) == pytest.approx(expected[:6])
            assert vectors.T @ vectors == pytest.approx(np.eye(6), abs=1e-9)
