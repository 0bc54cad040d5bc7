"""What is refused before any work is done, and what is worth a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import Protocol
from fedrec.experiment.cohorts import tested_note
from fedrec.experiment.config import RunConfig
from fedrec.federation.contract import Method
from fedrec.federation.stages import Noise, Stage, SumGaussian, parse_stages
from fedrec.methods import methods
from fedrec.privacy.accountant import with_budget

if TYPE_CHECKING:
    from fedrec.experiment.run import Run

FEDERATED = ("silos", "participation")  # settings that mean nothing where all data is in one place


def notes_of(run: Run) -> list[str]:
    """In the order in which they are printed."""
    method, prepared, found = run.method, run.prepared, list(run.prepared.notes)
    if method.attributes != "none" and prepared.warm is not None:
        found += prepared.alike
    ignored = [name for name in FEDERATED if getattr(run.config, name) != getattr(RunConfig, name)]
    if method.centralised and ignored:
        found.append(f"{method.name} has all data in one place; ignored: {', '.join(ignored)}")
    if method.uses_order() and prepared.source.time == "none":
        found.append(f"the data has no times: {method.name} takes the order of its lines for that of events")
    return [*found, *tested_note(run), *method.remarks(run.world)]


def require_selectable(protocol: Protocol) -> None:
    """What selection needs must be measured; better to say so now than after the first round."""
    for name in protocol.select_metric.split("+"):
        if int(name.split("@")[1]) not in protocol.ks:
            ks = "+".join(map(str, protocol.ks))
            raise FedrecError(
                f"the round is selected by {name}, but ks = {ks}; add select_metric=ndcg@{max(protocol.ks)} to "
                "--protocol, or that k to ks"
            )


def require_cold(run: Run) -> None:
    """Items that nobody met in training have only their attributes to be ranked by."""
    if run.prepared.warm is not None and run.method.attributes == "none":
        able = ", ".join(name for name, method in methods().items() if method.attributes != "none")
        raise FedrecError(f"{run.method.name} cannot rank items that training never met; use one of {able}")


def stages_of(config: RunConfig, method: Method) -> tuple[Stage, ...]:
    """What happens to uploads, with the noise that a budget asks for."""
    stages, blind = parse_stages(config.privacy), method.blind_sum
    if method.centralised and (stages or config.epsilon is not None):
        raise FedrecError(
            f"{method.name} has all data in one place and uploads nothing that could be protected; leave "
            "--privacy and --epsilon out"
        )
    if not blind and any(isinstance(stage, SumGaussian) for stage in stages):
        raise FedrecError(f"sum-gaussian protects a blind sum, which {method.name} has not; use gaussian")
    if config.epsilon is not None:
        return with_budget(stages, method.rounds, config.epsilon, config.delta, blind, method.clips_apart)
    if config.delta is not None and not stages:
        raise FedrecError("--delta alone protects nothing; add --privacy clip=1 --epsilon 8, or leave it out")
    return stages


def require_protected(run: Run) -> None:
    """Noise on an upload by name, and a budget, must fit what clients send; one of them says what that is."""
    if not run.stages or run.method.blind_sum:
        return
    names, clear = run.simulator.preview()
    for stage in run.stages:
        if isinstance(stage, Noise) and names and stage.only not in ("", *names):
            raise unknown("upload", stage.only, names)
    if run.config.epsilon is not None and clear:
        equal = "add --set shares=equal" if hasattr(run.method, "shares") else "use fedmf, which sends none"
        raise FedrecError(f"--epsilon: {run.method.name} sends sample counts without noise, so no epsilon holds; "
                          f"{equal}")  # fmt: skip
