"""What everybody in a federation knows: the settings, the items in their numbering, how many clients there can be."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.evaluation import Protocol, protocol
from fedrec.experiment.checks import parse_protection, require_selectable
from fedrec.experiment.config import COLUMNS, RunConfig, make_config
from fedrec.experiment.params import method_of
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Method, World
from fedrec.federation.noise import SumGaussian
from fedrec.federation.stages import Stage

OF_ALL = ("coverage", "novelty")  # metrics that need to know what stands in others' lists and histories
OWN = ("device", "memory", "attributes", *COLUMNS)  # settings that each machine chooses, or that the server alone needs


@dataclass(frozen=True)
class Terms:
    """`items`: the shared vocabulary, ids in their numbering; the first `trained` can be trained on.

    `catalogues`: what is ranked at validation and at test where the split is by items; otherwise everything.
    `seeded`: a rehearsal, in which the clients' draws come from the seed and so can be repeated by everybody.
    `secure`: updates leave the nodes masked, and the server learns their sum alone.
    """

    config: RunConfig
    items: np.ndarray
    clients: int
    trained: int
    tie_seed: int = 0
    text_users: bool = False
    catalogues: tuple[np.ndarray, np.ndarray] | None = None
    seeded: bool = False
    secure: bool = False
    version: str = ""
    members: int = 0
    """Of how many nodes a secure sum is at least."""
    left_out: int = 0
    """Users of a rehearsal's data whom filters left out before it was dealt out: no node knows them."""

    @cached_property
    def vocabulary(self) -> str:
        """A checksum of the items and their numbers."""
        return hashlib.sha256(json.dumps([str(item) for item in self.items.tolist()]).encode()).hexdigest()

    @cached_property
    def identity(self) -> str:
        """A checksum of all of it: both ends must mean the same."""
        return hashlib.sha256(self.encode()).hexdigest()

    @cached_property
    def method(self) -> Method:
        return method_of(self.config)

    @cached_property
    def protocol(self) -> Protocol:
        return protocol(self.config.protocol)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        seen = replace(self.config, secure_sums=self.secure, assume_secure_sums=None)
        return parse_protection(seen, self.method)

    @property
    def noises_sums(self) -> bool:
        """Whether nodes add shares of noise that count together only."""
        return any(isinstance(stage, SumGaussian) for stage in self.stages)

    @property
    def metrics(self) -> tuple[str, ...]:
        """List the metrics that are sums over users; coverage and novelty would need a node's lists and item counts."""
        return tuple(name for name in self.protocol.metrics if name not in OF_ALL)

    def world(self, device: str = "cpu") -> World:
        config = self.config
        return World(self.trained, self.clients, config.seed, config.participation, device=torch.device(device))

    def encode(self) -> bytes:
        values = {name: value for name, value in self.config.to_dict().items() if name not in OWN}
        words = {
            "config": values,
            "items": self.items.tolist(),
            "clients": self.clients,
            "trained": self.trained,
            "tie_seed": self.tie_seed,
            "text_users": self.text_users,
            "seeded": self.seeded,
            "secure": self.secure,
            "version": self.version,
            "catalogues": self.catalogues and [one.tolist() for one in self.catalogues],
        }
        words |= {"left_out": self.left_out} if self.left_out else {}
        words |= {"members": self.members} if self.members else {}
        return json.dumps(words, sort_keys=True).encode()

    @staticmethod
    def decode(message: bytes) -> Terms:
        try:
            words: dict[str, Any] = json.loads(message)
            config, items, catalogues = words.pop("config"), words.pop("items"), words.pop("catalogues")
            lists = None if catalogues is None else tuple(np.array(one, np.int64) for one in catalogues)
            return Terms(make_config(config), np.array(items), catalogues=lists, **words)  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadMessage(f"these are not fedrec's terms ({error})") from None


def require_deployable(terms: Terms) -> None:
    """Refuse terms that a deployment cannot fulfil, before anything is started."""
    method, rule = terms.method, terms.protocol
    if method.info.centralised:
        raise FedrecError(f"{method.info.name} is centralised and cannot be deployed; use fedrec run")
    if method.disclosure.secure_aggregation and not terms.secure:
        raise FedrecError(
            f"a single upload of {method.info.name} reveals everything about its client, so the server "
            "may see only sums; add --secure-sums"
        )
    require_selectable(rule)
    if terms.config.assume_secure_sums:
        raise FedrecError("a deployment assumes nothing: give --secure-sums instead of --assume-secure-sums")
    if terms.noises_sums and not terms.secure:
        raise FedrecError(f"the noise of {method.info.name} is for sums: add --secure-sums")
    if rule.split == "global-time":
        raise FedrecError("a global cut in time needs the timestamps of all users; use --protocol honest")
    if rule.time == "item_order":
        raise FedrecError(
            f"protocol {rule.label} orders items by their place in one shared file, which nodes do not "
            "have; use --protocol honest"
        )
    if rule.candidates != "full":
        raise FedrecError(
            f"candidates={rule.candidates} samples by the item numbers of a shared dataset; nodes rank "
            "all items: use --protocol honest"
        )
