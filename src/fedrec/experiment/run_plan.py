"""A run before any work is done: what its config names, read, prepared and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedrec.data import Interactions
from fedrec.evaluation import Protocol, protocol
from fedrec.evaluation.own_metrics import rehearse
from fedrec.experiment.checks import (
    claims_epsilon,
    list_notes,
    make_secure_sums,
    parse_protection,
    require_cold,
    require_selectable,
    require_shared,
)
from fedrec.experiment.config import RunConfig, parse_memory, with_columns
from fedrec.experiment.limits import require_room
from fedrec.experiment.machine import device_named
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import Prepared, prepare, prepare_config
from fedrec.federation.blind import MakeBlindSums
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method, World
from fedrec.federation.group import ALONE, Group
from fedrec.federation.schema import ClientSetup, preview_names
from fedrec.federation.server_side import ServerSide
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Stage
from fedrec.federation.tryout import try_out

Data = Interactions | Prepared | None
"""What a run works on: a table, what another run has prepared of the same data, or (None) what its config names."""


@dataclass(frozen=True)
class RunPlan:
    """All that is settled before the first round. `fedrec.federation.contract.Plan` is another thing: who trains."""

    config: RunConfig
    method: Method
    protocol: Protocol
    prepared: Prepared
    stages: tuple[Stage, ...]
    world: World
    clients: ClientData
    """Those of this process."""
    secure_sums: MakeBlindSums | None
    group: Group = ALONE
    names_data: bool = True
    """Whether the config says where the data is; a table that was handed over has no place."""
    is_trained: bool = False
    """Whether the run has ended before, and its state is on disk."""

    @property
    def memory(self) -> int:
        return parse_memory(self.config.memory)

    @cached_property
    def data_identity(self) -> str:
        return self.prepared.source.identity()

    @cached_property
    def attributes(self) -> Tensor | None:
        """Those of the items, for a method that sees them."""
        return _attributes_for(self.method, self.prepared, self.world)

    @cached_property
    def claims_epsilon(self) -> bool:
        """Whether an epsilon will be printed."""
        return claims_epsilon(self, *self._preview_uploads())

    @property
    def notes(self) -> list[str]:
        """What every report of this run should say."""
        return list_notes(self)

    def make_simulator(self) -> Simulator:
        return Simulator(
            self.method,
            self.clients,
            self.stages,
            self.memory,
            self.attributes,
            sealed=self.config.epsilon is not None,
            group=self.group,
            blind=self.secure_sums,
            lost_uploads=0.0 if self.method.info.centralised else self.config.lost_uploads,
        )

    def _preview_uploads(self) -> tuple[list[str], list[str]]:
        """Name what clients will send, and what of it no noise reaches; only noise makes this worth a server."""
        if not self.stages:
            return [], []
        setup = ClientSetup(
            self.clients.negatives, self.clients.unique, self.stages, sealed=self.config.epsilon is not None
        )
        return preview_names(ServerSide(self.method, self.world, self.attributes), setup)


def plan_run(
    config: RunConfig,
    data: Data = None,
    method: Method | None = None,
    group: Group = ALONE,
    is_trained: bool = False,
) -> RunPlan:
    """Read and prepare what `config` names, and refuse what cannot work; nothing is trained or written.

    `method` takes the place of the one that `config` names. `group`: the processes that share the work.
    """
    chosen, rules = method or method_of(config), protocol(config.protocol)
    # what costs nothing is refused first; data is read after it, and memory is asked for last
    require_selectable(rules)
    rehearse(rules.all_metrics, rules.ks)
    require_shared(chosen, group)
    stages, device = parse_protection(config, chosen), device_named(config.device)
    prepared = _prepare(config, rules, data, chosen.info.centralised)
    prepared.require_candidates()
    require_cold(chosen, prepared)
    world = World(
        items=prepared.n_trained,
        clients=prepared.partition.n_clients,
        most_users=int(prepared.partition.sizes().max(initial=1)),
        seed=config.seed,
        participation=config.participation,
        device=device,
    )
    # every process prepares all of the data, so that all number users and items alike, and keeps its shard
    clients = group.shard(prepared.clients(world))
    if not is_trained:
        attributes = _attributes_for(chosen, prepared, world)
        require_room(chosen, clients, attributes)
        try_out(chosen, clients, attributes)
    plan = RunPlan(
        with_columns(config, prepared.source.columns),
        chosen,
        rules,
        prepared,
        stages,
        world,
        clients,
        make_secure_sums(config, chosen, world, group),
        group,
        names_data=not isinstance(data, Interactions),
        is_trained=is_trained,
    )
    # Asked for now, because it refuses a stage for an upload that nobody sends.
    _ = plan.claims_epsilon
    return plan


def _attributes_for(method: Method, prepared: Prepared, world: World) -> Tensor | None:
    if method.disclosure.attributes == "none":
        return None
    return torch.from_numpy(prepared.item_features[0]).to(world.device, world.dtype)


def _prepare(config: RunConfig, rules: Protocol, data: Data, centralised: bool) -> Prepared:
    if isinstance(data, Prepared):
        return data.regroup(config.silos, centralised)
    if data is None or config.train is not None:
        return prepare_config(config, rules, centralised)
    return prepare(data, rules, config.silos, centralised, config.attributes)
