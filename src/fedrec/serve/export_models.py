"""Find the form in which a model can leave fedrec: the vectors of an inner product, or a sequence model's weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models import SASRec
from fedrec.serve import Recommender
from fedrec.serve.item_space import Factors, find_factors, reproduces_scores


@dataclass(frozen=True)
class SequenceModel:
    """SASRec: the table that reads and scores, and the weights of its blocks."""

    model: SASRec
    item: Tensor
    dense: dict[str, Tensor]

    def scores(self, history: np.ndarray) -> Tensor:
        """Score all items after a history from the earliest to the latest item."""
        rows = self.item[torch.from_numpy(history[-self.model.length :])]
        return self.model.encode(rows, self.dense)[-1] @ self.item.T


def find_exportable(recommender: Recommender) -> Factors | SequenceModel:
    """Find the form in which a model can be written; raise an error for methods that score in another way."""
    exportable = find_factors(recommender.chosen) or _find_sequence_model(recommender)
    if exportable is None:
        method = recommender.run.method
        backbone = getattr(method, "backbone", None)
        name = f"{method.info.name} with backbone {backbone}" if backbone else method.info.name
        raise FedrecError(
            f"{name} can be served but not exported: only models whose scores are inner products of "
            "user and item vectors, and sasrec, can"
        )
    return exportable


def _find_sequence_model(recommender: Recommender) -> SequenceModel | None:
    run, data = recommender.run, recommender.run.simulator.data
    model = getattr(run.method, "model", None)
    if not isinstance(model, SASRec) or len(run.simulator.cohorts) != 1:
        return None
    server, own = run.simulator.server, run.simulator.cohorts[0].state.per_client
    tensors = server if "item" in server else {name: value[0] for name, value in own.items()}
    if not run.method.info.centralised and tensors is not server:
        return None  # every client has a model of its own
    weights = {name: tensors[name].float().cpu() for name in ("item", *model.dense_shapes()) if name in tensors}
    if len(weights) != 1 + len(model.dense_shapes()):
        return None
    exportable = SequenceModel(model, weights.pop("item"), weights)

    def score(user: int) -> Tensor | None:
        place = int(data.place_of[user])
        history = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        return exportable.scores(history) if len(history) else None

    return exportable if reproduces_scores(recommender.chosen, score) else None
