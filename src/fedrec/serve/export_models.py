"""What of a model leaves fedrec: the vectors of an inner product, or a sequence model with its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models import SASRec
from fedrec.serve import Recommender
from fedrec.serve.item_space import CLOSE, Factors, factors

CHECKED = 8  # users whose scores the exported weights must give again


@dataclass(frozen=True)
class SequenceModel:
    """SASRec: the table that reads and scores, and the weights of its blocks."""

    model: SASRec
    item: Tensor
    dense: dict[str, Tensor]

    def scores(self, history: np.ndarray) -> Tensor:
        """Of all items, after a history from the earliest to the latest item."""
        rows = self.item[torch.from_numpy(history[-self.model.length :])]
        return self.model.encode(rows, self.dense)[-1] @ self.item.T


def exportable(recommender: Recommender) -> Factors | SequenceModel:
    """The model in a form that can be written down; an error, by name, for methods that score in another way."""
    found = factors(recommender.chosen) or _sequence_model(recommender)
    if found is None:
        method = recommender.run.method
        backbone = getattr(method, "backbone", None)
        name = f"{method.info.name} with backbone {backbone}" if backbone else method.info.name
        raise FedrecError(
            f"{name} can be served but not exported: only models whose scores are inner products of "
            "user and item vectors, and sasrec, can"
        )
    return found


def _sequence_model(recommender: Recommender) -> SequenceModel | None:
    run = recommender.run
    model = getattr(run.method, "model", None)
    if not isinstance(model, SASRec) or len(run.simulator.cohorts) != 1:
        return None
    server, own = run.simulator.server, run.simulator.cohorts[0].state.per_client
    held = server if "item" in server else {name: value[0] for name, value in own.items()}
    if not run.method.info.centralised and held is not server:
        return None
    weights = {name: held[name].float().cpu() for name in ("item", *model.dense_shapes()) if name in held}
    if len(weights) != 1 + len(model.dense_shapes()):
        return None
    found = SequenceModel(model, weights.pop("item"), weights)
    return found if _gives_the_same(recommender, found) else None


def _gives_the_same(recommender: Recommender, found: SequenceModel) -> bool:
    """Whether some users' scores are those of the run: a method may keep such weights and score otherwise."""
    run, data = recommender.run, recommender.run.simulator.data
    items = torch.arange(run.world.items, device=run.world.device)
    for user in data.users[:: max(1, len(data.users) // CHECKED)][:CHECKED].tolist():
        place = int(data.place_of[user])
        history = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        wanted = run.simulator.scores_of(user, recommender.round, items)[0].float().cpu()
        if len(history) and not torch.allclose(found.scores(history), wanted, atol=CLOSE, rtol=CLOSE):
            return False
    return True
