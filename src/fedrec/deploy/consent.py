"""What a node's owner agrees to. A server proposes; whatever the owner has not agreed to is refused in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError, list_few
from fedrec.federation.exposure import describe_server_view

REQUIRED, POSSIBLE, ANY = "required", "where possible", "not required"
MEMBERS, USERS = 5, 5
LEAST = 2  # members of any secure sum


@dataclass(frozen=True)
class Consent:
    """The defaults are safe ones; a file `consent.toml` may change them, name by name."""

    methods: tuple[str, ...] = ()
    """Names of the methods that may run; none: any."""
    secure_sums: str = POSSIBLE
    """`required`, `where possible` (the method allows them) or `not required`."""
    members: int = MEMBERS
    """How many nodes a secure sum must at least be of."""
    users: int = USERS
    """How many of this node's users a metric must at least be of; with fewer, it reports none."""
    privacy: tuple[str, ...] = ()
    """Stages that every upload must pass, such as `clip` and `gaussian`."""
    rounds: int | None = None
    megabytes: float | None = None
    """How much may pass between server and node in all."""

    @staticmethod
    def to_anything() -> Consent:
        """Agree to whatever a server proposes, as in a rehearsal."""
        return Consent(secure_sums=ANY, members=LEAST, users=1)

    @staticmethod
    def read(path: Path) -> Consent:
        try:
            return Consent.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
            raise FedrecError(f"cannot read the consent {path} ({error})") from None

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Consent:
        known = {one.name for one in fields(Consent)}
        if strange := sorted(values.keys() - known):
            raise ValueError(f"unknown '{strange[0]}'; known: {', '.join(sorted(known))}")
        for name in ("methods", "privacy"):
            if isinstance(given := values.get(name, ()), str) or not all(isinstance(one, str) for one in given):
                raise ValueError(f"{name} must be a list of names")
        for name, least in (("members", LEAST), ("users", 1), ("rounds", 1)):
            if not isinstance(given := values.get(name, least), int) or given < least:
                raise ValueError(f"{name} must be a whole number from {least} on")
        if not isinstance(limit := values.get("megabytes", 1), int | float) or limit <= 0:
            raise ValueError("megabytes must be a positive number")
        if values.get("secure_sums", POSSIBLE) not in (REQUIRED, POSSIBLE, ANY):
            raise ValueError(f"secure_sums must be '{REQUIRED}', '{POSSIBLE}' or '{ANY}'")
        lists = {name: tuple(values[name]) for name in ("methods", "privacy") if name in values}
        return Consent(**{**values, **lists})

    def to_dict(self) -> dict[str, Any]:
        """Write it as a table without empty entries."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def require(self, terms: Terms) -> None:
        """Refuse terms that go beyond what was agreed to."""
        if reason := self._objection(terms):
            raise FedrecError(f"the owner of this node does not agree: {reason}")

    def _objection(self, terms: Terms) -> str:
        name, stages = terms.method.info.name, [part.partition("=")[0] for part in terms.config.privacy.split(",")]
        if terms.config.epsilon is not None:
            stages.append("sum-gaussian" if terms.noises_sums else "gaussian")
        if self.methods and name not in self.methods:
            return f"the method is {name}; agreed on: {list_few(self.methods)}"
        wanted = self.secure_sums == REQUIRED or (self.secure_sums == POSSIBLE and not terms.method.disclosure.gathers)
        if wanted and not terms.secure:
            return "updates would not be summed up securely; start the server with --secure-sums"
        if terms.secure and max(LEAST, terms.members) < self.members:
            return f"secure sums may be of {max(LEAST, terms.members)} nodes; agreed on: at least {self.members}"
        if missing := [stage for stage in self.privacy if stage not in stages]:
            return f"uploads would not pass '{missing[0]}'; start the server with --privacy {missing[0]}=..."
        if self.rounds is not None and terms.method.rounds > self.rounds:
            return f"it is to last {terms.method.rounds} rounds; agreed on: at most {self.rounds}"
        return ""

    def require_traffic(self, size: int) -> None:
        """Refuse to go on beyond the agreed number of bytes."""
        if self.megabytes is not None and size > self.megabytes * 1e6:
            raise FedrecError(
                f"the owner of this node does not agree: {size / 1e6:.1f} MB have passed; agreed on: at most "
                f"{self.megabytes:g} MB"
            )


def describe_federation(terms: Terms, about: Mapping[str, Any]) -> list[str]:
    """Say in plain words what a federation is going to see of a node. `about`: what the node says of itself."""
    method = terms.method
    lines = [
        f"This federation trains {method.info.name} for at most {method.rounds} rounds.",
        f"The server learns that this node has {about['clients']:,} clients, {about['users']:,} users and "
        f"{about['interactions']:,} interactions, and after a round sums of ranking metrics over its users.",
    ]
    if terms.secure:
        lines.append(f"Of updates it learns only their sum over at least {max(LEAST, terms.members)} nodes.")
        if method.disclosure.secure_aggregation:
            lines.append(
                f"The sum of {method.info.name} itself tells histories where few clients are in it: an item that one "
                "client alone has shows all of that client's items. With three members it gives away all histories."
            )
    else:
        lines.append(f"It sees this node's own update of every round. {describe_server_view(method).capitalize()}.")
    if terms.config.epsilon is not None:
        lines.append(
            f"Noise keeps every client within epsilon {terms.config.epsilon:g} and delta {terms.config.delta:g} over "
            "all rounds. It does not cover the ranking metrics."
        )
    noise = terms.config.privacy or "nothing"
    lines.append(f"What protects a single upload on its way: {noise}. No user id and no interaction is sent.")
    return lines
