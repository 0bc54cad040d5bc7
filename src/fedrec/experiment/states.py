"""The states of a run that count: that of the best round so far, and the one to go on from."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedrec.errors import FedrecError, FedrecWarning
from fedrec.experiment import checkpoint
from fedrec.experiment.checkpoint import Resumed
from fedrec.experiment.config import FORMAT
from fedrec.experiment.disk import Keep
from fedrec.experiment.folder import RunFolder
from fedrec.federation.loop import Progress, Rules
from fedrec.federation.simulator import Simulator

if TYPE_CHECKING:
    from fedrec.experiment.run_plan import RunPlan


class States:
    """Holds the best round in memory, or on disk where it is too large, and writes what a resume needs."""

    def __init__(self, plan: RunPlan, simulator: Simulator, rules: Rules, keep: Keep) -> None:
        self.plan, self.simulator, self.rules, self.keep = plan, simulator, rules, keep
        self._best: dict[str, Tensor] | None = None
        self._stored = -1  # the round whose state is in checkpoint.safetensors

    # -- while it trains --

    def keep_best(self, folder: RunFolder | None, progress: Progress) -> None:
        tensors = checkpoint.tensors_of(self.simulator)
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        # A quarter of the memory at most for the best state, since training needs the rest.
        if folder is None or not self.plan.group.any(size >= self.plan.memory // 4):
            self._best = {name: value.clone() for name, value in tensors.items()}
        # Too large to hold twice, so it goes to the disk at once.
        else:
            self._best = None
            self._save_best(folder, tensors, progress.best_round)

    def save(self, folder: RunFolder, progress: Progress) -> None:
        """Best first: a kill in between leaves a best that the resumed run will reach again."""
        # a checkpoint may only speak of rounds whose records are on the disk
        folder.sync_log()
        if self._best is not None:
            self._store(folder, self._best, progress.best_round)
        self._save_last(folder, progress, with_state=True)

    def _store(self, folder: RunFolder, tensors: dict[str, Tensor], round: int) -> None:
        # The same state is not written a second time, since a large one may take longer than a round.
        if self.plan.group.any(self._stored != round or not folder.best.exists()):
            self._save_best(folder, tensors, round)

    def _save_best(self, folder: RunFolder, tensors: dict[str, Tensor], round: int) -> None:
        whole = checkpoint.collect_tensors(self.simulator, tensors)
        if self.plan.group.first:
            checkpoint.save(folder.best, whole, {"round": round} | self._about())
        self._stored = round

    def _save_last(self, folder: RunFolder, progress: Progress, with_state: bool) -> None:
        checkpoint.save_resume(folder.last, self.simulator, progress, self._about(), with_state)

    def _about(self) -> dict[str, Any]:
        return {"format": FORMAT, "config": self.plan.config.to_dict(), "data": self.plan.data_identity}

    # -- when it has all its rounds --

    def save_end(self, folder: RunFolder, progress: Progress) -> None:
        """The chosen round, and how the run went. The state of the last round is a second model: on request only."""
        folder.sync_log()
        chosen, last = self._chosen(progress), progress.next_round - 1
        if self._best is not None:
            self._store(folder, self._best, chosen)
        elif chosen == last:
            self._store(folder, checkpoint.tensors_of(self.simulator), chosen)
        # The present state is broken, and an earlier one would lead to the same end.
        if progress.diverged:
            folder.forget_last()
        else:
            # Where the chosen round is the last one, the model itself is the state to go on from.
            self._save_last(folder, progress, with_state=self.keep == "last" and chosen != last)

    def load_chosen(self, folder: RunFolder | None, progress: Progress) -> int:
        """Make the chosen round the present state; returns which it is."""
        chosen = self._chosen(progress)
        if not self._is_selected(progress):
            return chosen
        best = self._best if self._best is not None or folder is None else self._load_stored_best(folder, progress)
        if best is None:
            raise FedrecError(f"the state of the chosen round {chosen} is missing; start over in another --out folder")
        checkpoint.restore(self.simulator, best)
        return chosen

    def _is_selected(self, progress: Progress) -> bool:
        return self.rules.selects and progress.best_round >= 0

    def _chosen(self, progress: Progress) -> int:
        """The best round by selection, or the last where there is no selection."""
        return progress.best_round if self._is_selected(progress) else progress.next_round - 1

    # -- when it goes on --

    def resume(self, folder: RunFolder) -> Progress | None:
        """Restore where a run with the same config left off; None: there is nothing to go on from."""
        if not folder.last.exists():  # killed before its first checkpoint, or nothing was kept
            if folder.summary.exists():
                warnings.warn(f"{folder.path} kept no model, so it is trained again", FedrecWarning, stacklevel=2)
            return None
        found = checkpoint.load_resume(folder.last, self.plan.config.to_dict(), self.plan.data_identity)
        if self.rules.rounds < found.progress.next_round:
            raise FedrecError(
                f"{folder.path} has {found.progress.next_round} rounds already; resume with --rounds at least that"
            )
        found.progress.stopped_early = self.rules.has_ended(found.progress)
        state = found.tensors or self._state_of_ended(folder, found)
        if state is None:
            return None
        replace(found, tensors=state).restore(self.simulator)
        if found.progress.best_round >= 0 and folder.best.exists():
            self._best = self._load_stored_best(folder, found.progress)
        return found.progress

    def _state_of_ended(self, folder: RunFolder, found: Resumed) -> dict[str, Tensor] | None:
        """Of a run that has ended: the model, where its round is the last one, or nothing, where nothing is to do.

        None: what it would go on from was not kept.
        """
        tensors, about = checkpoint.load(folder.best) if folder.best.exists() else ({}, {})
        if about.get("round") == found.progress.next_round - 1:
            return tensors
        if tensors and (found.progress.stopped_early or found.progress.next_round >= self.rules.rounds):
            return {}
        warnings.warn(
            f"{folder.path} kept the model of round {found.progress.best_round + 1} and not the last state, "
            "so it is trained again from the first round; --keep-last keeps both",
            FedrecWarning,
            stacklevel=2,
        )
        return None

    def load_best(self, folder: RunFolder) -> int:
        """Make the chosen round of a finished run the present state; returns which it is."""
        tensors, about = checkpoint.load(folder.best)
        checkpoint.require_data(about, self.plan.data_identity, folder.best)
        checkpoint.restore(self.simulator, checkpoint.part_of(self.simulator, tensors))
        return int(about["round"])

    def _load_stored_best(self, folder: RunFolder, progress: Progress) -> dict[str, Tensor] | None:
        """The chosen round on disk; None where a kill left that of a later round, which will come again."""
        wanted = progress.best_round
        tensors, about = checkpoint.load(folder.best)
        # After a kill the best on disk may be of a round that the resumed run has not reached yet.
        if about.get("round") != wanted:
            return None
        self._stored = wanted
        return checkpoint.part_of(self.simulator, tensors)
