"""A warm start: the state of a finished model carried over to new data, which may have more users and items."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.checkpoint import tensors_of
from fedrec.experiment.driver import Run
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Tensors, World

Shape = tuple[int, ...]
ITEMS, CLIENTS = "items", "clients"


@dataclass(frozen=True)
class Pairing:
    """Where what both have stands in the new data, and where it stood in the old."""

    new: np.ndarray
    old: np.ndarray

    @staticmethod
    def between(new: np.ndarray, old: np.ndarray) -> Pairing:
        """By id. Numbers and the same numbers written as text are one id: a single word turns a column into text."""
        # Compared as text, since a single word in a column of numbers makes all of them text.
        _, here, there = np.intersect1d(new.astype(str), old.astype(str), return_indices=True)
        return Pairing(here, there)


@dataclass(frozen=True)
class Carried:
    """How much of the new data the old model knew."""

    users: int
    items: int


def require_warm_start(run: Run) -> None:
    """Refuse what a warm start would do wrong, by name."""
    name = run.method.info.name
    if run.method.disclosure.attributes != "none":
        raise FedrecError(
            f"{name} learns from attributes, whose columns new items change, so it cannot continue from "
            "an earlier model; fit it anew without --from"
        )
    if run.plan.claims_epsilon:
        raise FedrecError(
            f"the epsilon of {name} holds for its own rounds, and more of them would spend more; "
            "fit it anew without --from"
        )
    if len(run.simulator.cohorts) != 1:
        raise FedrecError(
            f"{name} has clients of several architectures and cannot continue from an earlier model; "
            "fit it anew without --from"
        )


def carry_over(old: Run, new: Run) -> Carried:
    """Give users and items that both runs know the state they had; all others keep their fresh start."""
    require_warm_start(new)
    users = Pairing.between(*(run.prepared.source.user_ids[run.simulator.data.users] for run in (new, old)))
    items = Pairing.between(*(run.prepared.source.item_ids[: run.world.items] for run in (new, old)))
    clients = _clients(old, new, users)
    # Sizes alone may coincide, so axes are told by what makes them grow.
    growing, before = _growing_axes(new), tensors_of(old.simulator)
    for name, value in tensors_of(new.simulator).items():
        leading = {"client": clients, "user": users}.get(name.split(".")[0])
        pairs: list[Pairing | None] = [{ITEMS: items, CLIENTS: clients}.get(kind) for kind in growing[name]]
        if leading is not None:
            pairs[0] = leading
        # A tensor with other axes belongs to another model and keeps its fresh start.
        if name in before and before[name].dim() == value.dim():
            _copy(value, before[name], pairs)
    return Carried(len(users.new), len(items.new))


def _clients(old: Run, new: Run, users: Pairing) -> Pairing:
    if old.simulator.data.single and new.simulator.data.single:
        return users
    if old.world.clients != new.world.clients:
        raise FedrecError(
            f"the earlier model has {old.world.clients:,} clients and the new one {new.world.clients:,}; "
            "fit it anew without --from"
        )
    everyone = np.arange(new.world.clients)
    return Pairing(everyone, everyone)


def _copy(new: Tensor, old: Tensor, pairs: list[Pairing | None]) -> None:
    """In place. An axis of neither clients nor items is copied as far as both go, such as one entry for each round."""
    index: tuple[list[Tensor], list[Tensor]] = ([], [])
    for axis, pair in enumerate(pairs):
        both = min(new.shape[axis], old.shape[axis])
        found = Pairing(np.arange(both), np.arange(both)) if pair is None else pair
        for side, places in zip(index, (found.new, found.old), strict=True):
            shape = [1] * new.dim()
            shape[axis] = -1
            side.append(torch.from_numpy(places.astype(np.int64)).to(new.device).view(shape))
    if index[0]:
        # Cast to the new type, which the new run's settings decide.
        new[tuple(index[0])] = old[tuple(index[1])].to(new.dtype)
    else:
        new.copy_(old)


def _growing_axes(run: Run) -> dict[str, list[str]]:
    """For every tensor of a run and every axis of it, whether it grows with the items or with the clients.

    Found by making the same state for one item more and for one client more: sizes alone may coincide.
    """
    world = run.world
    usual = _shapes(run, world)
    more = {
        ITEMS: _shapes(run, replace(world, items=world.items + 1)),
        CLIENTS: _shapes(run, replace(world, clients=world.clients + 1)),
    }

    def kind_of(name: str, axis: int) -> str:
        return next((kind for kind in more if more[kind][name][axis] != usual[name][axis]), "")

    return {name: [kind_of(name, axis) for axis in range(len(shape))] for name, shape in usual.items()}


def _shapes(run: Run, world: World) -> dict[str, Shape]:
    """Of the server's tensors, and of the state of a single client with a single user."""
    server: Tensors = run.method.init_server(world)
    one = np.zeros(1, dtype=np.int64)
    data = ClientData.build(world, one, one, users=one, client_ptr=np.array([0, 1]), negatives=1)
    state = run.method.init_clients(world, data.chunk(one))
    found = {f"server.{name}": value for name, value in server.items()}
    cohort = run.simulator.cohorts[0].cohort.name
    found |= {f"client.{cohort}.{name}": value for name, value in state.per_client.items()}
    found |= {f"user.{cohort}.{name}": value for name, value in state.per_user.items()}
    return {name: tuple(value.shape) for name, value in found.items()}
