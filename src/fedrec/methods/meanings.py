"""What every parameter of a method means, in a sentence: the string below the field, or the table of shared ones."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_type_hints

from fedrec.federation.ranges import range_text
from fedrec.schema import kind_of

if TYPE_CHECKING:
    from fedrec.federation.contract import Method

SHARED = {
    "aggregated_fraction": "Share of the clients that train in a round who also upload.",
    "averaging": "Weight of the past in the running mean of the model that scores; 0: the latest model scores.",
    "backbone": "Model that clients train.",
    "batch": "Samples in a batch; of sasrec, sequences.",
    "block_kind": "sasrec: plain blocks, or ligr with gates, norms first and a wider network, as in eSASRec.",
    "blocks": "sasrec: self-attention blocks.",
    "clients_per_round": "Clients that take part in a round; 0: as many as --participation says.",
    "co": "Weight of the part that ignores the order of items.",
    "contrast_weight": "Weight of the contrastive loss beside that of the interactions.",
    "cooldown": "Last share of the rounds over which server_lr falls to 0.",
    "crop": "sasrec: what a round trains on of a history longer than `length`: its last items, or a random stretch.",
    "dim": "Width of user and item vectors.",
    "dropout": "sasrec: share of activations that training drops.",
    "epochs": "Passes over a client's own data in a round.",
    "floor": "What an item of the distant past still counts, where the latest counts 1.",
    "frequencies": "gfcf: singular vectors in the ideal low-pass filter.",
    "gram_share": "Share of the Gram model in the blended scores; none: as validation chooses.",
    "half_life": "Steps back in a history after which an item counts half.",
    "heads": "sasrec: attention heads.",
    "ideal_weight": "gfcf: weight of the ideal low-pass filter.",
    "init_std": "Standard deviation of the initial weights.",
    "item_rate_scale": "Without lr_item, rows of the item table move at lr * items * this, as means dilute them.",
    "l2": "Strength of L2 regularisation.",
    "length": "sasrec: how many of a user's latest items are read.",
    "loss": "Training loss: bce on single items, bpr on pairs of a liked and a drawn one.",
    "lr": "Learning rate.",
    "lr_server": "Learning rate of the server's steps.",
    "noise": "With dp: standard deviation of the noise.",
    "personal_lr": "Learning rate of the private vector's fit at scoring.",
    "personal_steps": "sasrec: steps of a private vector's fit at scoring; 0: none.",
    "popularity_power": "Scores are divided by an item's count to this power: above 0, popular items sink.",
    "proximal": "Weight, in the local loss, of the squared distance to the received table.",
    "rate_scale": "Rows of the item table move at lr * items * this, as means dilute them.",
    "sampled": "ce: the next item is told from so many drawn ones; 0: from all.",
    "scale": "How both scores are scaled before they are mixed.",
    "score_with": "received: clients score with the server's model; local: with their own after training.",
    "server_decay": "Weight decay of the server's steps, times server_lr (AdamW).",
    "server_lr": "Learning rate of the server's optimiser.",
    "shares": "Weights of clients in the mean: by their samples, or equal.",
    "supcon": "Form of the contrastive loss, as printed or as released; its weight is on another scale in each.",
    "table_dtype": "Precision of item tables at rest; computations are in full precision.",
    "temperature": "Temperature of the contrastive loss.",
    "weight_decay": "Weight decay of everything that is trained.",
    "window": "Following items that each item of a history predicts.",
}
"""Parameters that several methods have and declare each for itself."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a method, as its description lists it."""

    name: str
    default: str
    takes: str
    """Its type and the numbers that it may be."""
    meaning: str


def parameters_of(cls: type[Method]) -> list[Parameter]:
    hints, told = get_type_hints(cls), meanings_of(cls)
    return [
        Parameter(field.name, _format(field.default), _takes(cls, field.name, hints[field.name]), told[field.name])
        for field in dataclasses.fields(cls)
    ]


def meanings_of(cls: type[Method]) -> dict[str, str]:
    """By the nearest class that says it; empty where nobody does, as a method of another package may."""
    found = dict(SHARED)
    for kind in reversed(cls.__mro__[:-1]):
        found |= _read_field_texts(kind)
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(cls)}


@cache
def _read_field_texts(cls: Any) -> dict[str, str]:
    """The string below each field of a class, which Python itself forgets."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # made in a session, or without its source
        return {}
    body = getattr(tree.body[0], "body", [])
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _takes(cls: type[Method], name: str, hint: Any) -> str:
    if name == "backbone" and cls.info.backbones:
        return " | ".join(cls.info.backbones)
    return " ".join(filter(None, (kind_of(hint).words, range_text(cls, name, hint))))


def _format(value: Any) -> str:
    """As `--set` takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
