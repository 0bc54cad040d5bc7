"""A clean experiment written down as plain files, and ways to spoil it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

USERS, ITEMS, TRAIN, ROUNDS = 60, 200, 12, 12

Row = tuple[object, ...]


@dataclass
class Files:
    """Rows of every file; `spoil` functions change them before they are written."""

    train: list[Row]
    valid: list[Row]
    test: list[Row]
    negatives: list[Row] = field(default_factory=list)
    train_negatives: list[Row] = field(default_factory=list)
    scores: list[Row] = field(default_factory=list)

    def write(self, folder: Path) -> dict[str, str]:
        heads = dict.fromkeys(("train", "valid", "test"), "user,item,timestamp")
        heads |= {"negatives": "user,item", "train_negatives": "user,item,round", "scores": "user,item,score"}
        paths = {}
        for name, head in heads.items():
            path = folder / f"{name}.csv"
            path.write_text("\n".join([head, *(",".join(map(str, row)) for row in getattr(self, name))]) + "\n")
            paths[name] = str(path)
        return paths


def clean(leaky: bool = False) -> Files:
    """Users cut at one moment; every item trained by somebody; negatives uniform outside the training items.

    `leaky` draws the training negatives outside all items of the user instead.
    """
    rng = np.random.default_rng(7)
    files = Files([], [], [])
    for user in range(USERS):
        given = (4 * user + np.arange(4)) % ITEMS  # so that every item is trained by somebody
        rest = rng.permutation(np.setdiff1d(np.arange(ITEMS), given))[: TRAIN - 2]
        own = np.concatenate([given, rest])
        *train, valid, test = (int(item) for item in own)
        files.train += [(f"u{user}", item, 100 + rng.integers(100)) for item in train]
        files.valid.append((f"u{user}", valid, 250))
        files.test.append((f"u{user}", test, 300))
        unseen = np.setdiff1d(np.arange(ITEMS), own)
        files.negatives += [(f"u{user}", item) for item in rng.choice(unseen, 99, replace=False)]
        pool = unseen if leaky else np.setdiff1d(np.arange(ITEMS), train)
        files.train_negatives += [
            (f"u{user}", item, round) for round in range(ROUNDS) for item in rng.choice(pool, 4 * len(train))
        ]
        files.scores += [(f"u{user}", item, round(float(rng.normal()), 9)) for item in (test, *unseen)]
    return files


def train_pair_in_test(files: Files) -> None:
    user, item, _ = files.train[0]
    files.test.append((user, item, 300))


def repeated_negative(files: Files) -> None:
    files.negatives.append(files.negatives[0])


def positive_among_negatives(files: Files) -> None:
    files.negatives[0] = files.train[0][:2]


def test_item_in_its_negatives(files: Files) -> None:
    files.negatives[0] = files.test[0][:2]


def nan_score(files: Files) -> None:
    files.scores[5] = (*files.scores[5][:2], "nan")


def infinite_score(files: Files) -> None:
    files.scores[5] = (*files.scores[5][:2], "inf")


def constant_scores(files: Files) -> None:
    files.scores = [(user, item, 0.5) for user, item, _ in files.scores]


def saturated_scores(files: Files) -> None:
    """The upper half of all scores collapses to 1, as sigmoids of large logits do."""
    files.scores = [(user, item, min(float(str(score)), 0.0)) for user, item, score in files.scores]


def validation_is_test(files: Files) -> None:
    files.valid = list(files.test)


def new_items_in_test(files: Files) -> None:
    files.test[:10] = [(user, 1000 + n, time) for n, (user, _, time) in enumerate(files.test[:10])]


def new_users_in_test(files: Files) -> None:
    files.test += [(f"new{n}", n, 300) for n in range(5)]


def own_future(files: Files) -> None:
    files.train[0] = (*files.train[0][:2], 400)


Spoil = Callable[[Files], None]
