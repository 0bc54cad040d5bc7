"""Requests and answers, without sockets: a path and a body in, a status and a JSON value out."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fedrec import __version__
from fedrec.errors import FedrecError
from fedrec.serve import Recommendation, SimilarItem, UnknownId
from fedrec.serve.openapi import PAGE, document
from fedrec.serve.openers import Lists

LENGTH = 10  # of a list, where none is asked for
LONGEST_HISTORY = 10_000
log = logging.getLogger("fedrec.serving")


@dataclass(frozen=True)
class Answer:
    """`allow`: the verbs that a path knows, where another one was used."""

    status: int
    content: bytes
    kind: str = "application/json"
    allow: tuple[str, ...] = ()


class Service:
    """A model's lists as resources."""

    def __init__(self, lists: Lists) -> None:
        self.lists = lists
        self._one = Lock()  # folding in trains, and trains on all cores
        self.paths: dict[tuple[str, str], Callable[[str, dict[str, str], bytes], Any]] = {
            ("GET", ""): lambda *_: PAGE,
            ("GET", "health"): self._health,
            ("GET", "openapi.json"): lambda *_: document(),
            ("GET", "recommendations"): self._recommendations,
            ("GET", "similar"): self._similar,
            ("POST", "fold-in"): self._fold_in,
        }

    def warm_up(self) -> None:
        """Make what the first request of each kind would have to wait for."""
        about = self.lists.about()
        examples = about.get("examples", {})
        if "user" in examples:
            self.lists.for_user(examples["user"], 1)
        if "item" in examples:
            self.lists.similar(examples["item"], 1)
            if about["folds_in"]:
                self.lists.fold_in([examples["item"]], 1)

    def answer(self, verb: str, target: str, body: bytes = b"") -> Answer:
        """One request. What is wrong with it is an answer too, and so is a fault of the model."""
        try:
            address = urlsplit(target)
        except ValueError:
            return problem(400, "this is not an address")
        head, _, rest = address.path.removeprefix("/").partition("/")
        made = self.paths.get(("GET" if verb == "HEAD" else verb, head))
        if made is None:
            allow = self.verbs(head)
            if not allow:
                return problem(404, f"there is no /{head}; / lists what there is")
            return problem(405, f"{verb} is not allowed for /{head}", allow)
        words = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            value = made(unquote(rest), words, body)
            return Answer(200, value.encode(), "text/html") if isinstance(value, str) else as_json(200, value)
        except UnknownId as error:
            return problem(404, str(error))
        except FedrecError as error:
            return problem(400, str(error))
        except Exception as error:
            log_fault(f"{verb} /{head}", error)
            return problem(500, "the service itself failed; whoever runs it finds the place in its log")

    def verbs(self, head: str | None = None) -> tuple[str, ...]:
        """What a path knows; without one, what any path does."""
        known = {verb for verb, name in self.paths if head in (name, None)}
        return tuple(sorted(known | ({"HEAD"} if "GET" in known else set())))

    def _health(self, *_: Any) -> dict[str, Any]:
        about = {name: value for name, value in self.lists.about().items() if name != "examples"}
        return {"status": "ok", "fedrec": __version__, **about}

    def _recommendations(self, user: str, words: dict[str, str], _: bytes) -> dict[str, Any]:
        if not user:
            raise FedrecError("name the user: /recommendations/USER")
        found = self.lists.for_user(user, _length(words))
        return {"user": found[0].user, "served": found[0].served, "items": [_line(rec) for rec in found]}

    def _similar(self, item: str, words: dict[str, str], _: bytes) -> dict[str, Any]:
        if not item:
            raise FedrecError("name the item: /similar/ITEM")
        return {"item": item, "items": [_line(one) for one in self.lists.similar(item, _length(words))]}

    def _fold_in(self, _: str, words: dict[str, str], body: bytes) -> dict[str, Any]:
        asked = _history(body)
        with self._one:
            folded = self.lists.fold_in(asked["items"], asked.get("k", LENGTH))
        return {"served": "folded in", "items": [_line(rec) for rec in folded.offers], "unknown": folded.unknown}


def as_json(status: int, value: Any, allow: tuple[str, ...] = ()) -> Answer:
    content = json.dumps(value, ensure_ascii=False).encode(errors="replace")  # JSON may hold half a character
    return Answer(status, content, allow=allow)


def problem(status: int, sentence: str, allow: tuple[str, ...] = ()) -> Answer:
    return as_json(status, {"error": sentence}, allow)


def log_fault(where: str, error: BaseException) -> None:
    """For the operator: kinds of errors and places in the code. What errors say may name a user, so it is left out."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    told = (f"{type(one).__name__}\n{''.join(traceback.format_tb(one.__traceback__))}" for one in chain)
    log.error("%s: %s", where, "because of ".join(told).rstrip())


def _line(found: Recommendation | SimilarItem) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name in ("item", "rank", "score", "title")}


def _length(words: dict[str, str]) -> int:
    text = words.get("k", str(LENGTH))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise FedrecError(f"k = {text!a} is not a whole number")
    return int(text)


def _history(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise FedrecError('send JSON such as {"items": ["a", "b"], "k": 10}') from None
    items = asked.get("items") if isinstance(asked, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
        raise FedrecError('send JSON such as {"items": ["a", "b"], "k": 10}: items must be strings or integers')
    if len(items) > LONGEST_HISTORY:
        raise FedrecError(f"{len(items):,} items are more than a history may have ({LONGEST_HISTORY:,})")
    k = asked.get("k", LENGTH)
    if not isinstance(k, int) or isinstance(k, bool):
        raise FedrecError("k must be a whole number")
    return {"items": items, "k": k}
