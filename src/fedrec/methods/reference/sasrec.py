"""Centralised SASRec: one self-attentive model of everybody's sequences, the reference for what order is worth.

Kang & McAuley, ICDM 2018. One round is one epoch over all users' sequences, 128 at a time, negatives redrawn. Adam's
moments last from round to round. A user who was not in training needs nothing but a list of items.

The paper's loss sets the next item against one drawn item. With `loss=ce` it is one among all items, by softmax
cross-entropy, which ranks far better (Klenitskiy & Vasilev, RecSys 2023). With `averaging` a mean of the models after
each epoch scores, in which later ones count more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.models.sasrec import BlockKind
from fedrec.training.averaging import MEAN, mean_with
from fedrec.training.descent import Descent
from fedrec.training.sequence_training import Products
from fedrec.training.sequences import Crop, SequenceLoss
from fedrec.training.softmax_training import SampledSoftmaxDescent, SoftmaxDescent

MOMENTS = ("first.", "second.")  # marks of Adam's moments in the state


@dataclass(frozen=True)
class CentralSASRec(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="sasrec",
        summary="self-attention over sequences",
        paper="Kang & McAuley, ICDM 2018",
        backbones=fm.usual_backbones("sasrec"),
        centralised=True,
        new_users=0,
    )
    models = "own"
    working_tables = 2

    backbone: str = "sasrec"
    rounds: fm.Count = 200
    dim: fm.Count = 50
    length: int = 200
    table_dtype: fm.TableDtype = "full"
    blocks: int = 2
    heads: int = 1
    norm_first: bool = False
    """Whether a block normalises before attention instead of after it."""
    block_kind: BlockKind = "sasrec"
    crop: Crop = "last"
    loss: SequenceLoss = "bce"  # type: ignore[assignment]
    """bce on single items; ce: the next item among all items, by softmax."""
    negatives: fm.Count = 1
    """Drawn items at each position, at most as many as the protocol draws; ce needs none."""
    sampled: int = 0
    init_std: float = 0.03  # of the item table: what Xavier's rule gives for two thousand items
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
    weight_decay: float = 0.0
    """AdamW's decay, beside the gradient, of all weights that a round meets."""
    averaging: Annotated[float, "[0, 1)"] = 0.0
    batch: fm.Count = 128  # sequences
    products: Products = "full"
    """Precision of matrix products in training; bfloat16 is faster where the processor has it, and less exact."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("item", *self.model.dense_shapes()))

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        among = SampledSoftmaxDescent if self.sampled else SoftmaxDescent
        softmax = self.loss == "ce"
        return fm.LocalTrainer(
            self,
            # As in the authors' code, with whose figures a reference has to be comparable.
            moments=(0.9, 0.98),
            shrink=self.weight_decay,
            descent=among if softmax else None,
            slots=self.sampled if softmax else self.negatives,
            products=self.products,
            crop=self.crop,
        )

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        if self.products == "bfloat16" and world.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise fm.FedrecError("products=bfloat16: this GPU does not have it; leave products=full")
        state = super().init_clients(world, chunk)
        # Moments are kept in full also where tables are stored in half: squares of small gradients would vanish.
        model = self.trainer.widen(state.per_client, world)
        for mark in MOMENTS:
            state.per_client |= {mark + name: torch.zeros_like(value) for name, value in model.items()}
        state.per_client |= {MEAN + name: value.clone() for name, value in model.items() if self.averaging}
        state.per_client["steps"] = torch.zeros(len(chunk.clients), dtype=torch.int64, device=world.device)
        return state

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        # Copies, because training is in place and the former state may be the best one so far.
        held = {name: value.clone() for name, value in self.trainer.widen(state.per_client, chunk.world).items()}
        dense = {name: held[name] for name in self.model.dense_shapes()}
        descent = self.trainer.descent(self.trainer, chunk, round, state.per_user["user"], held["item"], dense)
        places = self._resume(descent, held)
        fitted = descent.run()
        assert isinstance(fitted.table, Tensor)
        for name, at in places.items():
            for mark, moment in zip(MOMENTS, descent.groups[name].moments or (), strict=True):
                held[mark + name.removeprefix("dense.")][at] = moment
        held["steps"][descent.samples.order] = descent.step_count
        model = {"item": fitted.table, **fitted.dense}
        mean = {
            MEAN + name: mean_with(held[MEAN + name], value, round + 1, self.averaging)
            for name, value in model.items()
            if self.averaging
        }
        return fm.State(held | mean | self.trainer.narrow(model), {"user": fitted.user}), {}

    def _resume(self, descent: Descent, held: fm.Tensors) -> dict[str, tuple[Tensor, ...]]:
        """Hand over the moments, those of rows that this round does not draw aside; and say where they belong."""
        s = descent.samples
        places: dict[str, tuple[Tensor, ...]] = {
            name: (s.order,) for name in descent.groups if name.startswith("dense.")
        }
        places["item"] = (descent.clients, s.item)
        for name, at in places.items():
            first, second = (held[mark + name.removeprefix("dense.")][at] for mark in MOMENTS)
            descent.groups[name].moments = (first, second)
        # Adam's correction goes on from before: starting again at 1, it would enlarge old moments tenfold and more.
        descent.step_count += held["steps"][s.order]
        return places

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        held, mark = self.trainer.widen(state.per_client, chunk.world), MEAN if self.averaging else ""
        own = {name: held[mark + name] for name in ("item", *self.model.dense_shapes())}
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)
