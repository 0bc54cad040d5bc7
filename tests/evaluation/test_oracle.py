"""A third opinion: another library on rankings without ties."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fedrec.evaluation import Targets, evaluate

N_USERS, N_ITEMS, KS = 60, 90, (1, 5, 10, 20)
NAMES = ("recall", "precision", "ndcg", "mrr", "map")
RANX = """
import json, sys
import ranx

held_out, scores, metrics = json.load(sys.stdin)
found = ranx.evaluate(ranx.Qrels(held_out), ranx.Run(scores), metrics)
print(json.dumps({name: float(value) for name, value in found.items()}))
"""


def of_ranx(held_out: dict[int, np.ndarray], scores: np.ndarray) -> dict[str, float]:
    """In a process in which nothing is compiled: that would take ranx most of a minute."""
    liked = {f"u{user}": {f"i{item}": 1 for item in items} for user, items in held_out.items()}
    scored = {f"u{user}": {f"i{item}": float(scores[user, item]) for item in range(N_ITEMS)} for user in held_out}
    asked = json.dumps([liked, scored, [f"{name}@{k}" for name in NAMES for k in KS]])
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", RANX], input=asked, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(find_spec("ranx") is None, reason="ranx, the independent reference, is not installed")
@pytest.mark.parametrize("most", [1, 12])
def test_ranx_agrees(most: int) -> None:
    rng = np.random.default_rng(most)
    scores = np.argsort(rng.random((N_USERS, N_ITEMS)), 1).astype(np.float64)
    held_out = {user: rng.permutation(N_ITEMS)[: rng.integers(1, most + 1)] for user in range(N_USERS)}
    pairs = np.concatenate([np.full(len(items), user) for user, items in held_out.items()])
    targets = Targets.build((pairs, np.concatenate(list(held_out.values()))), [], N_ITEMS)
    found = evaluate(torch.from_numpy(scores), targets, ks=KS, metrics=NAMES).mean()
    theirs = of_ranx(held_out, scores)
    for k in KS:
        for name in ("recall", "precision", "ndcg", "mrr"):
            assert found[f"{name}@{k}"] == pytest.approx(theirs[f"{name}@{k}"], abs=1e-12), (name, k)
        if most == 1 or k >= most:  # ranx divides by all held-out items, we by those that fit into the list
            assert found[f"map@{k}"] == pytest.approx(theirs[f"map@{k}"], abs=1e-12), k
