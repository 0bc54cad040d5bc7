"""A third opinion: another library on rankings without ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.evaluation import Targets, evaluate

ranx = pytest.importorskip("ranx", reason="ranx, the independent reference, is not installed")

N_USERS, N_ITEMS, KS = 60, 90, (1, 5, 10, 20)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning:ranx")  # it compiles with unsafe casts, and takes most of a minute to
@pytest.mark.parametrize("most", [1, 12])
def test_ranx_agrees(most: int) -> None:
    rng = np.random.default_rng(most)
    scores = np.argsort(rng.random((N_USERS, N_ITEMS)), 1).astype(np.float64)
    held_out = {user: rng.permutation(N_ITEMS)[: rng.integers(1, most + 1)] for user in range(N_USERS)}
    pairs = np.concatenate([np.full(len(items), user) for user, items in held_out.items()])
    targets = Targets.build((pairs, np.concatenate(list(held_out.values()))), [], N_ITEMS)
    names = ("recall", "precision", "ndcg", "mrr", "map")
    found = evaluate(torch.from_numpy(scores), targets, ks=KS, metrics=names).mean()
    qrels = ranx.Qrels({f"u{user}": {f"i{item}": 1 for item in items} for user, items in held_out.items()})
    run = ranx.Run(
        {f"u{user}": {f"i{item}": float(scores[user, item]) for item in range(N_ITEMS)} for user in held_out}
    )
    for k in KS:
        theirs = ranx.evaluate(qrels, run, [f"{name}@{k}" for name in names])
        for name in ("recall", "precision", "ndcg", "mrr"):
            assert found[f"{name}@{k}"] == pytest.approx(theirs[f"{name}@{k}"], abs=1e-12), (name, k)
        if most == 1 or k >= most:  # ranx divides by all held-out items, we by those that fit into the list
            assert found[f"map@{k}"] == pytest.approx(theirs[f"map@{k}"], abs=1e-12), k
