"""What the service serves from: anything that answers these four questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedrec.errors import FedrecError
from fedrec.serve import Folded, Recommendation, Recommender, Similar


class Lists(Protocol):
    """A model that makes lists. Ids that it does not know raise `NotKnown`."""

    def about(self) -> dict[str, Any]:
        """What it is, for whoever asks whether it is well: `method`, `users`, `items`, whether it `folds_in`, and
        `examples`, an id each of a `user` and an `item` to warm up with."""
        ...

    def for_user(self, user: Any, k: int) -> list[Recommendation]: ...

    def fold_in(self, items: Sequence[Any], k: int) -> Folded: ...

    def similar(self, item: Any, k: int) -> list[Similar]: ...


Opener = Callable[[Path], Lists | None]
"""Opens a folder of its kind; None: it is of another kind."""


def _run_folder(path: Path) -> Lists | None:
    return Recommender(path) if (path / "config.toml").is_file() else None


OPENERS: tuple[Opener, ...] = (_run_folder,)


def open_lists(path: Path, openers: Sequence[Opener] = OPENERS) -> Lists:
    """The model of a folder, by the first opener of its kind."""
    for opener in openers:
        if (found := opener(path)) is not None:
            return found
    raise FedrecError(f"{path} has no model; give the folder of a finished run or a fitted model")
