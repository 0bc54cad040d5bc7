"""One round of a method with a few clients, nothing of which is kept: a mistake against the contract gets a sentence.

Methods of this package have their tests; one from elsewhere is tried before a run, so that what it returns in a wrong
shape is said here and by name, and not by a kernel or a later round.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import Down, Gather, Mean, Method, Plan, State, Sum, Tensors, Ups, cohorts_of
from fedrec.federation.wire import Wire

PACKAGE = Path(__file__).parents[1]
PACKAGES = "site-packages"
# more than one, so that a result that mixes up clients has another shape; three still cost nothing
FEW = 3
# Names this much alike are taken for a misspelling of one another.
NEAR = 0.8
MEMBERS = [name for name in vars(Method) if not name.startswith("_")]


def try_out(method: Method, data: ClientData, attributes: Tensor | None = None) -> None:
    """Raise for the first mistake; methods of this package are left alone."""
    # Methods of this package have tests, which try more than one round here could.
    if not type(method).__module__.startswith("fedrec."):
        _Tryout(method, data, attributes).round()


@dataclass(frozen=True)
class _Tryout:
    method: Method
    data: ClientData
    attributes: Tensor | None

    @property
    def name(self) -> str:
        return type(self.method).__name__

    def round(self) -> None:
        self._require_spelling()
        world, number = self.data.world, 0
        with self._step("init_server"):
            server = self.method.init_server(world, self.attributes)
        self._require_tensors("init_server", server)
        with self._step("plan", server=server):
            plan = self.method.plan(world, server, number)
        for cohort in cohorts_of(self.method, world):
            clients = self.data.select_hosted(np.intersect1d(cohort.clients, plan.uploads()))[:FEW]
            if len(clients):  # else nobody of these uploads in the first round
                chunk = self.data.shard(clients).chunk(clients, cohort.name, foldable=True)
                server = self._cohort(server, plan, chunk, number)

    def _cohort(self, server: Tensors, plan: Plan, chunk: Chunk, number: int) -> Tensors:
        """Train, aggregate, answer and score with a few clients of a cohort; what the server is after it."""
        with self._step("init_clients"):
            state = self.method.init_clients(self.data.world, chunk)
        self._require_state("init_clients", state, chunk)
        with self._step("broadcast", server=server):
            down = self.method.broadcast(server, chunk.clients, number)
        self._require_down("broadcast", down, chunk)
        # A copy, because a method may train in place and the state is needed again for comparison.
        given = _copy(state)
        with self._step("local", state=given, down=down):
            returned = self.method.local(given, down, chunk, number)
        after, payload = self._require_pair(returned)
        self._require_same_state("local", after, state, chunk)
        self._require_uploads(payload, chunk)
        if not payload:
            self._score(server, after, chunk, number)
            return server
        ups = self._send_up(payload, down, chunk, number)
        with self._step("aggregate", server=server, ups=ups.reduced):
            aggregated = self.method.aggregate(dict(server), ups, number)
        server = self._require_same_server(aggregated, server)
        after = self._answer(server, after, plan, chunk, number)
        self._score(server, after, chunk, number)
        return server

    def _send_up(self, payload: dict[str, Any], down: Down, chunk: Chunk, number: int) -> Ups:
        wire, folded = (
            Wire(self.data.world, noised=self.method.disclosure.own_noise, secret=self.data.secret),
            Accumulator(),
        )
        wire.send_up(payload, down, chunk.clients, chunk.cohort, number, folded)
        return wire.collect(folded, number).ups(self.data.world.dtype)

    def _answer(self, server: Tensors, state: State, plan: Plan, chunk: Chunk, number: int) -> State:
        with self._step("answer", server=server):
            answer = self.method.answer(server, plan, chunk.clients, number)
            down = None if answer is None else answer.make(chunk.clients)
        if down is None:
            return state
        self._require_down("answer", down, chunk)
        given = _copy(state)
        with self._step("receive", state=given, down=down):
            after = self.method.receive(given, down, chunk, number)
        self._require_same_state("receive", after, state, chunk)
        return State(state.per_client | after.per_client, state.per_user | after.per_user)

    def _score(self, server: Tensors, state: State, chunk: Chunk, number: int) -> None:
        everything = torch.arange(self.data.world.items, device=self.data.world.device)
        # All items, and then some of them that do not start at 0, so that positions and numbers differ.
        for items in (everything, everything[1::2]):
            with self._step("offer", server=server):
                down = self.method.offer(server, chunk.clients, number + 1, items)
            self._require_down("offer", down, chunk)
            with self._step("score", state=state, down=down), torch.no_grad():
                scores = self.method.score(state, down, chunk, items)
            wanted = [len(chunk.users), len(items)]
            if not isinstance(scores, Tensor) or list(scores.shape) != wanted:
                raise self._wrong(
                    "score",
                    f"returned {_kind(scores)}; it must be {wanted}: a row for each "
                    f"of {wanted[0]} users, a column for each of {wanted[1]} items",
                )

    # -- what the functions returned --

    def _require_tensors(self, function: str, found: Any) -> None:
        if not isinstance(found, dict):
            raise self._wrong(function, f"returned {_kind(found)}; it must be a dictionary of tensors by name")
        for name, value in found.items():
            if not isinstance(value, Tensor):
                raise self._wrong(function, f"returned '{name}' as {_kind(value)}; it must be a tensor")

    def _require_rows(self, function: str, where: str, found: Any, rows: int, what: str) -> None:
        self._require_tensors(function, found)
        for name, value in found.items():
            if not value.dim() or len(value) != rows:
                raise self._wrong(
                    function, f"returned {where}['{name}'] as {_kind(value)}; its first axis must be the {rows} {what}"
                )

    def _require_state(self, function: str, state: Any, chunk: Chunk) -> None:
        if not isinstance(state, State):
            raise self._wrong(
                function, f"returned {_kind(state)}; it must be State(per_user={{...}}, per_client={{...}})"
            )
        self._require_rows(function, "per_user", state.per_user, len(chunk.users), "users of the chunk")
        self._require_rows(function, "per_client", state.per_client, len(chunk.clients), "clients of the chunk")

    def _require_same_state(self, function: str, after: Any, before: State, chunk: Chunk) -> None:
        """What `receive` leaves out stays as it was; `local` trains, so that what it leaves out is forgotten."""
        self._require_state(function, after, chunk)
        for part in ("per_user", "per_client"):
            kept = getattr(before, part) if function == "receive" else {}
            self._require_same(function, part, {**kept, **getattr(after, part)}, getattr(before, part), "init_clients")

    def _require_same_server(self, after: Any, before: Tensors) -> Tensors:
        self._require_tensors("aggregate", after)
        self._require_same("aggregate", "", after, before, "init_server")
        return dict(after)

    def _require_same(self, function: str, where: str, after: Tensors, before: Tensors, maker: str) -> None:
        for name in before.keys() - after.keys():
            kept = f"{where}['{name}']" if where else f"'{name}'"
            raise self._wrong(function, f"returned no {kept}, which {maker} made; return it, changed or not")
        for name in after.keys() - before.keys():
            raise self._wrong(function, f"returned '{name}', which is new; make it in {maker}, so that it can be kept")
        for name, value in after.items():
            if value.shape != before[name].shape:
                raise self._wrong(
                    function, f"returned '{name}' as {_kind(value)}; {maker} made it {_kind(before[name])}"
                )

    def _require_down(self, function: str, down: Any, chunk: Chunk) -> None:
        if not isinstance(down, Down):
            raise self._wrong(function, f"returned {_kind(down)}; it must be Down(shared={{...}}, own={{...}})")
        self._require_tensors(function, down.shared)
        self._require_rows(function, "own", down.own, len(chunk.clients), "clients")

    def _require_pair(self, returned: Any) -> tuple[Any, Any]:
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
        raise self._wrong(
            "local", f"returned {_kind(returned)}; it must be two things: the new State, the uploads by name"
        )

    def _require_uploads(self, payload: Any, chunk: Chunk) -> None:
        if not isinstance(payload, dict):
            raise self._wrong("local", f"returned {_kind(payload)} for uploads; it must be a dictionary by name")
        for name, upload in payload.items():
            if not isinstance(upload, Mean | Sum | Gather):
                raise self._wrong(
                    "local",
                    f"uploads '{name}' as {_kind(upload)}; wrap it in Mean(...), Sum(...) or "
                    "Gather(...), which say how the server needs it",
                )
            if isinstance(upload.value, Tensor) and (not upload.value.dim() or len(upload.value) != len(chunk.clients)):
                raise self._wrong(
                    "local",
                    f"uploads '{name}' as {_kind(upload.value)}; its first axis must be the "
                    f"{len(chunk.clients)} clients of the chunk",
                )
        if payload and type(self.method).aggregate is Method.aggregate:
            raise FedrecError(
                f"{self.name} uploads {', '.join(payload)} but has no aggregate, so the server would not "
                "use it; write aggregate(self, server, ups, round)"
            )

    # -- words --

    def _require_spelling(self) -> None:
        """A function with almost the name of a member, which the method lacks, is taken for it."""
        cls = type(self.method)
        # Only what the base class lacks can be a misspelling; the rest is a function of one's own.
        for name in [name for name, value in vars(cls).items() if callable(value) and not hasattr(Method, name)]:
            for meant in difflib.get_close_matches(name, MEMBERS, n=1, cutoff=NEAR):
                if getattr(cls, meant) is getattr(Method, meant):
                    raise FedrecError(f"{self.name}.{name} is never called; did you mean {meant}?")

    @contextmanager
    def _step(self, function: str, **given: Any) -> Iterator[None]:
        """What goes wrong within a function of the method, in a sentence; `given`: what it could read from."""
        try:
            yield
        # Our own sentences say it already, so only the place is added.
        except FedrecError as error:
            raise FedrecError(f"{self.name}.{function}: {error}") from error
        except NotImplementedError:
            raise FedrecError(f"{self.name} has no {function}; see `Method.{function}` for what it must do") from None
        except KeyError as error:
            raise self._wrong(
                function, f"asks for {error}, which is not there: {_list_names(given)}{_locate_in_own_file(error)}"
            ) from error
        except Exception as error:
            words = " ".join(str(error).split())
            raise self._wrong(
                function, f"failed: {type(error).__name__}: {words}{_locate_in_own_file(error)}"
            ) from error

    def _wrong(self, function: str, what: str) -> FedrecError:
        return FedrecError(f"{self.name}.{function} {what}")


def _copy(state: State) -> State:
    return State(
        *({name: value.clone() for name, value in part.items()} for part in (state.per_client, state.per_user))
    )


def _kind(value: Any) -> str:
    """What something is, for people: the shape of a tensor, the type of anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape)) if value.dim() else "a tensor of one number"
    if value is None:
        return "nothing"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _list_names(given: Mapping[str, Any]) -> str:
    """The names that a function could have asked for."""
    found = []
    for where, value in given.items():
        parts = (
            {where: value}
            if isinstance(value, dict)
            else {f"{where}.{part}": vars(value)[part] for part in vars(value)}
        )
        found += [f"{part} has {', '.join(names)}" for part, names in parts.items() if names]
    return "; ".join(found) or "nothing was given"


def _locate_in_own_file(error: BaseException) -> str:
    """Where in somebody's own file it happened."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    # The last frame outside this package and other libraries is where its author can mend it.
    own = [(path.name, line) for path, line in frames if PACKAGE not in path.parents and PACKAGES not in path.parts]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""
