"""What a shell offers where a method, a dataset or a protocol is wanted; nothing here imports torch."""

from __future__ import annotations


def methods(incomplete: str) -> list[str]:
    from fedrec.methods import listings

    names = [name for listing in listings() for name in listing.names]
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def datasets(incomplete: str) -> list[str]:
    from fedrec.data import datasets as known
    from fedrec.data.imported import list_imports

    return [name for name in (*(entry.name for entry in known()), *list_imports()) if name.startswith(incomplete)]


def protocols(incomplete: str) -> list[str]:
    from fedrec.evaluation import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]
