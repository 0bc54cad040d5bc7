"""The server of a federation: it meets nodes, takes them through rounds, keeps what a server may have.

It knows nothing of how messages travel: a `Link` carries them, Flower or a test. One exchange is a turn: the answer of
the last round, its score and the training of the next one ride on one message. After every round all is on the disk: a
new process can go on.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.deploy.deployment_summary import summary_of
from fedrec.deploy.link import Limits, Link
from fedrec.deploy.node import CHANCE
from fedrec.deploy.node_registry import Counters, Member, NodeRegistry, Tell
from fedrec.deploy.terms import Terms
from fedrec.deploy.turns import TurnRequest, Turns
from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation.partial import PartialEvaluation
from fedrec.experiment import checkpoint
from fedrec.experiment.config import FORMAT, in_todays_words, require_same
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.observers import observer_of
from fedrec.federation.contract import Plan, Tensors
from fedrec.federation.exchange import Coordinator, Step, Task
from fedrec.federation.exposure import describe_server_view
from fedrec.federation.loop import Progress, Rules, Score
from fedrec.federation.schema import ClientSetup
from fedrec.federation.server_side import ServerSide

NODES = "nodes.json"  # who was let in, in the run folder
SUMS = "sums"  # what has arrived of secure sums that are not finished, in the run folder


class Server:
    def __init__(
        self, terms: Terms, folder: RunFolder, link: Link, limits: Limits, tell: Tell, attributes: Tensor | None = None
    ) -> None:
        self.terms, self.folder, self.limits, self.tell = terms, folder, limits, tell
        method, rule = terms.method, terms.protocol
        side = ServerSide(method, terms.world(), attributes)
        like = ClientSetup(rule.negatives, rule.neg_unique, terms.stages)  # type: ignore[arg-type]
        patience = terms.config.patience if terms.config.patience is not None else rule.patience
        self.rules = Rules(
            method.rounds,
            terms.config.eval_every,
            patience,
            rule.select_last,
            # Figures have no noise, so under a budget they decide nothing.
            selects=terms.config.epsilon is None,
            may_stop=observer_of(method).may_stop,
        )
        self.progress, self.counters = Progress(), Counters()
        self.registry = NodeRegistry(terms, link, limits, folder.path / NODES, tell, self.counters)
        self.coordinator = Coordinator(side, self.registry.groups, like)
        self.turns = Turns(
            terms, self.coordinator, self.registry, limits, tell, self.counters, method.rounds, folder.path / SUMS
        )
        self._pending: dict[str, Any] | None = None  # the record of the last round, which waits for its score
        self._best: Tensors | None = None

    @property
    def members(self) -> list[Member]:
        return self.registry.members

    # -- the whole --

    def run(self) -> dict[str, Any]:
        """From the first round, or from where a process before has stopped, to summary.json."""
        self.tell("expects", self._describe_load())
        self._resume()
        # After a restart nodes come back one by one; to go on with the first of them would drop the others' clients.
        if self.progress.next_round:
            self.registry.reunite()
        # Only the first round waits for the larger number: later ones go on while a member is away.
        self.registry.require(max(self.limits.minimum, 0 if self.progress.next_round else self.limits.first))
        while self.progress.next_round < self.rules.rounds and not self.progress.stopped_early:
            self._round(self.progress.next_round)
        chosen = self._end()
        summary = self._finish(chosen)
        self.folder.write_summary(summary)
        self.tell("finished", {"round": chosen, "test": summary["test"]})
        return summary

    def _describe_load(self) -> dict[str, Any]:
        """What a round holds at the server: sums are folded into one, gathered uploads stay side by side."""
        sums = each = 0
        for kinds in self.coordinator.schema.fields.values():
            for kind in kinds:
                # Eight bytes a number: sums are folded in float64, however uploads are stored.
                size = math.prod(kind.shape) * (kind.dtype.itemsize if kind.gathered else 8)
                sums, each = sums + size * (not kind.gathered), each + size * kind.gathered
        taking = max(1, int(self.terms.clients * self.terms.config.participation))
        seen = "" if self.terms.secure else describe_server_view(self.terms.method)
        return {"sums": sums, "gathered": each * taking, "seen": seen}

    def _round(self, number: int) -> None:
        started = time.perf_counter()
        # The score of the last round rides on this turn, which saves an exchange a round.
        due = number - 1 if number and self.rules.is_due(number - 1) else None
        best = self.progress.best_round
        turn = self.turns.run(TurnRequest(number, best, lambda group: [self._task(group, due, train=True)]))
        if due is not None and self._judge(due, turn.figures(0)):
            return  # it ended with the round before; what was trained since is dropped
        coordinator = self.coordinator
        plan, arrived = coordinator.plan, coordinator.senders
        try:
            coordinator.end()
        except DivergedError as error:
            # Without any scored round there is nothing to return to, so the error is the result.
            if self.progress.best_round < 0:
                raise
            self.progress.diverged, self.progress.stopped_early = str(error), True
            return
        seconds = time.perf_counter() - started
        self.progress.seconds_train += seconds
        self.progress.next_round = number + 1
        taken = np.concatenate([member.numbers for member in self.members])
        # Numbers that wait for late joiners are not lost.
        lost = len(np.intersect1d(plan.uploads(), taken)) - len(arrived)
        self.counters.lost += lost
        entry = self.turns.ledger.rounds.get(number, {})
        # The record before this one is whole now that its score is known; a log line is never rewritten.
        self._flush()
        self._pending = {
            "round": number,
            "clients": len(plan.train),
            "seconds": round(seconds, 6),
            "bytes_up": entry.get("up", 0),
            "bytes_down": entry.get("down", 0),
            **({"lost": lost} if lost else {}),
            "nodes": turn.nodes,
            "cpu": round(turn.cpu, 3),
        }
        # Saved before it is told, so that nobody hears of a round that a crash could take back.
        self._save(plan, arrived, number)
        self.tell(
            "round",
            {
                "round": number,
                "rounds": self.rules.rounds,
                "nodes": turn.nodes,
                "lost": lost,
                "seconds": seconds,
                "best": self.progress.best_value if self._best else None,
            },
        )

    def _end(self) -> int:
        """Tell the last answer, score the last round; returns the chosen one."""
        last = self.progress.next_round - 1
        if not self.progress.stopped_early:
            turn = self.turns.run(
                TurnRequest(
                    last + 1,
                    self.progress.best_round,
                    lambda group: [self._task(group, last, train=False)],
                    trains=False,
                )
            )
            self._judge(last, turn.figures(0))
        self.coordinator.drop_answer()
        self._flush()
        if self._best is None:
            # No score ever arrived, for instance under a privacy budget: the last model is the one to keep.
            return last
        self.coordinator.server.tensors = self._best
        return self.progress.best_round

    def _finish(self, chosen: int) -> dict[str, Any]:
        """The nodes go back to the chosen round and are tested."""
        started = time.perf_counter()
        # Written before the test: if nodes are gone by then, the model of the federation still exists.
        checkpoint.save(self.folder.best, self._tensors(), {"round": chosen, **self._about()})
        asked = {"metrics": list(self.terms.metrics)}
        best = self.progress.best_round
        turn = self.turns.run(
            TurnRequest(
                self.progress.next_round + 1,
                best,
                lambda group: [
                    Task(score=self._score(group, chosen, {"part": "valid", **asked})),
                    Task(score=self._score(group, chosen, {"part": "test", "chance": True, **asked})),
                ],
                restore=chosen == best,
                trains=False,
            )
        )
        self.progress.seconds_evaluate += time.perf_counter() - started
        valid, test = turn.figures(0), turn.figures(1)
        luck = {name.removeprefix(CHANCE): value for name, value in test.mean().items() if name.startswith(CHANCE)}
        # The one figure that is no mean over users.
        for k in self.terms.protocol.ks:
            both = luck.get(f"precision@{k}", 0.0), luck.get(f"recall@{k}", 0.0)
            luck[f"f1_of_means@{k}"] = 2 * both[0] * both[1] / sum(both) if sum(both) else 0.0
        tested = {name: value for name, value in test.mean().items() if not name.startswith(CHANCE)}
        if not test.users:
            raise FedrecError(
                "no node has reported metrics of the chosen round; see the nodes' messages above (a node with few "
                "users reports none, unless its owner agrees to it)"
            )
        return summary_of(self, chosen, tested, valid.mean() if valid.users else {}, luck, test.users)

    # -- what nodes are asked for --

    def _task(self, group: int, scored: int | None, train: bool) -> Task:
        part = "test" if self.terms.protocol.select_on == "test" else "valid"
        options = {"part": part, "metrics": list(self.terms.protocol.selecting)}
        score = None if scored is None else self._score(group, scored, options)
        return replace(self.coordinator.task(group, train=train), score=score)

    def _score(self, group: int, round: int, options: Mapping[str, Any]) -> Step:
        catalogues = self.terms.catalogues
        items = None if catalogues is None else catalogues[options["part"] == "test"]
        return self.coordinator.score(group, round, options, items)

    def _judge(self, round: int, figures: PartialEvaluation) -> bool:
        """Take the score of a round; whether the run ends with it."""
        # No node had enough users to report; a round without figures must not count against patience.
        if not figures.users:
            return False
        means = figures.mean()
        if self._pending is not None:
            self._pending["valid"] = means
        score = Score(self.terms.protocol.selection_value(means), means, 0.0)
        if self.progress.judge(self.rules, round, score):
            # Cloned: training goes on in the same tensors.
            self._best = {name: value.clone() for name, value in self.coordinator.server.tensors.items()}
        self.tell("score", {"round": round, "valid": means, "best": self.progress.best_round == round})
        return self.progress.stopped_early

    # -- on the disk --

    def _tensors(self) -> Tensors:
        return {f"server.{name}": value for name, value in self.coordinator.server.tensors.items()}

    def _about(self) -> dict[str, Any]:
        return {"format": FORMAT, "config": self.terms.config.to_dict(), "terms": self.terms.identity}

    def _flush(self) -> None:
        """Write the record of the round before the last; it is whole now."""
        if self._pending is not None:
            self.folder.log(self._pending)
            self._pending = None

    def _save(self, plan: Plan, arrived: np.ndarray, round: int) -> None:
        """All that the next process needs, at the end of a round."""
        tensors = self._tensors() | {"plan.train": torch.tensor(plan.train), "arrived": torch.tensor(arrived)}
        tensors |= {f"best.{name}": value for name, value in (self._best or {}).items()}
        if plan.upload is not None:
            tensors["plan.upload"] = torch.tensor(plan.upload)
        about = {
            "round": round,
            "progress": dataclasses.asdict(self.progress),
            "pending": self._pending,
            "ledger": self.turns.ledger.rounds,
            "counters": dataclasses.asdict(self.counters),
            "held": self.turns.held,
            "cpu": [[member.cpu, member.turns] for member in self.members],
            **self._about(),
        }
        # The log reaches the disk before the state that refers to it; the other order could lose a round's line.
        self.folder.sync_log()
        checkpoint.save(self.folder.last, tensors, about)

    def _resume(self) -> None:
        self.folder.sweep()
        if not self.folder.last.exists():
            self.folder.forget_after(0)
            return
        tensors, about = checkpoint.load(self.folder.last)
        there = in_todays_words(about["config"], about.get("format", 1))
        require_same(there, self.terms.config.to_dict(), self.folder.path)
        if about["terms"] != self.terms.identity:
            raise FedrecError(f"{self.folder.path} was started with other items or clients; use another --out")
        self.progress, self._pending = Progress(**about["progress"]), about["pending"]
        self.turns.ledger.rounds = {int(number): entry for number, entry in about["ledger"].items()}
        vars(self.counters).update(about["counters"])
        self.turns.held = about["held"]
        for member, (cpu, turns) in zip(self.members, about["cpu"], strict=False):
            member.cpu, member.turns = cpu, turns
        self.coordinator.server.tensors = _under("server.", tensors)
        self._best = _under("best.", tensors) or None
        upload = tensors.get("plan.upload")
        plan = Plan(tensors["plan.train"].numpy(), None if upload is None else upload.numpy())
        self.coordinator.resume_after(int(about["round"]), plan, tensors["arrived"].numpy())
        # Lines of rounds after the saved state are dropped, since these rounds are run again.
        self.folder.forget_after(int(about["round"]))
        self.tell("resumed", {"round": self.progress.next_round})


def _under(start: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
