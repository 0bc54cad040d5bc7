"""What a method declares besides its functions: what it is, what it discloses, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Settings = Mapping[str, object]
"""Parameters of a method by name."""


def with_defaults(defaults: Mapping[str, Settings], *names: str) -> Mapping[str, Settings]:
    """Some backbones, each with the defaults that it needs."""
    return {name: defaults.get(name, {}) for name in names}


class Preset(dict[str, Any]):
    """Named settings of a method, and what they are for in a sentence."""

    def __init__(self, meaning: str, settings: Settings) -> None:
        super().__init__(settings)
        self.meaning = meaning


def _never(method: Any) -> bool:
    return False


@dataclass(frozen=True)
class MethodInfo:
    """What a method is, for those who choose one."""

    name: str
    summary: str = ""
    paper: str = ""
    aliases: Mapping[str, Settings] = field(default_factory=dict)
    """Other names, with the parameters they imply."""
    backbones: Mapping[str, Settings] = field(default_factory=dict)
    """Models that it trains, each with the defaults that it needs; the first is the default. Empty: no choice."""
    presets: Mapping[str, Settings] = field(default_factory=dict)
    space: Mapping[str, str] = field(default_factory=dict)
    """What `fedrec tune` searches, e.g. `{"lr": "0.01..1", "dim": "16,32,64"}`. Empty: what ranges suggest."""
    centralised: bool = False
    """A baseline that sees everybody's data, centralised."""
    new_users: int | None = None
    """Local rounds that a user who was not in training needs; None: new users cannot be served."""
    reads_order: Callable[[Any], bool] = _never
    """Whether it matters, with these parameters, in which order a user met the items."""
    scores_together: bool = False
    """Whether a user's scores depend on the other users of the client too, as on a graph of them all."""
    remedy: Callable[[Any], str] | None = None
    """What to change first when training diverges; None: the learning rates."""


@dataclass(frozen=True)
class Disclosure:
    """What leaves a client, and who sees what."""

    private: tuple[str, ...] = ()
    """Tensors of the state that must never influence an upload after `local`."""
    secure_aggregation: bool = False
    """A single upload would reveal everything, so nobody may see less than the sum over clients."""
    gathers: bool = False
    """The server works with single uploads, which it must see; otherwise sums suffice and it can be blind."""
    reveals: str = ""
    """What a single upload tells of its client; empty: what any trained upload tells."""
    sensitivity: float = 2.0
    """How many clipping norms apart two uploads of one client can be: noise is measured by it."""
    attributes: Literal["none", "server", "clients"] = "none"
    """Who sees item attributes; with them, a method ranks items that training never met."""
    covered_with: Settings = field(default_factory=dict)
    """Parameters with which the noise of the wire reaches everything that is sent."""
    own_noise: tuple[str, ...] = ()
    """Uploads to which clients themselves add noise under that name, before the wire does."""


@dataclass(frozen=True)
class OwnNoise:
    """Gaussian noise that a method itself puts on what clients compute, for the accountant."""

    settings: str
    scale: float
    """Its standard deviation."""
    sensitivity: float
    """How far one step or upload can move when a client's data are replaced."""
    steps: int
    counted: str
    """What the steps are, as text."""
    delta: float
    limits: str = ""
    """What else the epsilon depends on."""


@dataclass(frozen=True)
class Footprint:
    """Working memory in bytes, besides what clients keep: it determines how many of them are simulated together."""

    client: int = 4096
    """Of one client in training, without its samples."""
    sample: int = 1024
    """Of one training sample."""
    score: int = 0
    """Of one user for whom all items are scored and ranked."""
    cache: int | None = None
    """On a CPU, chunks larger than this are slowed down by memory; None: the larger the better."""
    training_only: tuple[str, ...] = ()
    """Tensors of the state that scoring does not need."""
