"""Which items a list may contain: those allowed, not those denied, and only of some categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.data.interactions import ItemInfo
from fedrec.errors import FedrecError, list_few, unknown


class UnknownId(FedrecError):
    """An id, or the name of a category, that the model does not know."""

    status = 404


@dataclass(frozen=True)
class ItemFilter:
    """Ids and categories. `allow` None: all items; without categories: items of all of them."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.allow is not None or bool(self.deny or self.categories)

    def exclude(self, places: Mapping[str, int], n_items: int, info: ItemInfo | None) -> np.ndarray:
        """Return the places of the items that no list may contain, ascending.

        Ids that the model does not know change nothing, unless none of the allowed ones is known.
        """
        barred = np.zeros(n_items, dtype=bool)
        if self.allow is not None:
            known = [places[name] for name in self.allow if places.get(name, n_items) < n_items]
            if not known:
                raise UnknownId(
                    f"none of the allowed items is known to the model: {list_few(self.allow) or 'none given'}"
                )
            barred[:] = True
            barred[known] = False
        if self.categories:
            barred |= ~_find_members(self.categories, n_items, info)
        barred[[places[name] for name in self.deny if places.get(name, n_items) < n_items]] = True
        return np.flatnonzero(barred)


def _find_members(categories: Sequence[str], n_items: int, info: ItemInfo | None) -> np.ndarray:
    """Mark the items that have one of the categories."""
    if info is None or info.tags is None:
        raise UnknownId("this model knows no categories; fit it with --attributes FILE that has a column tags")
    column = {name: number for number, name in enumerate(info.tag_names)}
    for name in categories:
        if name not in column:
            raise UnknownId(str(unknown("category", name, column)))
    members = np.zeros(n_items, dtype=bool)  # items that arrived after training have no row
    chosen = info.tags[:n_items, [column[name] for name in categories]]
    members[: chosen.shape[0]] = np.asarray(chosen.sum(axis=1)).ravel() > 0
    return members
