"""What comes down is checked as strictly as what goes up: against the terms that were agreed, before anything uses it.

Kernels index tables by the numbers of items and clients. A table of one row, or somebody else's client number, would
let them read beyond an array's end; tables of the server's own choice would turn metrics into questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Tensors
from fedrec.federation.exchange import Step, Task
from fedrec.federation.server_side import ServerSide

MOST_CLIENTS = 100_000_000
AFTER = 2  # turns after the last round: its score, and the test of the chosen one
WIDTHS = (3, 5)  # of attributes in two examples: what differs between them may have any width


def require_possible(terms: Terms) -> None:
    """Refuse terms whose numbers no federation has, before anything is made of that size."""
    if not 1 <= terms.clients <= MOST_CLIENTS:
        raise BadMessage(f"a federation of {terms.clients} clients is not possible")
    if not 0 <= terms.trained <= len(terms.items) or terms.items.ndim != 1 or not len(terms.items):
        raise BadMessage("the terms have an impossible number of items")
    for catalogue in terms.catalogues or ():
        if catalogue.ndim != 1 or not (np.diff(catalogue) > 0).all() or not _within(catalogue, len(terms.items)):
            raise BadMessage("the terms name items that are not in the vocabulary")


class TaskChecks:
    """`clients`: the numbers of this node's own, ascending."""

    def __init__(self, terms: Terms, clients: np.ndarray) -> None:
        self.terms, self.clients = terms, clients

    def require_place(self) -> None:
        """Refuse client numbers that the terms do not reserve."""
        if not _within(self.clients, self.terms.clients):
            raise BadMessage(f"client numbers up to {self.clients.max()} of {self.terms.clients} that were agreed on")

    def require(self, turn: int, tasks: Sequence[Task]) -> None:
        """Refuse a turn whose tasks are not what the terms let a server ask for."""
        rounds = self.terms.method.rounds
        trains = any(task.train is not None for task in tasks)
        if not 0 <= turn < rounds + AFTER or (trains and turn >= rounds):
            raise BadMessage(f"turn {turn} of a federation of {rounds} rounds")
        if len(tasks) not in (1, 1 if trains else 2):
            raise BadMessage(f"{len(tasks)} tasks in one turn")
        if any(task.keep or task.restore for task in tasks):
            raise BadMessage("a task that moves the state of clients by itself")
        if len({task.score.round for task in tasks if task.score is not None}) > 1:
            raise BadMessage("scores of two models in one turn")
        for task in tasks:
            self._require_train(turn, task.train)
            self._require_score(turn, task.score, trains)
            if task.answer is not None:
                self._require_step(task.answer, range(turn), "an answer")

    def _require_train(self, turn: int, step: Step | None) -> None:
        if step is None:
            return
        self._require_step(step, range(turn, turn + 1), "training")
        sending, fewest = step.sending, step.options.get("fewest")
        if sending is not None and (not _is_ascending(sending) or len(np.setdiff1d(sending, step.clients))):
            raise BadMessage("uploads of clients that do not train")
        # A whole number within the federation: the size of each noise share is divided by it.
        if not isinstance(fewest, int) or not 0 <= fewest <= self.terms.clients:
            raise BadMessage(f"{fewest!s:.20} uploads are planned of {self.terms.clients} clients")
        self._require_like(step, lambda server, client: server.broadcast(client, turn))

    def _require_score(self, turn: int, step: Step | None, trains: bool) -> None:
        """Allow one evaluation a turn, of all agreed items by agreed metrics; the test comes when training is over."""
        if step is None:
            return
        self._require_step(step, range(turn), "a score")
        rule, part = self.terms.protocol, step.options.get("part")
        if part not in ("valid", "test") or (part == "test" and trains and rule.select_on != "test"):
            raise BadMessage(f"figures of the part '{part!s:.20}' are not due in turn {turn}")
        metrics = step.options.get("metrics")
        agreed = {*self.terms.metrics, *rule.selecting}
        if not isinstance(metrics, list | tuple) or not set(map(str, metrics)) <= agreed:
            raise BadMessage(f"metrics that were not agreed on ({metrics!s:.60})")
        wanted = None if self.terms.catalogues is None else self.terms.catalogues[part == "test"]
        # A ranking of a few chosen items would turn a metric into a question about single users.
        if not _are_same(wanted, step.items):
            raise BadMessage("figures of some items alone; all agreed ones are ranked or none")
        items = torch.arange(self.terms.trained) if wanted is None else torch.from_numpy(wanted)
        self._require_like(step, lambda server, client: server.offer(client, step.round, items))

    def _require_step(self, step: Step, rounds: range, what: str) -> None:
        """Refuse a step for other clients or another round, or with tensors that are not numbers for each of them."""
        if step.round not in rounds:
            raise BadMessage(f"{what} of round {step.round}, which is not due")
        if not step.parts:
            raise BadMessage(f"{what} for nobody")
        for clients, down in step.parts:
            if not _is_ascending(clients) or len(np.setdiff1d(clients, self.clients)):
                raise BadMessage(f"{what} for clients that are not this node's")
            for name, value in {**down.shared, **down.own}.items():
                # One number that is not finite would spread through a client's state for good.
                if value.is_floating_point() and not bool(value.isfinite().all()):
                    raise BadMessage(f"'{name:.40}' contains numbers that are not finite")
            for name, value in down.own.items():
                if not value.dim() or len(value) != len(clients):
                    raise BadMessage(f"'{name:.40}' does not have one entry for each client")
        if len(step.clients) != len(np.unique(step.clients)):
            raise BadMessage(f"{what} twice for one client")

    # -- shapes, by the example of a server without data --

    def _require_like(self, step: Step, make: Any) -> None:
        # One client is enough to see the shapes, and cheap whatever the size of the table.
        client = step.parts[0][0][:1]
        examples = [down for server in self._servers if (down := _try(make, server, client)) is not None]
        if not examples:
            # The method needs what only the real server has, so there is no example to compare with.
            return
        for _, down in step.parts:
            for kind in ("shared", "own"):
                known = [getattr(example, kind) for example in examples]
                _require_tensors(getattr(down, kind), known, skip=int(kind == "own"))

    @cached_property
    def _servers(self) -> list[ServerSide]:
        """Examples of the server; two where it has attributes, whose width is its own affair."""
        terms, world = self.terms, self.terms.world()
        if terms.method.disclosure.attributes == "none":
            made = [_try(lambda: ServerSide(terms.method, world))]
        else:
            blank = [torch.zeros(len(terms.items), width, dtype=world.dtype) for width in WIDTHS]
            made = [_try(lambda given=given: ServerSide(terms.method, world, given)) for given in blank]
        return [one for one in made if one is not None]


def _try(make: Any, *given: Any) -> Any:
    """Return what is made, or None where an example cannot be: it has no data, and may have none of what it needs."""
    try:
        return make(*given)
    # A broad list, because methods fail in many ways on a server without data; none of it is the sender's fault.
    except (FedrecError, ArithmeticError, LookupError, ValueError, RuntimeError, TypeError, AssertionError):
        return None


def _require_tensors(sent: Tensors, examples: Sequence[Mapping[str, Tensor]], skip: int) -> None:
    """Refuse tensors of other names, types or shapes than all examples have. `skip`: leading axes of clients."""
    if sent.keys() != examples[0].keys():
        raise BadMessage(
            f"unexpected tensors ({', '.join(sorted(sent))[:80]}), not {', '.join(sorted(examples[0]))[:80]}"
        )
    for name, value in sent.items():
        known = [example[name] for example in examples]
        wanted = [tuple(one.shape[skip:]) for one in known]
        # An axis in which the two examples differ is free; all others are fixed by the method.
        fixed = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*wanted, strict=True)]
        shape = tuple(value.shape[skip:])
        fits = len(shape) == len(fixed) and all(
            one is None or one == size for size, one in zip(shape, fixed, strict=True)
        )
        if value.dtype != known[0].dtype or not fits:
            raise BadMessage(
                f"'{name:.40}' is {value.dtype} of the shape {shape}; it must be {known[0].dtype} of {wanted[0]}"
            )


def _are_same(wanted: np.ndarray | None, given: np.ndarray | None) -> bool:
    if wanted is None or given is None:
        return wanted is given
    return np.array_equal(wanted, given)


def _is_ascending(numbers: np.ndarray) -> bool:
    return numbers.ndim == 1 and numbers.dtype == np.int64 and bool((np.diff(numbers) > 0).all())


def _within(numbers: np.ndarray, count: int) -> bool:
    # An empty array has no extremes.
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < count)
