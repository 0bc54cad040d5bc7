"""What budgets have been spent on the same users: a line for a run and for every fit that was made of it.

The lines stand in `spent.jsonl` of every folder of the family that can be reached, and are written before training
begins, so that an interrupted fit counts as well. What it resumes repeats the same draws and spends nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.privacy.accountant import epsilon_of_rho, rho_of

NAME = "spent.jsonl"
# A total may differ from a budget by the rounding of the conversion, which is no overspending.
CLOSE = 1 + 1e-6

Line = Mapping[str, Any]


def charge(source: Path, out: Path, earlier: RunConfig, config: RunConfig, allowed: float | None) -> float | None:
    """Enter a fit that is about to begin, or refuse it; return the epsilon of all together, None without a budget.

    `earlier`: the config of `source`. `allowed`: the epsilon that all may have together; None: that of `config`.
    """
    if config.epsilon is None or config.delta is None:
        return None
    family = list(_ancestors(source))
    lines = _merge([_read(folder) for folder in family] + [_read(out)])
    root = str(family[-1].resolve())
    lines.setdefault(root, _line(root, earlier, None))
    own = str(out.resolve())
    # Without itself, or a fit that is resumed would be charged twice.
    before = sum(line["rho"] for name, line in lines.items() if name != own)
    lines[own] = _line(own, config, source)
    # Losses are added as rho and converted once: epsilons of several releases would add up to far too much.
    total = epsilon_of_rho(before + lines[own]["rho"], config.delta)
    budget = config.epsilon if allowed is None else allowed
    if total > budget * CLOSE:
        raise FedrecError(
            f"the budget of epsilon {budget:g} is gone: {source} and its fits have spent "
            f"{epsilon_of_rho(before, config.delta):.4g} on the same users, and this fit would make it {total:.4g}; "
            # Rounded up, so that the value in the message is really enough.
            f"add --epsilon {total * CLOSE + 5e-3:.2f} to allow that, for all of them together"
        )
    # Written to all folders of the family, since any of them may be what the next fit starts from.
    for folder in (out, *family):
        _write(folder, lines.values())
    return total


def _line(name: str, config: RunConfig, source: Path | None) -> dict[str, Any]:
    assert config.epsilon is not None
    assert config.delta is not None
    spent = {"rho": rho_of(config.epsilon, config.delta), "epsilon": config.epsilon, "delta": config.delta}
    return {"folder": name, **spent, "from": None if source is None else str(source.resolve())}


def _ancestors(folder: Path) -> Iterator[Path]:
    """A folder, what it was fitted from, and so on, as far as they can be found."""
    place: str | None = str(folder.resolve())
    while place is not None and Path(place).is_dir():
        yield Path(place)
        own = {line["folder"]: line["from"] for line in _read(Path(place))}
        place = own.get(place)


def _read(folder: Path) -> Sequence[Line]:
    path = folder / NAME
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _merge(parts: Sequence[Sequence[Line]]) -> dict[str, Line]:
    return {line["folder"]: line for part in parts for line in part}


def _write(folder: Path, lines: Any) -> None:
    with atomic_file(folder / NAME) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
