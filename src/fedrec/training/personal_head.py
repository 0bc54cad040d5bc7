"""A private vector of every user, added to the states of a sequence model that is common to all.

With the model fixed, a client fits the vector p of its own user by gradient descent from zero on its own history,

    L(p) = mean over steps t of  -log softmax(E (h_t + p))[next item of t],

and ranks by E (h_last + p). It is made where scores are made, kept by nobody and sent to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

LOGITS = 1 << 22  # at a time
LOGITS_ON_GPU = 1 << 28


@dataclass(frozen=True)
class PersonalHead:
    steps: int
    rate: float

    def __call__(self, hidden: Tensor, items: Tensor, size: Tensor, table: Tensor) -> Tensor:
        """[users, d] vectors, from states [users, T, d] of items [users, T], of which the first `size` are real.

        Zero for a user of a single item: nothing follows it.
        """
        states, following = hidden[:, :-1], items[:, 1:]
        real = torch.arange(states.shape[1], device=size.device) < (size - 1)[:, None]
        weight = real.to(hidden.dtype) / (size - 1).clamp(min=1)[:, None]
        room = LOGITS if hidden.device.type == "cpu" else LOGITS_ON_GPU
        at_a_time = max(1, room // max(1, states.shape[1] * len(table)))
        some = (states.split(at_a_time), following.split(at_a_time), weight.split(at_a_time))
        return torch.cat([self._fit(*part, table) for part in zip(*some, strict=True)])

    def _fit(self, states: Tensor, following: Tensor, weight: Tensor, table: Tensor) -> Tensor:
        own = states.new_zeros(len(states), states.shape[-1])
        # The part of the gradient that does not depend on p, so it is computed once for all steps.
        wanted = (weight.unsqueeze(-1) * F.embedding(following, table)).sum(1)
        for _ in range(self.steps):
            shares = ((states + own.unsqueeze(1)) @ table.T).softmax(-1)
            expected = torch.bmm(weight.unsqueeze(1), shares).squeeze(1) @ table
            own = own - self.rate * (expected - wanted)
        return own
