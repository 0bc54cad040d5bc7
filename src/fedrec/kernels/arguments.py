"""What kernels are called with, by name. Compiled code reads a named tuple as fast as loose values.

They stand apart from the compiled code, so that arguments can be made without importing it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Data(NamedTuple):
    """Clients of one user each. A user's place is its index among all users, client by client."""

    clients: np.ndarray
    places: np.ndarray  # of the clients' users; what follows is by place
    users: np.ndarray
    user_ptr: np.ndarray  # where a user's items begin
    items: np.ndarray
    pool_ptr: np.ndarray  # where its gaps begin
    gap: np.ndarray  # as in `clients.Pool`
    unique: bool  # no negative twice within a user, or else within a positive


class Keys(NamedTuple):
    """Of a round's draws."""

    negatives: np.uint64
    order: np.uint64


class FactorSettings(NamedTuple):
    """Of `mf.train_clients`."""

    rate_user: float
    rate_item: float
    batch: int
    epochs: int
    adam: bool
    mean: bool  # of the losses of a batch, or else their sum
    early_exit: float
    pull: float
    phases: int


class NetworkSettings(NamedTuple):
    """Of `ncf.train_networks`."""

    rate_user: float
    rate_item: float
    rate_dense: float
    decay: float
    batch: int
    epochs: int
    adam: bool
    mean: bool
    early_exit: float
    phases: int


class Layers(NamedTuple):
    """Of a network whose weights lie in one run."""

    widths: np.ndarray  # from [user; item] to the logit
    starts: np.ndarray  # where a layer's weight, then bias, begins in the run
    heights: np.ndarray  # where the activations that enter a layer begin in a tile


class HeadSettings(NamedTuple):
    """Of `linear.train_linear`."""

    rate_head: float
    rate_row: float
    decay: float
    batch: int
    epochs: int
    mean: bool
    early_exit: float
    in_turn: bool  # the head moves first, then the rows
    saturate: bool


class AdditiveSettings(NamedTuple):
    """Of `fedrap.train_additive`."""

    rate_head: float
    rate_row: float
    decay_head: float
    decay: float
    apart: float
    sparse: float
    lasso: bool  # penalise absolute values, otherwise squares
    batch: int
    epochs: int
    mean: bool
    early_exit: float
    slower: float  # what a batch leaves of the rates


class ContrastTerms(NamedTuple):
    """Of `contrast.evaluate`: what follows from the labels and the settings of a contrastive loss."""

    labels: np.ndarray
    clusters: int
    share: np.ndarray  # of an item: 1 / how many others have its label, or 0
    weight: np.ndarray  # of an item: 0 where nobody else has its label
    steep: float  # 1 / tau
    floor: float  # of sums of exponentials
    lowest: float  # of exponents
    scale: float  # of the loss


class ContrastSettings(NamedTuple):
    """Of `contrastive.train_contrastive`."""

    strength: float  # of the contrastive loss
    once: bool  # it is there at the first batch of an epoch alone
    tiles: int  # numbers of all tiles of one table's similarities


class GateSettings(NamedTuple):
    """Of `gate.guide_clients`."""

    rate: float
    batch: int
    epochs: int
    mean: bool
    keep: float  # of a client's own table


class AlignedSettings(NamedTuple):
    """Of `aligned.train_aligned`."""

    rate_user: float
    rate_item: float
    rate_dense: float
    pull: float  # the share of the way to the target that a row goes in one step
    batch: int
    epochs: int
    in_turn: bool  # the private parameters move first, then the rows
    drop: bool  # a short batch is left out, unless it is the first
    nominal: bool  # ... or divided by the usual size instead of its own
    saturate: bool
