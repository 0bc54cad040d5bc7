"""The kinds of `local` and `fedavg` for silos: several users around one model, trained on triples.

The setting is that of FedCIA's comparison (Han et al., SIGIR 2025): one epoch a round, Adam that remembers, and for
FedAvg a mean weighted by interactions (McMahan et al. 2017). Each silo of LightGCN convolves on its own graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.training.silo_method import silo_backbones
from fedrec.training.silo_training import own_models

BLOCK = "block"  # on the server: the block of every client


@dataclass(frozen=True)
class SiloLocal(fm.SiloMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="local",
        summary="no exchange: each silo alone",
        backbones=silo_backbones("mf", "mlp", "lightgcn", "gfcf"),
        scores_together=True,
    )

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        trainer = self.part(chunk).trainer
        return trainer.start(world, chunk, own_models(trainer, world, chunk.clients))

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        return self.part(chunk).trainer.train(state, chunk, round), {}

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        return self.part(chunk).trainer.scores(state, chunk, items)


@dataclass(frozen=True)
class SiloFedAvg(fm.SiloMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedavg",
        summary="interaction-weighted mean of item table and network",
        aliases={"fedlightgcn": {"backbone": "lightgcn"}},
        backbones=silo_backbones("mf", "mlp", "neumf", "lightgcn"),
        scores_together=True,
    )

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("user",))

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        """One model; with several blocks one for each, under `name@block`."""
        if not self.blocks:
            return self.trainer.init_model(world)
        server: fm.Tensors = {}
        for cohort in self.cohorts(world):
            model = self.parts[cohort.name].trainer.init_model(world)
            server |= {f"{name}@{cohort.name}": value for name, value in model.items()}
        sizes = torch.tensor([len(cohort.clients) for cohort in self.cohorts(world)])
        return server | {BLOCK: torch.repeat_interleave(torch.arange(len(sizes)), sizes)}

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        return self.part(chunk).trainer.start(world, chunk, {})

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        """The model of the block that these clients, who are all of one, belong to."""
        if not self.blocks:
            return fm.Down(shared=server)
        block = list(self.parts)[int(server[BLOCK][clients[0]])]
        ending = "@" + block
        return fm.Down(shared={name[: -len(ending)]: v for name, v in server.items() if name.endswith(ending)})

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        trained = self.part(chunk).trainer.train(_with_model(state, down, chunk), chunk, round)
        # By interactions and not by users: that is what the silo's steps were taken on.
        weight = torch.from_numpy(chunk.positives)
        sent = {name: trained.per_client[name] for name in down.shared}
        kept = {name: value for name, value in trained.per_client.items() if name not in sent}
        return fm.State(kept, trained.per_user), {
            name: fm.Mean(value, weight, by_cohort=bool(self.blocks)) for name, value in sent.items()
        }

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        return server | {name: ups[name] for name in server if name in ups}

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        return self.part(chunk).trainer.scores(_with_model(state, down, chunk), chunk, items)


def _with_model(state: fm.State, down: fm.Down, chunk: fm.Chunk) -> fm.State:
    """The state with a copy of the common model for every client."""
    return fm.State(state.per_client | fm.replicate(down.shared, len(chunk.clients)), state.per_user)
