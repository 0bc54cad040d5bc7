"""Rank-biased precision: a reader looks at the next rank with probability 0.8. Moffat & Zobel 2008 (TOIS 27, 1)."""

from __future__ import annotations

from typing import Any

import fedrec

PERSISTENCE = 0.8


@fedrec.metric("rbp", "rank-biased precision, persistence 0.8")
def rbp(ranks: Any, relevance: Any, held_out: Any) -> Any:
    """(1 - p) times the sum of p^(rank - 1) over the hits."""
    return (1 - PERSISTENCE) * (relevance * PERSISTENCE ** (ranks - 1)).sum(1)
