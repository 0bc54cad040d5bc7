"""A node: it answers messages of the server from its own data and its own state, and knows nothing of how they came."""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.data.atomic import atomic_file
from fedrec.deploy.answers import AnswerBook, Question, digest
from fedrec.deploy.audit_log import AuditLog
from fedrec.deploy.consent import Consent, describe_federation
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.masks import Masks
from fedrec.deploy.shard import NodeData, Shard, UnknownItems, numbers_of, prepare_shard
from fedrec.deploy.state import SCORED, StateFolder
from fedrec.deploy.task_checks import TaskChecks, require_possible
from fedrec.deploy.terms import Terms, require_deployable
from fedrec.errors import FedrecError, explain
from fedrec.evaluation import chance, with_chance
from fedrec.experiment.prepare import Part, Prepared
from fedrec.federation.client_side import ClientSide
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Tensors
from fedrec.federation.exchange import Figures, Node, Reply, Step, Task
from fedrec.federation.secret import OwnSecret
from fedrec.federation.update import merge_updates

PATHS = ("places", "items", "key", "peers")  # settings that are files or folders, where they are given
LAST_TEST = "chance"  # the option of a test that only the end of a run has
OFFER = "offer"  # the name of what was offered for scoring among the tensors of a scored state


@dataclass(frozen=True)
class Settings:
    """What a node decides for itself; kept as node.toml in its state folder."""

    own: NodeData
    items: Path | None = None
    """A vocabulary that was agreed on: another one is refused."""
    seeded: bool = False
    """Take part in rehearsals, where everybody can repeat this node's draws."""
    device: str = "cpu"
    memory: int = 8 << 30
    key: Path | None = None
    """The private key that signs this node's part of secure sums; by default one that it makes."""
    peers: Path | None = None
    """A folder with the public keys of the other nodes: a secure sum with anybody else is refused."""
    consent: Consent = field(default_factory=Consent)
    """What the owner agrees to; a rehearsal is agreed to as it is."""

    @property
    def agreed(self) -> Consent:
        return Consent.to_anything() if self.seeded else self.consent

    @staticmethod
    def read(folder: Path) -> Settings:
        try:
            values = tomllib.loads((folder / "node.toml").read_text(encoding="utf-8"))
            places, items, key, peers = (Path(values[name]) if name in values else None for name in PATHS)
            own = NodeData(Path(values["data"]), values["silo"], places, values.get("columns", {}))
            consent = Consent.from_dict(values.get("consent", {}))
            return Settings(own, items, values["seeded"], values["device"], values["memory"], key, peers, consent)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise FedrecError(
                f"{folder} is not the state folder of a node ({error}); start one with fedrec deploy node"
            ) from None

    def write(self, folder: Path) -> None:
        import tomli_w

        own = self.own
        values = {
            # Absolute paths, since a service may start from another folder than the one where it was set up.
            "data": str(own.data.resolve()),
            "silo": own.silo,
            "seeded": self.seeded,
            "device": self.device,
            "memory": self.memory,
        }
        values |= {"columns": dict(own.columns)} if own.columns else {}
        # A rehearsal agrees to anything, so a consent that is not asked must not be written down as if it were.
        values |= {} if self.seeded else {"consent": self.consent.to_dict()}
        for name, path in zip(PATHS, (own.places, self.items, self.key, self.peers), strict=True):
            values |= {} if path is None else {name: str(path.resolve())}
        # Private: the paths say where a company keeps its data and its key.
        with atomic_file(folder / "node.toml", private=True) as temporary:
            temporary.write_text(tomli_w.dumps(values), encoding="utf-8")


class NodeHost:
    """One process may serve one message and end, or live on: everything that matters is in the state folder."""

    def __init__(
        self,
        folder: Path,
        settings: Settings | None = None,
        ask: Callable[[list[str]], bool] = lambda lines: True,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`ask`: show the owner what a federation is going to see, before joining it. `say`: progress and refusals."""
        self.state = StateFolder(folder)
        self.settings = settings or Settings.read(folder)
        self.masks = Masks(self.state, self.settings.key, self.settings.peers, least=self.settings.agreed.members)
        self.ask, self.say = ask, say
        self.answers = AnswerBook(folder)
        self.audit = AuditLog(folder)
        self.is_finished = False
        """Whether the chosen round was tested here, which is the last that a server asks for."""
        self._since = 0.0  # on the clock of processor time
        self._prepared: tuple[str, Prepared, str] | None = None  # by the terms that it was prepared under

    def handle(self, message: bytes, spent: float = 0.0) -> bytes:
        """Answer a message. An error becomes one line in the reply, so that the server learns why a node sits out.

        `spent`: processor seconds that bringing the message here has cost.
        """
        self._since = time.process_time() - spent
        asked: dict[str, Any] = {"received": len(message), "hash": digest(message)}
        try:
            # Before the message is parsed: what a large or repeated message costs is part of what the owner limited.
            self.settings.agreed.require_traffic(self.audit.count_bytes() + len(message))
            header, parts = unframe(message)
            kinds = {"hello": self._hello, "turn": self._turn, "secure": self._secure}
            if (kind := header.get("kind")) not in kinds:
                raise BadMessage(f"nodes do not know this message ({kind!s:.20})")
            asked |= {name: header[name] for name in ("kind", "turn", "phases") if name in header}
            # One message at a time: two processes on one state folder would answer the same turn with different noise.
            with self.state.lock():
                # Before any answer: a reply that was written but never noted as sent must not be computed anew.
                self.answers.recover()
                reply = kinds[kind](header, parts)
            self.audit.write(**asked, sent=len(reply))
            return reply
        except Exception as error:
            if (words := explain(error)) is None:
                raise
            reply = frame({"error": words})
            # A full disk may be what is refused, and nothing can be written down then.
            with suppress(OSError):
                self.audit.write(**asked, sent=len(reply), refused=words)
            self.say(words)
            return reply

    def refuse_app(self, reason: str) -> None:
        """Write down that the server sent another app than the agreed one."""
        self.audit.write(kind="app", refused=reason)
        self.say(reason)

    def _spent(self) -> float:
        return time.process_time() - self._since

    # -- to meet the server --

    def _hello(self, header: Mapping[str, Any], parts: list[bytes]) -> bytes:
        if len(parts) != 1:
            raise BadMessage("a greeting without terms")
        terms = Terms.decode(parts[0])
        self._require_acceptable(terms)
        prepared, unknown = prepare_shard(terms, self.settings.own, self.state.shard)
        about = self._about(terms, prepared, unknown)
        # The owner is asked once, when joining; each later restart would else wait for somebody to type yes.
        if not self.state.terms.exists():
            if not self.ask(describe_federation(terms, about)):
                raise FedrecError("the owner of this node has declined to join")
            with atomic_file(self.state.terms, private=True) as temporary:
                temporary.write_bytes(parts[0])
        return frame(about)

    def _require_acceptable(self, terms: Terms) -> None:
        require_possible(terms)
        require_deployable(terms)
        self.settings.agreed.require(terms)
        if terms.seeded and not self.settings.seeded:
            raise FedrecError(
                "the server wants reproducible random draws (a rehearsal); this node keeps its own "
                "secret: start the server without a demo's seed"
            )
        if self.settings.items is not None:
            agreed = Terms(terms.config, read_vocabulary(self.settings.items), 1, 1).vocabulary
            if agreed != terms.vocabulary:
                raise FedrecError(
                    f"the server's vocabulary ({terms.vocabulary[:12]}) is not the one that was agreed "
                    f"on ({agreed[:12]}, {self.settings.items.name})"
                )
        # Another federation in the same folder would spend the privacy budget of both from one account.
        if self.state.terms.exists() and self._terms().identity != terms.identity:
            raise FedrecError(
                "this node's state belongs to another federation (other settings or items); start it "
                "with another --state-dir"
            )

    def _about(self, terms: Terms, prepared: Prepared, unknown: UnknownItems) -> dict[str, Any]:
        """Describe this node to the server: how much data there is, never whose."""
        own = self.settings.own
        places = None if own.places is None else numbers_of(prepared, own, 0).clients
        return {
            "token": self.state.token(),
            "terms": terms.identity,
            "vocabulary": terms.vocabulary,
            "clients": prepared.partition.n_clients,
            "places": None if places is None else [int(places[0]), int(places[-1]) + 1],
            "users": prepared.source.n_users,
            "given": prepared.users_before_filters,
            "interactions": prepared.n_interactions,
            "unknown": {"rows": unknown.rows, "items": unknown.items},
            "cpu": self._spent(),
        }

    # -- one turn --

    def _turn(self, header: Mapping[str, Any], parts: list[bytes]) -> bytes:
        """Answer a turn, once: what was answered before is answered alike, or not at all."""
        request = TurnMessage.decode(header, parts)
        terms = self._terms()
        # Checked first, because nothing of another federation may even be compared with what was answered.
        request.require_agreed(terms)
        asked = self._question(terms, request)
        # The same reply bit for bit: a second one with fresh noise would let the server average the noise away.
        if (stored := self.answers.recall(asked)) is not None:
            return stored
        # Changes of a turn that failed half way must not be written with this one.
        self.masks.changes.clear()
        reply = self._answer_turn(terms, request, asked)
        # Recorded before it is returned, so that no reply leaves that a crash could make this node forget.
        self.answers.record(asked, reply, self.masks.changes)
        self.masks.changes.clear()
        self.masks.forget_old()
        return reply

    def _question(self, terms: Terms, request: TurnMessage) -> Question:
        roster = tuple(member for mask in request.masks for member in self.masks.roster(mask))
        return Question(request.turn, request.hash, digest(*request.tasks), roster, self._prepare(terms)[1])

    def _answer_turn(self, terms: Terms, request: TurnMessage, asked: Question) -> bytes:
        tasks = [Task.decode(part, torch.device(self.settings.device)) for part in request.tasks]
        # A server that leaves the masks out would see single updates; agreeing on sums means refusing that.
        if terms.secure and not request.masks and any(task.train is not None for task in tasks):
            raise FedrecError("the server asks for an unmasked update, but only masked ones were agreed on")
        # Ascending, because the checks compare what comes down with these numbers in order.
        checks = TaskChecks(
            terms, np.sort(numbers_of(self._prepare(terms)[0], self.settings.own, request.start).clients)
        )
        checks.require_place()
        checks.require(request.turn, tasks)
        shard, side = self._side(terms, request.start, asked.task)
        # The state before this turn, not the latest: a turn that is repeated must start from where it started.
        kept, about, notes = self.state.load_before(request.turn)
        if kept:
            side.restore(kept)
        if request.restore:
            notes += self._restore(side, request.best)
        node = Node(side, _Ranker(terms, shard, self.settings.agreed.users), shard.histories(side.data))
        if terms.noises_sums:
            tasks = [replace(task, train=self._with_share(task.train, request.masks)) for task in tasks]
        replies = [self._take(node, task, request.start) for task in tasks]
        # The update itself is taken out: it leaves in the masked sum alone.
        sent = [(reply.blind() if request.masks else reply).encode() for reply in replies]
        sent += [self.masks.mask(mask, merge_updates(reply.update for reply in replies)) for mask in request.masks]
        sent += [self.masks.keys(request.member, sums) for sums in request.sums]
        # After all replies are made: an error above leaves the state of the turn before untouched.
        self.state.save(request.turn, side.tensors(), {"terms": terms.identity, "best": request.best})
        # A scored state is large; only those that may still be asked for or served stay on the disk.
        scored = {request.best} if request.restore else {request.best, *self.state.numbers(SCORED)[-1:]}
        self.state.forget_scored(scored)
        self._report(terms, tasks)
        # Turns without this node, which the report counts: its clients missed what was trained meanwhile.
        missed = request.turn - 1 - int(about.get("turn", -1))
        return frame(self._reply_header(terms, request.turn, missed, notes, side), sent)

    def _report(self, terms: Terms, tasks: Iterable[Task]) -> None:
        """Say how far the federation is."""
        for task in tasks:
            if task.train is not None:
                clients = len(task.train.clients)
                self.say(f"round {task.train.round + 1} of {terms.method.rounds}: {clients:,} clients trained here")
        if any(task.score is not None and LAST_TEST in task.score.options for task in tasks):
            self.is_finished = True
            self.say("the chosen round was tested here; the federation has ended, and this node can serve its users")

    def _secure(self, header: Mapping[str, Any], parts: list[bytes]) -> bytes:
        """Answer phases of secure sums that travel without a turn."""
        member, phases, sent, errors = header.get("member"), header.get("phases"), list[bytes](), dict[str, str]()
        if not isinstance(member, int) or not isinstance(phases, list) or len(phases) != len(parts) or member < 0:
            raise BadMessage("the message of a secure sum cannot be read")
        for phase, part in zip(map(str, phases), parts, strict=True):
            try:
                sent.append(self.masks.keys(member, part) if phase == "keys" else self.masks.phase(phase, part))
                self.masks.commit()
            # An error of one sum is no reason to leave another one in the lurch.
            except FedrecError as error:
                self.masks.changes.clear()
                sent.append(b"")
                errors[phase] = str(error)
                self.audit.write(kind="secure", phase=phase, refused=str(error))
        return frame({"cpu": self._spent(), "errors": errors}, sent)

    def _with_share(self, train: Step | None, masks: list[bytes]) -> Step | None:
        """Size this node's share of the noise by the fewest nodes of the sum, of which unmasking makes sure."""
        if train is None:
            return None
        sending = train.clients if train.sending is None else train.sending
        # By the fewest that unmasking accepts: were noise sized by all who were asked, dropouts would leave too little.
        return replace(train, options={**train.options, "fewest": len(sending) * self.masks.minimum(masks[0])})

    def _take(self, node: Node, task: Task, start: int) -> Reply:
        reply = node.take(task)
        if task.score is not None and node.scored is not None:
            offer = torch.frombuffer(bytearray(Task(score=task.score).encode()), dtype=torch.uint8)
            self.state.save_scored(task.score.round, {**node.scored, OFFER: offer}, {"start": start})
        return reply

    def _restore(self, side: ClientSide, best: int) -> list[str]:
        """Go back to the chosen round; a node that was away then stays where it is, and says so."""
        # A missing state is a note and no error: one node that was away must not end the federation.
        if best not in self.state.numbers(SCORED):
            return [f"was absent when round {best + 1} was scored: its clients keep their latest state"]
        tensors, _ = self.state.load_scored(best)
        side.restore(tensors)
        return []

    def _reply_header(self, terms: Terms, turn: int, missed: int, notes: list[str], side: ClientSide) -> dict[str, Any]:
        kept, scoring = side.state_bytes()
        return {
            "turn": turn,
            "terms": terms.identity,
            "vocabulary": terms.vocabulary,
            "missed": missed,
            "notes": notes,
            "ledger": side.wire.ledger.rounds,
            "held": [kept, scoring],
            "cpu": self._spent(),
        }

    # -- what is on the disk --

    def _terms(self) -> Terms:
        if not self.state.terms.exists():
            raise FedrecError("this node has not joined a server yet")
        return Terms.decode(self.state.terms.read_bytes())

    def _prepare(self, terms: Terms) -> tuple[Prepared, str]:
        """Read and split the data, once; with it comes the hash of what was read."""
        # Kept in memory by the identity of the terms, since reading and splitting takes longer than a turn.
        if self._prepared is None or self._prepared[0] != terms.identity:
            prepared = prepare_shard(terms, self.settings.own, self.state.shard)[0]
            self._prepared = terms.identity, prepared, hash_data(prepared)
        return self._prepared[1:]

    def _side(self, terms: Terms, start: int, task: str = "") -> tuple[Shard, ClientSide]:
        """`task`: the hash of what is answered, which its noise depends on."""
        prepared, _ = self._prepare(terms)
        shard = Shard(prepared, numbers_of(prepared, self.settings.own, start))
        # Noise depends on the task that is answered, so that a task sent in two versions cannot cancel it out.
        own = None if terms.seeded else OwnSecret(self.state.secret()).for_task(task, self.answers.counter)
        data = shard.clients(terms, self.settings.device, own)
        sealed = terms.config.epsilon is not None
        return shard, ClientSide(terms.method, data, terms.stages, self.settings.memory, sealed)

    def latest(self) -> tuple[Terms, Shard, ClientSide, Tensors, Task]:
        """Load what lists need: the chosen model, or the latest while none is chosen, and what was offered for it."""
        terms = self._terms()
        numbers = self.state.numbers(SCORED)
        if not numbers:
            raise FedrecError(f"{self.state.path} has no model yet: no round has been scored in this federation")
        # Beyond any turn: the latest state there is.
        best = self.state.load_before(1 << 62)[1].get("best", -1)
        tensors, about = self.state.load_scored(best if best in numbers else numbers[-1])
        offer = Task.decode(tensors.pop(OFFER).numpy().tobytes(), torch.device(self.settings.device))
        shard, side = self._side(terms, int(about["start"]))
        return terms, shard, side, tensors, offer


@dataclass(frozen=True)
class TurnMessage:
    """The message of a turn: tasks, the message of the secure sum that is due, the terms of the next one."""

    hash: str
    turn: int
    best: int
    restore: bool
    start: int
    member: int
    terms: str
    tasks: list[bytes]
    masks: list[bytes]
    sums: list[bytes]

    @staticmethod
    def decode(header: Mapping[str, Any], parts: list[bytes]) -> TurnMessage:
        try:
            turn, best, start, member, masked, following = (int(header[name]) for name in TURN_NUMBERS)
            terms, restore = str(header["terms"]), bool(header["restore"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"the message of a turn cannot be read ({error})") from None
        count = len(parts) - masked - following
        # Negative numbers and counts would slice the parts of the message from the wrong end.
        if min(turn, start, member, count) < 0 or best < -1 or masked not in (0, 1) or following not in (0, 1):
            raise BadMessage("the message of a turn has impossible numbers")
        whole = digest(json.dumps(dict(header), sort_keys=True).encode(), *parts)
        rides = parts[count:]
        return TurnMessage(
            whole, turn, best, restore, start, member, terms, parts[:count], rides[:masked], rides[masked:]
        )

    def require_agreed(self, terms: Terms) -> None:
        if self.terms != terms.identity:
            raise FedrecError("the server belongs to another federation (other settings or items)")


TURN_NUMBERS = ("turn", "best", "start", "member", "masked", "next")


def hash_data(prepared: Prepared) -> str:
    """Hash what a node trains on and is tested with."""
    split = prepared.split
    parts = [part for part in (split.train, split.valid, split.test) if part is not None]
    # Contiguous, so that the hash sees the values in order whatever view the split has made.
    arrays = [np.ascontiguousarray(array) for part in parts for array in (part.user, part.item)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


class _Ranker:
    """Ranks a node's held-out items: sums over its users leave, never one user's figures."""

    def __init__(self, terms: Terms, shard: Shard, least: int) -> None:
        """`least`: how many users figures must be of."""
        self.terms, self.shard, self.least = terms, shard, least

    def __call__(self, options: Mapping[str, Any], scores: Iterator[tuple[np.ndarray, Tensor]]) -> Figures:
        part: Part = "test" if options["part"] == "test" else "valid"
        targets = self.shard.prepared.test if part == "test" else self.shard.prepared.valid
        # Too few users: a mean over one of them is that user's own figure, so the node counts as having none.
        if targets is None or len(targets) < self.least:
            return {"users": 0.0}, {}
        evaluator, _ = self.shard.prepared.evaluator(part, options["metrics"])
        for users, logits in scores:
            evaluator.update(self.shard.local(users), logits)
        found = evaluator.partial()
        asked = self.terms.protocol
        luck = chance(targets, asked.ks, with_chance(asked.metrics)) if options.get("chance") else {}
        sums = {f"{CHANCE}{name}": value * found.users for name, value in luck.items()}
        return {"users": float(found.users), **found.sums, **sums}, {}


CHANCE = "chance "


def read_vocabulary(path: Path) -> np.ndarray:
    """Item ids in their order, from a CSV with a column `item`."""
    import csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = [line["item"].strip() for line in csv.DictReader(file)]
    except (OSError, KeyError, AttributeError, UnicodeDecodeError) as error:
        raise FedrecError(f"cannot read the vocabulary {path} ({error}); it is a CSV with a column item") from None
    if len(set(names)) < len(names) or not names or "" in names:
        raise FedrecError(f"the vocabulary {path} must list every item exactly once")
    # Numbers only where all ids are written as numbers would be: 007 is another id than 7.
    numbers = all(name.isdigit() and str(int(name)) == name for name in names)
    return np.array([int(name) for name in names] if numbers else names)
