"""The one property of this room: whatever is given, the command line works, or says in one line why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from conftest import Outcome

SMALL = "synthetic@users=12+items=40+interactions=180+seed=1"
"""A world on which a run takes a tenth of a second."""
RUN = ("run", "popularity", "--data", SMALL, "--protocol", "honest,ks=5,select_metric=ndcg@5,min_interactions=3")


def fuzz(examples: int) -> Callable[[Any], Any]:
    """The same examples every time, each however long it takes; fixtures are made to be used again."""
    return settings(
        derandomize=True,
        database=None,
        max_examples=int(os.environ.get("FEDREC_FUZZ", "1")) * examples,
        suppress_health_check=list(HealthCheck),
    )


def tidy(outcome: Outcome, also: tuple[int, ...] = ()) -> bool:
    """Whether it worked; if not, it must be exit code 2 and one line."""
    if outcome.code in (0, *also):
        assert "Traceback" not in outcome.err
        assert "error: " not in outcome.err
        return True
    assert outcome.code == 2, outcome
    errors = [line for line in outcome.err.split("\n") if line and not line.startswith("note: ")]
    assert len(errors) == 1, outcome.err
    assert errors[0].startswith("error: ")
    assert 10 < len(errors[0]) < 2000, outcome.err
    return False


def everything_below(folder: Path) -> dict[str, bytes | None]:
    """Names and content; folders are None."""
    return {
        os.fsencode(path.relative_to(folder)).decode("latin-1"): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    before = everything_below(folder)
    yield
    after = everything_below(folder)
    assert after.keys() == before.keys()
    assert after == before
