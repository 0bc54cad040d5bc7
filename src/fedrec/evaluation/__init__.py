"""Protocols, rankings and metrics: plain arrays in, plain arrays out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.evaluation.candidates import candidate_targets, forbidden_negatives
from fedrec.evaluation.fields import UNDIVIDED
from fedrec.evaluation.metrics import METRICS, chance, per_user, with_chance
from fedrec.evaluation.own_metrics import Metric, metric
from fedrec.evaluation.protocol import PRESETS, Protocol, parse_protocol, protocol
from fedrec.evaluation.significance import LEVEL, holm, paired_bootstrap
from fedrec.evaluation.sparsity import select_rows
from fedrec.evaluation.targets import Pairs, Targets
from fedrec.evaluation.ties import TIES
from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.evaluation.evaluator import Evaluation, Evaluator, evaluate, novelty_by_item
    from fedrec.evaluation.ranking import positions, top_k
else:  # these need torch
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.evaluation.evaluator": ("Evaluation", "Evaluator", "evaluate", "novelty_by_item"),
            "fedrec.evaluation.ranking": ("positions", "top_k"),
        },
        old={"recorded": "parse_protocol", "kept_rows": "select_rows"},
    )

__all__ = [
    "LEVEL",
    "METRICS",
    "PRESETS",
    "TIES",
    "UNDIVIDED",
    "Evaluation",
    "Evaluator",
    "Metric",
    "Pairs",
    "Protocol",
    "Targets",
    "candidate_targets",
    "chance",
    "evaluate",
    "forbidden_negatives",
    "holm",
    "metric",
    "novelty_by_item",
    "paired_bootstrap",
    "parse_protocol",
    "per_user",
    "positions",
    "protocol",
    "select_rows",
    "top_k",
    "with_chance",
]
