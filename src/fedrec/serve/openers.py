"""Open what the service serves from: anything that answers four questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedrec.errors import FedrecError
from fedrec.serve import FoldInResult, Recommendation, Recommender, SimilarItem


class Lists(Protocol):
    """A model that makes lists. Ids that it does not know raise `UnknownId`."""

    def about(self) -> dict[str, Any]:
        """Describe the model for `/health`: `method`, `users`, `items`, whether it `folds_in`, and `examples`,
        an id each of a `user` and an `item` to warm up with."""
        ...

    # a filter is passed by its name, and only where one is asked for: `for_user(user, k, only=...)`

    def for_user(self, user: Any, k: int) -> list[Recommendation]: ...

    def fold_in(self, items: Sequence[Any], k: int) -> FoldInResult: ...

    def similar(self, item: Any, k: int) -> list[SimilarItem]: ...


Opener = Callable[[Path], Lists | None]
"""Opens a folder of its kind; returns None for a folder of another kind."""


def _open_run_folder(path: Path) -> Lists | None:
    return Recommender(path) if (path / "config.toml").is_file() else None


OPENERS: tuple[Opener, ...] = (_open_run_folder,)


def open_lists(path: Path, openers: Sequence[Opener] = OPENERS) -> Lists:
    """Open the model of a folder with the first opener for its kind."""
    for opener in openers:
        if (found := opener(path)) is not None:
            return found
    raise FedrecError(f"{path} has no model; give the folder of a finished run or a fitted model")
