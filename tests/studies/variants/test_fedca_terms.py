"""The terms of FedCA's weights, its variants' too: worked examples, and each function against the slow obvious way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedrec.federation.stack import Stack
from fedrec.methods.mixture import aggregation, fedca_terms
from fedrec.methods.mixture.aggregation import mix, square_distances
from fedrec_studies.variants import fedca
from fedrec_studies.variants.fedca import complementarity, composite_weights, first_scores, released_similarity


def tensor(values):
    return torch.from_numpy(np.array(values, dtype=np.float64))


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def close(found, expected, tolerance=1e-6):
    assert np.allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance), (found, expected)


def similarity(tables, mode, reference=None):
    return fedca_terms.similarity(tables) if mode == "paper" else released_similarity(tables, reference)


def represent(table, items, k, mode):
    """The picture of one client's rows; left-global: with an entry for every item there is."""
    picture = fedca.represent(table[None], items, np.array([len(items)]), k, mode)
    if mode not in fedca.LEFT:
        return picture[0]
    place = items if mode == "left-global" else torch.arange(len(items))
    return fedca.scatter(picture, place[None], len(table))[0]


# -- weights --

PI, S, C = tensor([[0.5, 0.3, 0.2]]), tensor([[1, 0.5, 0.2]]), tensor([[1, 0, 0.5]])


def eq5(w, pi, s, c, alpha, beta):
    return float(((w - pi) ** 2).sum() + alpha * ((w - s) ** 2).sum() - beta * (w * c).sum())


@pytest.mark.parametrize(
    ("variant", "expected", "objective"),
    [
        ("eq5", (0.655556, 0.222222, 0.122222), -0.149444),
        ("eq8", (0.816667, 0.166667, 0.016667), -0.089167),
        ("released", (0.923333, 0.023333, 0.053333), None),
    ],
)
def test_weights_example(variant, expected, objective):
    w = composite_weights(PI, S, C, 0.5, 0.4, variant)
    close(w, [expected])
    if objective is not None:
        assert eq5(w, PI, S, C, 0.5, 0.4) == pytest.approx(objective, abs=1e-6)


def test_released_is_eq8_with_the_factors_exchanged():
    close(composite_weights(PI, S, C, 0.5, 0.4, "released"), composite_weights(PI, S, C, 0.4, 1.0, "eq8"), 1e-12)


def problem(seed, n):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n)), rng.uniform(0, 1, n), rng.uniform(-1, 1, n)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0, 2), st.floats(0, 2))
def test_weights_minimise_what_they_say(seed, n, alpha, beta):
    pi, s, c = problem(seed, n)
    objectives = {
        "eq5": lambda w: ((w - pi) ** 2).sum() + alpha * ((w - s) ** 2).sum() - beta * (w * c).sum(),
        "eq8": lambda w: ((w - pi) ** 2).sum() - 2 * alpha * (w * s).sum() - beta * (w * c).sum(),
        "released": lambda w: (w**2).sum() - 2 * (w * (pi + alpha * c + beta * s)).sum(),
    }
    for variant, objective in objectives.items():
        w = composite_weights(tensor([pi]), tensor([s]), tensor([c]), alpha, beta, variant)[0].numpy()
        solved = minimize(
            objective,
            np.full(n, 1 / n),
            method="SLSQP",
            bounds=[(0, 1)] * n,
            tol=1e-12,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        )
        assert objective(w) <= solved.fun + 1e-7
        close(w, solved.x, 1e-3)


def test_eq8_is_at_least_as_concentrated_as_eq5():
    for seed in range(20):
        pi, s, c = (tensor([x]) for x in problem(seed, 12))
        flat, sharp = (composite_weights(pi, s, c, 0.7, 0.4, v) for v in ("eq5", "eq8"))
        assert float(sharp.square().sum()) >= float(flat.square().sum()) - 1e-12


def test_special_case_shares_alone():
    """FedAvg, the plain mean and, with the softmax of distances as shares, FedAtt with step 1."""
    distances = square_distances(random(5, 6, 2))[0].sqrt()
    for pi in (PI, tensor([[0.2] * 5]), torch.softmax(distances, 0)[None]):
        ignored = torch.zeros_like(pi)
        for variant in ("eq5", "eq8", "released"):
            close(composite_weights(pi, ignored, ignored, 0.0, 0.0, variant), pi, 1e-15)


def test_special_case_fedatt_step():
    """server - sum a_u (server - table_u) is the mixture by a."""
    server, tables = random(6, 2, seed=1), random(5, 6, 2)
    a = torch.softmax((server - tables).flatten(1).norm(dim=1), 0)
    step = server - (a[:, None, None] * (server - tables)).sum(0)
    weights = composite_weights(a[None], torch.zeros(1, 5), torch.zeros(1, 5), 0.0, 0.0, "eq5")
    close(mix(weights, tables)[0], step, 1e-12)


def test_special_case_pfedgraph():
    """lambda |w - pi|^2 - kappa.w with lambda 0.8 is eq8 with alpha 1 / (2 lambda), beta 0."""
    kappa = tensor([[1, 0.5, -0.25]])
    w = composite_weights(PI, kappa, torch.zeros(1, 3), 1 / 1.6, 0.0, "eq8")
    close(w, [[0.75625, 0.24375, 0]], 1e-12)


# -- similarity --

TABLES = tensor([[[2, 0], [0, 0], [-2, 0]], [[2, 0], [1, 0], [-3, 0]]])


def test_similarity_example():
    close(square_distances(TABLES), [[0, 2], [2, 0]], 1e-12)
    close(similarity(TABLES, "paper"), [[1, 1 / 3], [1 / 3, 1]], 1e-12)
    close(first_scores(TABLES), [[2, 0, -2], [2, 1, -3]], 1e-12)
    close(similarity(TABLES, "pca1-raw"), [[1, 0.414214], [0.414214, 1]])
    close(similarity(TABLES, "pca1", tensor([1, 0, -1])), [[1, 0.414214], [0.414214, 1]])


def test_opposite_signs_look_like_distance():
    """What a rule by the largest score would make of the example: a distance of sqrt(42)."""
    turned = tensor([[2, 0, -2], [-2, -1, 3]])
    assert 1 / (1 + float(square_distances(turned)[0, 1]) ** 0.5) == pytest.approx(0.133677, abs=1e-6)


def test_a_reference_undoes_a_turned_table():
    """A mirrored table has mirrored scores; towards a reference both point the same way."""
    table = random(9, 3)
    pair = torch.stack([table, table + 0.01 * random(9, 3, seed=1)])
    reference = first_scores(table[None])[0]
    for sign in (1, -1):
        assert torch.equal(similarity(pair, "pca1", sign * reference), torch.ones(2, 2, dtype=torch.float64))


def test_equal_tables_have_similarity_one():
    tables = random(1, 50, 8).repeat(3, 1, 1)
    for mode in ("paper", "pca1-raw"):
        close(similarity(tables, mode), np.ones((3, 3)), 1e-9)


def test_scores_are_those_of_the_first_singular_vector(monkeypatch):
    tables = random(5, 12, 3)
    found = first_scores(tables)
    for table, scores in zip(tables, found, strict=True):
        centred = table - table.mean(0)
        _, _, vt = torch.linalg.svd(centred, full_matrices=False)
        axis = vt[0] * torch.sign(vt[0, vt[0].abs().argmax()])
        close(scores, centred @ axis, 1e-9)
    monkeypatch.setattr(fedca, "NUMBERS", 40)
    close(first_scores(tables), found, 1e-12)
    order = torch.tensor([3, 0, 4, 1, 2])
    parts = Stack(np.arange(5), tuple(tables[order].split([2, 3])), order.argsort())
    close(first_scores(parts), found, 1e-12)


def test_released_similarity_rises_to_one():
    tables = random(1, 30, 4).repeat(2, 1, 1)
    tables[1, 0] += 0.02
    assert float(similarity(tables, "pca1-raw")[0, 1]) == 1.0
    assert float(similarity(tables, "paper")[0, 1]) < 1.0


# -- representations --


def table_with(rows):
    table = torch.zeros(4, 2, dtype=torch.float64)
    for item, row in rows.items():
        table[item] = tensor(row)
    return table


def test_left_example():
    first = table_with({0: [2, 0], 1: [0, 1]}), torch.tensor([0, 1, 2])
    second = table_with({1: [0, 1], 3: [3, 0]}), torch.tensor([1, 3])
    for mode, cos, sin in (("left-local", 0, 1), ("left-global", 0.707107, 0.707107)):
        pictures = torch.stack([represent(*client, 2, mode) for client in (first, second)])
        close(complementarity(pictures, mode, "cos"), [[1, cos], [cos, 1]])
        close(complementarity(pictures, mode, "sin"), [[0, sin], [sin, 0]])


def test_right_example():
    ours = tensor([[1, 0, 0], [0, 1, 0]])
    for second, greedy in ((0.6, 0.894427), (-0.6, 0.447214)):
        pictures = torch.stack([ours, tensor([[0, second, 0.8], [1, 0, 0]])])
        close(complementarity(pictures, "right-greedy")[0, 1], greedy)
        close(complementarity(pictures, "right-principal")[0, 1], 0.894427)


def test_raw_is_the_cosine_of_mean_rows():
    table = random(6, 3)
    items = (torch.tensor([0, 2]), torch.tensor([1, 2, 5]))
    pictures = torch.stack([represent(table, mine, 4, "raw") for mine in items])
    mean = [table[mine].mean(0) for mine in items]
    expected = torch.cosine_similarity(mean[0], mean[1], 0)
    close(complementarity(pictures, "raw")[0, 1], expected, 1e-12)
    close(complementarity(pictures, "raw", "sin")[0, 1], (1 - expected**2).sqrt(), 1e-9)


def test_left_vectors_are_where_their_items_are():
    table, items = random(8, 3), torch.tensor([1, 4, 5, 7])
    local, everywhere = (represent(table, items, 2, mode) for mode in ("left-local", "left-global"))
    assert torch.equal(local[:, :4], everywhere[:, items])
    assert int((local != 0).sum()) == int((everywhere != 0).sum()) == 8
    close(local @ local.T, np.eye(2), 1e-12)
    assert bool((local.gather(1, local.abs().argmax(1, keepdim=True)) > 0).all())


def test_right_vectors_are_the_principal_axes():
    table, items = random(8, 4), torch.tensor([1, 1, 4, 5, 7, 7, 0])
    axes = represent(table, items, 2, "right-greedy")
    values, vectors = np.linalg.eigh(np.cov(table[items].numpy().T))
    for axis, expected in zip(axes, vectors.T[::-1], strict=False):
        assert abs(float(axis @ torch.from_numpy(expected.copy()))) == pytest.approx(1, abs=1e-9)
    assert values[-1] > values[-2]


@pytest.mark.parametrize("mode", ["left-local", "left-global", "right-greedy", "right-principal"])
def test_missing_vectors_are_zero(mode):
    table = random(7, 5)
    table[3] = 2 * table[2]
    assert not represent(table, torch.tensor([], dtype=torch.int64), 4, mode).any()
    filled = represent(table, torch.tensor([2, 3]), 4, mode).any(1)
    assert filled.tolist() == [True, False, False, False]
    same = represent(table, torch.tensor([1] * 7), 4, "right-greedy")
    assert not same.any(), "rows that are all equal have no axis"


@pytest.mark.parametrize("mode", ["left-local", "right-greedy", "right-principal"])
def test_a_missing_vector_is_at_a_right_angle(mode):
    full = torch.eye(2, 3, dtype=torch.float64)
    half = full * tensor([[1], [0]])
    phi = math.pi / 4  # the mean of 0 and a right angle
    found = complementarity(torch.stack([full, half]), mode)
    close(found, [[1, math.cos(phi)], [math.cos(phi), 1]], 1e-9)


def greedy_by_hand(left, right):
    cosine = {(a, b): float(x @ y / (x.norm() * y.norm())) for a, x in enumerate(left) for b, y in enumerate(right)}
    angles = []
    while cosine:
        row, column = max(cosine, key=lambda pair: (cosine[pair], -pair[0], -pair[1]))
        angles.append(math.acos(max(-1, min(1, cosine[row, column]))))
        cosine = {pair: value for pair, value in cosine.items() if pair[0] != row and pair[1] != column}
    return sum(angles) / len(angles)


def test_greedy_pairs_as_by_hand(monkeypatch):
    pictures = random(6, 4, 5)
    expected = [[math.cos(greedy_by_hand(u, v)) if u is not v else 1 for v in pictures] for u in pictures]
    expected = np.array(expected)
    np.fill_diagonal(expected, 1)
    close(complementarity(pictures, "right-greedy"), expected, 1e-9)
    monkeypatch.setattr(aggregation, "BLOCK", 6 * 16 * 2)  # two clients at a time
    close(complementarity(pictures, "right-greedy"), expected, 1e-9)


def test_ties_go_to_the_first_row_then_the_first_column():
    tie = tensor([[0.5, 0.5], [0.5, -1.0]])
    assert fedca_terms.greedy_pairs(tie).tolist() == [0.5, -1.0]
    assert fedca_terms.greedy_pairs(tie.flip(1)).tolist() == [0.5, 0.5]


def test_principal_angles_ignore_the_choice_of_axes():
    pictures = torch.stack([torch.linalg.qr(x).Q.T for x in random(3, 6, 2)])
    turn = torch.linalg.qr(random(2, 2)).Q
    turned = torch.stack([pictures[0], turn @ pictures[1], -pictures[2]])
    close(complementarity(pictures, "right-principal"), complementarity(turned, "right-principal"), 1e-9)
    assert not torch.allclose(complementarity(pictures, "right-greedy"), complementarity(turned, "right-greedy"))


def test_noise_never_leaves_the_domain_of_the_angle():
    pictures = 3 * random(4, 2, 5)
    for mode in ("left-local", "left-global", "right-greedy", "right-principal", "raw"):
        for outer in ("cos", "sin"):
            assert bool(complementarity(pictures[:, :1] if mode == "raw" else pictures, mode, outer).isfinite().all())


def test_the_method_has_the_complementarity_of_its_paper():
    pictures = random(5, 3, 4)
    assert torch.equal(fedca_terms.complementarity(pictures), complementarity(pictures, "right-greedy", "cos"))
