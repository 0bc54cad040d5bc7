"""The setting of local training in FedCA's comparison (Zhang et al., TOIS 2026).

It is a preset of every such method; where it is what a method has by default, `@compared` says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar, get_type_hints

from fedrec.federation.settings_files import read_presets
from fedrec.training.local_training import LocalMethod

Kind = TypeVar("Kind", bound=LocalMethod)

ALONE = read_presets(Path(__file__).with_suffix(".toml"))["alone"]
"""Local training of those who send nothing, the same for every backbone."""


def use_comparison(kind: type[Kind]) -> type[Kind]:
    """Local training as in that comparison for the defaults of a class. Stands below `@dataclass`."""
    hints = get_type_hints(LocalMethod, include_extras=True)
    for name, value in ALONE.items():
        kind.__annotations__[name] = hints[name]
        setattr(kind, name, value)
    return kind
