"""Training of a sequential backbone at clients: at every position the next item among all items, or among drawn ones.

Softmax cross-entropy, clients side by side, each with rows of its own. Among drawn items the sum over the catalogue is
estimated without bias: a user's own items count as they are, those drawn from the others for as many as were not drawn.
Only rows of these items then have a gradient. Where all are drawn it is the softmax over all items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.federation.contract import Tensors
from fedrec.random import Purpose, fold_tensor, shuffle
from fedrec.training.descent import Fitted
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.personal_head import PersonalHead
from fedrec.training.samples import allowed_item
from fedrec.training.sequence_training import PACKED, SequenceDescent
from fedrec.training.sequences import Crop, Dropout, SequenceBatch, SequenceSamples, fill, unpack

# Logits of all positions at once would be a multiple of everything else that a step holds.
LOGITS = 1 << 23  # at a time
LOGITS_ON_GPU = 1 << 28


class AmongAll(SequenceSamples):
    """As `SequenceSamples`, with all items of every client in the working set, client after client."""

    def _find_rows(self, end: Tensor, slots: int | None) -> None:
        clients, items = len(self.chunk.clients), self.chunk.world.items
        history, (sequence, at) = self.chunk.tensor(self.chunk.history), self._steps(end)
        row = torch.arange(clients * items, device=at.device)
        self.owner, self.item = row // items, row % items
        first = self.owner_of_sequence[sequence] * items
        self.column = history[at + 1]
        self.input, self.target = first + history[at], first + self.column
        self.neg = at.new_empty(len(at), 0)


class AmongDrawn(SequenceSamples):
    """With every user's own items and `slots` others, drawn afresh every round, in the working set.

    `among` are the rows that a sequence's next items are among, `log_weight` logarithms of what each counts for,
    `column` where the next item of every step stands there.
    """

    def _find_rows(self, end: Tensor, slots: int | None) -> None:
        assert slots is not None
        chunk, items = self.chunk, self.chunk.world.items
        ptr = chunk.tensor(chunk.user_ptr)
        # A user's own items are all in, because the next item of every step is one of them.
        mine, real = fill(ptr[:-1], ptr.diff(), int(ptr.diff().max()) if len(ptr) > 1 else 0)
        drawn, log_weight = self._draw_items(slots)
        own = torch.where(real, chunk.tensor(chunk.items)[mine.clamp(max=max(len(chunk.items) - 1, 0))], 0)
        # A weight of log 0 takes the filling out of the softmax without a mask at every later place.
        none = torch.full(real.shape, -torch.inf, dtype=chunk.world.dtype, device=real.device)
        among = torch.cat([own, drawn], 1)[self.user]
        weight = torch.cat([none.masked_fill(real, 0.0), log_weight], 1)
        self.log_weight = weight[self.user]
        # what only fills up stands for a row that the client has anyway
        among = torch.where(self.log_weight == -torch.inf, among[:, :1], among)
        # Users of one silo share rows: a row that stood there twice would be trained as two.
        pairs, self.among = torch.unique(self.owner_of_sequence[:, None] * items + among, return_inverse=True)
        self.owner, self.item = pairs // items, pairs % items
        history, (sequence, at) = chunk.tensor(chunk.history), self._steps(end)
        user, keys = self.user[sequence], chunk.tensor(chunk.items) + self._user_of_item(ptr) * items
        before, after = (torch.searchsorted(keys, user * items + history[k]) - ptr[user] for k in (at, at + 1))
        self.column = after
        self.input, self.target = self.among[sequence, before], self.among[sequence, after]
        self.neg = at.new_empty(len(at), 0)

    def _user_of_item(self, ptr: Tensor) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff())

    def _draw_items(self, slots: int) -> tuple[Tensor, Tensor]:
        """Items outside each user's own, without replacement, and the logarithm of how many each stands for."""
        chunk, device = self.chunk, self.size.device
        place, limits = chunk.tensor(chunk.places), chunk.tensor(chunk.data.pool.indptr)
        pool = chunk.world.items - (limits[place + 1] - limits[place])
        key = fold_tensor(chunk.secret.stream(Purpose.NEGATIVES, self.round), chunk.tensor(chunk.users))
        position = torch.arange(slots, device=device).expand(len(place), -1)
        real = position < pool[:, None]
        owner = torch.arange(len(place), device=device)[:, None].expand(-1, slots)
        # Without replacement, so that every drawn item stands for the same number of others.
        rank = shuffle(key, pool, (position * real).flatten(), owner.flatten()).view(position.shape)
        # A pool smaller than the slots is drawn whole, and then each of its items stands for itself alone.
        counts = (pool / pool.clamp(min=1, max=slots)).to(chunk.world.dtype).log()
        nothing = torch.full_like(counts, -torch.inf)[:, None]
        drawn = allowed_item(chunk, owner[:, 0], rank)
        return torch.where(real, drawn, 0), torch.where(real, counts[:, None], nothing)


class AmongDrawnDescent(SequenceDescent):
    """As `SequenceDescent`, with softmax cross-entropy over drawn items for the loss."""

    kind: ClassVar[type[SequenceSamples]] = AmongDrawn
    samples: AmongDrawn

    def _bands(self, batch: SequenceBatch) -> Iterator[slice]:
        return with_room(super()._bands(batch), batch, self.samples.among.shape[1])

    def _band_losses(self, leaves: Tensors, batch: SequenceBatch, band: slice) -> tuple[Tensor, Tensor]:
        s, sequence = self.samples, batch.sequence[band]
        at, real = fill(s.start[sequence], s.size[sequence], batch.lengths[band.start])
        hidden, _, owner = self._encode(leaves, batch, band, at)
        logits = hidden @ F.embedding(s.among[sequence], leaves["item"]).mT + s.log_weight[sequence].unsqueeze(-2)
        return (_surprise(logits, s.column[at]) * real).sum(1), owner


class AmongAllDescent(SequenceDescent):
    """With softmax cross-entropy over all items. A client's table is large here: each is gone through as seldom as can
    be, and only those of one band at a time."""

    kind: ClassVar[type[SequenceSamples]] = AmongAll
    samples: AmongAll
    joins: ClassVar[bool] = False  # weights are taken client by client

    def _bands(self, batch: SequenceBatch) -> Iterator[slice]:
        return with_room(super()._bands(batch), batch, self.chunk.world.items)

    def _gradients(self, leaves: Tensors, moving: list[Tensor], batch: SequenceBatch) -> tuple[Tensor, list[Tensor]]:
        assert len(moving) == len(leaves), "all groups move together"
        total = torch.zeros(batch.clients, dtype=torch.float64, device=batch.size.device)
        found = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        held, sums = ({name: self._by_client(name, value) for name, value in part.items()} for part in (leaves, found))
        for band in self._bands(batch):
            owner = self.samples.owner_of_sequence[batch.sequence[band]]
            # of one sequence each, clients stand in the order of their sequences, longest first
            mine, place = (band, None) if self.chunk.data.single else torch.unique(owner, return_inverse=True)
            own = {name: value.detach()[mine].requires_grad_() for name, value in held.items() if name != "user"}
            losses, parts, at, by_read = self._band_gradients(own, place, batch, band)
            for name, part in parts.items():
                sums[name][mine] += part
            found["item"].index_add_(0, self.samples.input[at].flatten(), by_read.flatten(0, 1))
            total.index_add_(0, owner, losses.double())
        return total, list(found.values())

    def _by_client(self, name: str, value: Tensor) -> Tensor:
        return value.unflatten(0, (-1, self.chunk.world.items)) if name == "item" else value

    def _band_gradients(
        self, own: Tensors, place: Tensor | None, batch: SequenceBatch, band: slice
    ) -> tuple[Tensor, Tensors, Tensor, Tensor]:
        """Each sequence's summed loss, gradients by client; and, apart, which rows are read, and their gradients: of a
        whole table these are few. `place`: the client of every sequence; None: they are one each."""
        s, sequence = self.samples, batch.sequence[band]
        at, real = fill(s.start[sequence], s.size[sequence], batch.lengths[band.start])
        mine = own if place is None else {name: value[place] for name, value in own.items()}
        met = s.input[at] % self.chunk.world.items
        # Leaves of their own: through the whole table the gradient of a few read rows would be a table of zeros.
        read = mine["item"].detach().gather(1, met.unsqueeze(-1).expand(-1, -1, self.model.dim)).requires_grad_()
        drop = Dropout(self.model.dropout, batch.key[band], max(self.model.dim, self.model.length))
        network = unpack(self.model, mine[PACKED])
        logits = self.model.encode(read, network, drop) @ mine["item"].mT
        losses = (_surprise(logits, s.column[at]) * real).sum(1)
        owner = s.owner_of_sequence[sequence]
        weight = 1.0 / batch.size[owner].to(losses.dtype) if self.settings.reduction == "mean" else 1.0
        by_read, *gradients = torch.autograd.grad((losses * weight).sum(), [read, *own.values()])
        return losses.detach(), dict(zip(own, gradients, strict=True)), at, by_read

    def _result(self) -> Fitted:
        """Every client has all rows: a table each."""
        groups, s = self.groups, self.samples
        # Training had the clients sorted by size; the state has them in the order of the chunk.
        table = self._by_client("item", groups["item"].value)[torch.argsort(s.order)]
        return Fitted(
            groups["user"].value,
            table,
            {
                name[6:]: group.value[torch.argsort(s.order)]
                for name, group in groups.items()
                if name.startswith("dense.")
            },
        )


def with_room(bands: Iterator[slice], batch: SequenceBatch, columns: int) -> Iterator[slice]:
    """As many sequences at a time as have room for their logits."""
    budget = LOGITS if batch.size.device.type == "cpu" else LOGITS_ON_GPU
    for band in bands:
        step = max(1, budget // (batch.lengths[band.start] * columns))
        yield from (slice(k, min(k + step, band.stop)) for k in range(band.start, band.stop, step))


def _surprise(logits: Tensor, column: Tensor) -> Tensor:
    """Cross-entropy of one column at every position."""
    return -F.log_softmax(logits, -1).gather(-1, column.unsqueeze(-1)).squeeze(-1)


def next_item_trainer(
    settings: LocalMethod, *, softmax: bool, sampled: int, crop: Crop, personal_steps: int, personal_rate: float
) -> LocalTrainer:
    """Return a trainer that, with `softmax`, tells the next item from all others or from so many `sampled` ones.

    `personal_steps`, `personal_rate`: of the fit of a private vector where scores are made.
    """
    descent = (AmongDrawnDescent if sampled else AmongAllDescent) if softmax else None
    head = PersonalHead(personal_steps, personal_rate) if personal_steps else None
    return LocalTrainer(settings, slots=sampled or None, crop=crop, descent=descent, head=head)
