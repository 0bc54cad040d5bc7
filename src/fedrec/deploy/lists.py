"""Recommendations on a node, from its own state and what the server offered last: nothing is asked of anybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedrec.deploy.node import NodeHost
from fedrec.errors import FedrecError
from fedrec.evaluation import top_k
from fedrec.recommend import Recommendation


def recommend(folder: Path, user: str, k: int = 10) -> list[Recommendation]:
    """The list of one of this node's users, by original id, without items that the user has met."""
    host = NodeHost(folder)
    _, shard, side, tensors, offer = host.latest()
    side.restore(tensors)
    prepared, step = shard.prepared, offer.score
    assert step is not None
    ids = prepared.source.user_ids
    found = np.flatnonzero(ids.astype(str) == user.strip())
    if not len(found):
        raise FedrecError(f"user '{user}' is not among this node's {len(ids):,} users (their ids look like "
                          f"{', '.join(map(str, ids[:3]))})")  # fmt: skip
    place, items = int(found[0]), np.arange(side.world.items) if step.items is None else step.items
    if not 1 <= k <= len(items):
        raise FedrecError(f"k = {k} must lie between 1 and the {len(items)} items of the catalogue")
    known = shard.known(side.data)["test"]
    split = prepared.split
    parts = [part for part in (split.train, split.valid, split.test, prepared.dropped) if part is not None]
    met = np.concatenate([part.item[part.user == place] for part in parts])
    seen = np.flatnonzero(np.isin(items, met))
    for users, scores in side.scores(torch.from_numpy(items).to(side.world.device), step.delivered, known):
        here = np.flatnonzero(shard.local(users) == place)
        if len(here):
            row = scores[torch.from_numpy(here)]
            best = top_k(row, np.array([0, len(seen)]), seen, k)[0]
            return [Recommendation(user, prepared.source.item_ids[items[item]], rank, float(row[0, item]))
                    for rank, item in enumerate(best.tolist(), 1) if item >= 0]  # fmt: skip
    raise FedrecError(f"user '{user}' has no client on this node")
