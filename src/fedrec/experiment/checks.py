"""What is refused before any work is done, and what is worth a note."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import UNDIVIDED, Protocol
from fedrec.experiment.cohorts import note_cohorts
from fedrec.experiment.config import RunConfig
from fedrec.experiment.observers import Observer
from fedrec.experiment.prepare import Prepared
from fedrec.federation.blind import MakeBlindSums
from fedrec.federation.contract import Method, NoisesItself, World, cohorts_of
from fedrec.federation.discrete import BITS, in_whole_units
from fedrec.federation.group import Group
from fedrec.federation.loop import Rules
from fedrec.federation.noise import Noise, SumGaussian
from fedrec.federation.stages import Shortening, Stage, parse_stages
from fedrec.methods import listings
from fedrec.models import Sequential
from fedrec.privacy.accountant import Adjacency, Guarantee, guarantee, with_budget
from fedrec.privacy.own_noise import sentence

if TYPE_CHECKING:
    from fedrec.experiment.run_plan import RunPlan

# Of the epsilon that is printed where none was asked for: the usual choice.
DELTA = 1e-5
LAST = "an epsilon is reported, so the last round counts: neither validation nor loss selects a round or stops the run"
FEDERATED = ("silos", "participation", "lost_uploads")  # settings that mean nothing where all data is centralised


def list_notes(plan: RunPlan) -> list[str]:
    """List what every report of a run should say, in the order in which it is printed."""
    method, prepared, found = plan.method, plan.prepared, list(plan.prepared.notes)
    if method.disclosure.attributes != "none" and prepared.warm is not None:
        found += prepared.alike
    ignored = [name for name in FEDERATED if getattr(plan.config, name) != getattr(RunConfig, name)]
    if method.info.centralised and ignored:
        found.append(f"{method.info.name} is centralised; ignored: {', '.join(ignored)}")
    if reads_order(method) and prepared.source.time == "none":
        found.append(f"the data has no timestamps: {method.info.name} takes the order of lines as the order of events")
    if plan.config.lost_uploads and not method.info.centralised:
        found.append(f"simulated: {plan.config.lost_uploads:.0%} of all uploads are lost in transit")
    found += filter(None, [_describe_view_of_server(plan)])
    found += [*note_cohorts(plan), *method.remarks(plan.world), *filter(None, [_describe_own_noise(plan)])]
    return [*found, LAST] if plan.claims_epsilon else found


def _describe_view_of_server(plan: RunPlan) -> str:
    """Say what the server sees with secure sums, and where a method needs them and has none; claim nothing else."""
    if plan.config.secure_sums:
        return "secure sums: the server sees sums over the clients of a round, exact to fixed point, and nothing else"
    if plan.config.assume_secure_sums:
        return "secure sums are assumed here: the server sees sums and nothing else; --secure-sums computes them"
    if plan.method.disclosure.secure_aggregation:
        return f"{plan.method.info.name} needs secure sums, which are assumed here; --secure-sums computes them"
    return ""


def reads_order(method: Method) -> bool:
    return method.info.reads_order(method) or isinstance(getattr(method, "model", None), Sequential)


def _describe_own_noise(plan: RunPlan) -> str:
    """Say the epsilon of the method's own noise in a sentence; empty where it claims none."""
    noise = plan.method.noise_spent(plan.clients) if isinstance(plan.method, NoisesItself) else None
    return "" if noise is None else sentence(noise)


def require_selectable(protocol: Protocol) -> None:
    """The metric that selects the round must be measured; checked now rather than after the first round."""
    for name in protocol.select_metric.split("+"):
        if int(name.split("@")[1]) not in protocol.ks:
            ks = "+".join(map(str, protocol.ks))
            raise FedrecError(
                f"the round is selected by {name}, but ks = {ks}; add select_metric=ndcg@{max(protocol.ks)} to "
                "--protocol, or that k to ks"
            )


def require_tested(protocol: Protocol) -> None:
    """A protocol that holds nothing out belongs to `fedrec fit`."""
    if protocol.split == UNDIVIDED:
        raise FedrecError(
            f"split={UNDIVIDED} holds nothing out, so nothing could be tested; train a model to serve "
            "with fedrec fit RUN"
        )


def require_shared(method: Method, group: Group) -> None:
    """Several processes share clients; where all data is with one, there is nothing to share."""
    if method.info.centralised and group.size > 1:
        raise FedrecError(f"{method.info.name} is centralised and trains in one process; start it without torchrun")


def make_secure_sums(config: RunConfig, method: Method, world: World, group: Group) -> MakeBlindSums | None:
    """Make the secure sums that were asked for; what cannot have them is refused by name."""
    if not (config.secure_sums or config.assume_secure_sums):
        return None
    if method.info.centralised:
        raise FedrecError(f"{method.info.name} is centralised and uploads nothing; leave --secure-sums out")
    if method.disclosure.gathers:
        able = ", ".join(listing.name for listing in listings() if listing.blind != "no" and not listing.centralised)
        raise FedrecError(
            f"{method.info.name} needs each client's own upload, which secure sums hide; use one of {able}"
        )
    if config.assume_secure_sums:
        return None
    if group.size > 1:
        raise FedrecError("--secure-sums runs in one process; start it without torchrun")
    # An extra, which other runs do without.
    from fedrec.secure.simulated import simulated_sums

    cohorts = cohorts_of(method, world)
    return simulated_sums(method.info.name, config.lost_uploads, world.device, config.secure_bits, cohorts)


def require_cold(method: Method, prepared: Prepared) -> None:
    """Items that nobody met in training can be ranked by their attributes only."""
    if prepared.warm is not None and method.disclosure.attributes == "none":
        able = ", ".join(listing.name for listing in listings() if listing.attributes != "none")
        raise FedrecError(f"{method.info.name} cannot rank items that were not in training; use one of {able}")


def parse_protection(config: RunConfig, method: Method) -> tuple[Stage, ...]:
    """Parse what happens to uploads, with the noise that a budget asks for."""
    bits = BITS if config.secure_bits is None else config.secure_bits
    stages, blind = in_whole_units(parse_stages(config.privacy), bits), sees_sums_alone(config, method)
    if method.info.centralised and (stages or config.epsilon is not None):
        raise FedrecError(
            f"{method.info.name} is centralised and uploads nothing that could be protected; leave "
            "--privacy and --epsilon out"
        )
    if not blind and any(isinstance(stage, SumGaussian) for stage in stages):
        raise FedrecError(
            "sum-gaussian protects a sum where the server sees nothing else; add --secure-sums, or use gaussian"
        )
    if config.adjacency == "zero-out" and not blind:
        raise FedrecError("--adjacency zero-out is for noise on sums; add --secure-sums, or leave it out")
    if config.epsilon is not None:
        # Against an empty upload the distance is one norm, whatever the method declares of two real ones.
        apart = 1.0 if config.adjacency == "zero-out" else method.disclosure.sensitivity
        return with_budget(stages, method.rounds, config.epsilon, config.delta, blind, apart, bits)
    if config.delta is not None and not stages:
        raise FedrecError("--delta alone protects nothing; add --privacy clip=1 --epsilon 8, or leave it out")
    return stages


def sees_sums_alone(config: RunConfig, method: Method) -> bool:
    """Whether the server sees nothing but sums, by computation or by assumption."""
    return bool(config.secure_sums or config.assume_secure_sums or method.disclosure.secure_aggregation)


def claims_epsilon(plan: RunPlan, names: list[str], unprotected: list[str]) -> bool:
    """Say whether an epsilon will be printed, given the names of what clients send, and what of it has no noise.

    A stage for an upload by name must find it among those names.
    """
    for stage in plan.stages:
        reaches = isinstance(stage, Noise | Shortening) and any(stage.reaches(name) for name in names)
        # Methods that send nothing have no names to compare with.
        if isinstance(stage, Noise | Shortening) and names and not reaches:
            raise unknown("upload", stage.only, names)
    by_stages = promise_of(plan, plan.method.rounds, unprotected).epsilon is not None
    return by_stages or bool(_describe_own_noise(plan))


def promise_of(
    plan: RunPlan, uploads: int, unprotected: Iterable[str], adjacency: Adjacency | None = None, honest: float = 1.0
) -> Guarantee:
    """Return the guarantee for a client with this many uploads; `adjacency`: by default that of the run."""
    sensitivity, relation = plan.method.disclosure.sensitivity, adjacency or plan.config.adjacency or "replace"
    delta = plan.config.delta or DELTA
    return guarantee(plan.stages, uploads, delta, unprotected, sensitivity, relation, honest)


def rules_of(plan: RunPlan, observer: Observer) -> Rules:
    """Settle when a run stops and which round counts.

    Validation metrics and losses are computed from what clients hold, without noise. Where an epsilon is printed they
    must not decide anything.
    """
    method, config, protocol = plan.method, plan.config, plan.protocol
    if plan.claims_epsilon:
        return Rules(method.rounds, config.eval_every, selects=False)
    patience = config.patience if config.patience is not None else protocol.patience
    return Rules(
        method.rounds,
        config.eval_every,
        patience,
        protocol.select_last,
        may_stop=observer.may_stop,
        settled=observer.is_settled if observer.settles else None,
    )
