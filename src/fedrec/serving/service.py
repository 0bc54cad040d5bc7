"""Requests and answers, without sockets: a path and a body in, a status and a JSON value out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fedrec.errors import FedrecError
from fedrec.recommend import NotKnown, Recommendation, Similar
from fedrec.serving.lists import Lists
from fedrec.serving.openapi import PAGE, document
from fedrec.version import __version__

LENGTH = 10  # of a list, where none is asked for
LONGEST_HISTORY = 10_000


@dataclass(frozen=True)
class Answer:
    """A JSON value, or a page as it is."""

    status: int
    value: Any

    @property
    def is_page(self) -> bool:
        return isinstance(self.value, str)

    def body(self) -> bytes:
        return (self.value if self.is_page else json.dumps(self.value, ensure_ascii=False)).encode()


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
        """One request. What is wrong with it is an answer too."""
        address = urlsplit(target)
        head, _, rest = address.path.removeprefix("/").partition("/")
        made = self.paths.get(("GET" if verb == "HEAD" else verb, head))
        if made is None:
            known = any(head == name for _, name in self.paths)
            return (
                _problem(405, f"{verb} is not allowed for /{head}")
                if known
                else _problem(404, f"there is no /{head}; / lists what there is")
            )
        words = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            return Answer(200, made(unquote(rest), words, body))
        except NotKnown as error:
            return _problem(404, str(error))
        except FedrecError as error:
            return _problem(400, str(error))

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


def _problem(status: int, sentence: str) -> Answer:
    return Answer(status, {"error": sentence})


def _line(found: Recommendation | Similar) -> dict[str, Any]:
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
