"""Where one table per client does not fit: a client's own table is trained again whenever it is asked for.

For that the server keeps the table that every round began with, once for all, and a client notes its last round and the
head that it then set out with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, State, Tensors
from fedrec.methods.some_clients import SomeClients
from fedrec.training.local_training import LocalTrainer

STARTS = "starts"  # on the server: the table that every round began with
TRAINED, NEVER = "trained", -1  # a client's last round
BEFORE = "before."  # what it then set out with


def init_starts(table: Tensor, rounds: int) -> Tensor:
    starts = table.new_zeros(rounds, *table.shape)
    starts[0] = table
    return starts


def with_note(state: State, head: Tensors, user: Tensor, chunk: Chunk, round: int) -> State:
    """What a client holds after a round, and what it set out with."""
    before = {BEFORE + name: value.clone() for name, value in head.items()}
    trained = torch.full((len(chunk.clients),), round, device=user.device)
    return State({**state.per_client, **before, TRAINED: trained}, {**state.per_user, BEFORE + "user": user.clone()})


def score_by_replay(trainer: LocalTrainer, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
    """With own tables that are trained again, all clients of one last round together."""
    trained, parts, order = state.per_client[TRAINED], [], []
    for last in trained.unique().tolist():
        some = SomeClients(chunk, (trained == last).nonzero().flatten())
        mine = some.take(state)
        own = {name: mine.per_client[name] for name in trainer.model.dense_shapes()}
        own["item"] = _retrain_tables(trainer, mine, down, some.chunk, last)
        parts.append(trainer.own_scores(mine.per_user["user"], own, some.chunk, items))
        order.append(some.users)
    return torch.cat(parts)[torch.cat(order).argsort()]


def _retrain_tables(trainer: LocalTrainer, state: State, down: Down, chunk: Chunk, last: int) -> Tensor:
    # a new user has met no table but the newest
    start = down.shared[STARTS][max(0, last)] if STARTS in down.shared else down.shared["item"]
    if last == NEVER:
        return start.expand(len(chunk.clients), -1, -1)
    head = {name: state.per_client[BEFORE + name] for name in trainer.model.dense_shapes()}
    # Foldable as in the round itself, so that training takes the same path and gives the same bits.
    again = chunk.data.chunk(chunk.clients, chunk.cohort, foldable=True)
    own = start.new_empty(len(chunk.clients), *start.shape)
    # Scores are asked for without gradients, which training needs.
    with torch.enable_grad():
        trainer.fit(again, last, state.per_user[BEFORE + "user"], start, head, own=own)
    return own
