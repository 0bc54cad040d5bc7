"""The model that a service answers with: the newest of its folder, taken over without a gap."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError
from fedrec.serve.openers import Lists
from fedrec.serve.web_app import log_fault

log = logging.getLogger("fedrec.serving")
MODEL_FILES = ("config.toml", "checkpoint.safetensors", "prepared.npz", "fit.json")
"""Of a run folder: what is different in a newer model, also where a link leads to another folder."""


class ServedModel:
    """Opens a model, and a newer one beside it as soon as there is one that holds still.

    `find_version` says which model would be opened now. A newer one is opened when two looks find the same version:
    before that it may still be being written.
    """

    def __init__(self, open_model: Callable[[], Lists], find_version: Callable[[], Hashable] | None = None) -> None:
        self._open, self._find_version = open_model, find_version or (lambda: None)
        self.version = self._seen = self._find_version()
        self._take(self._open_warm())
        self.failure: str | None = None
        """Why the newest model could not be taken, where that is so."""

    def renew(self) -> bool:
        """Take a newer model, and return whether there was one; one that cannot be opened leaves the present one."""
        version = self._find_version()
        holds_still, self._seen = version == self._seen, version
        if version == self.version or not holds_still:
            return False
        self.version = version  # a model that cannot be opened is not tried again until it changes
        try:
            lists = self._open_warm()
        except Exception as error:
            self.failure = str(error) if isinstance(error, FedrecError) else f"it failed with {type(error).__name__}"
            log_fault("a newer model was not taken", error)
            return False
        self._take(lists)
        self.failure = None
        log.warning("a newer model is served")
        return True

    def shorten(self, k: int) -> int:
        """Return the length of a list that can be made where one of `k` items is asked for."""
        return min(k, self.items)

    def _take(self, lists: Lists) -> None:
        self.lists, self.loaded = lists, time.time()
        self.items = int(lists.about()["items"])
        self.answers_at_once: Callable[[Any], bool] = getattr(lists, "answers_at_once", lambda user: False)

    def describe(self) -> dict[str, Any]:
        """Say what `/health` says of the model."""
        about = {name: value for name, value in self.lists.about().items() if name != "examples"}
        about["loaded"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.loaded))
        return about | ({} if self.failure is None else {"newer_model_refused": self.failure})

    def _open_warm(self) -> Lists:
        lists = self._open()
        warm_up(lists)
        return lists


def warm_up(lists: Lists) -> None:
    """Make what the first request of each kind would have to wait for."""
    if prepare := getattr(lists, "prepare_to_serve", None):
        prepare()
    about = lists.about()
    examples = about.get("examples", {})
    if "user" in examples:
        lists.for_user(examples["user"], 1)
    if "item" in examples:
        lists.similar(examples["item"], 1)
        if about["folds_in"]:
            lists.fold_in([examples["item"]], 1)


def version_of_folder(folder: Path) -> Hashable:
    """Return what changes when a run folder is written anew, or when a link of that name leads elsewhere."""
    place = folder.resolve()
    return str(place), *(_version_of_file(place / name) for name in MODEL_FILES)


def version_of_node(folder: Path) -> Hashable:
    """Return what changes when a node has scored a newer round."""
    names = (path.name for path in sorted(folder.glob("scored-*.safetensors")))
    return tuple((name, _version_of_file(folder / name)) for name in names)


def _version_of_file(path: Path) -> tuple[int, int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
