"""recall@10 and ndcg@10 from the files of a run alone, the long way round: `python -I recompute.py METHOD RUN SPLIT`.

Written without a look at the library's evaluator and without importing it: every user's candidates are listed, scored
in double precision from the tensors of the checkpoint, and compared one by one. Prints JSON.
"""

import csv
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

K = 10


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


def histories(path: Path) -> dict[str, set[str]]:
    found = defaultdict(set)
    for user, item in zip(column(path, "user"), column(path, "item"), strict=True):
        found[user].add(item)
    return found


def scorer(method: str, tensors: dict[str, np.ndarray], users: list[str], items: list[str], known: list[dict]):
    """user id -> score of every item in the order of items.csv."""
    if method == "fedmf":
        table, vectors = tensors["server.item"].astype(float), tensors["user.all.user"].astype(float)
        row = {user: vectors[k] for k, user in enumerate(users)}
        return lambda user: [sum(a * b for a, b in zip(row[user], item, strict=True)) for item in table]
    if method == "popularity":
        return lambda user: tensors["server.popularity"][:, 0].astype(float).tolist()
    if method == "ease":
        weight = tensors["client.all.weight"][0].astype(float)
        place = {item: k for k, item in enumerate(items)}
        return lambda user: sum(weight[place[item]] for part in known for item in part[user]).tolist()
    raise SystemExit(f"no scorer for {method}")


def metrics(scores: dict[str, float], wanted: str) -> dict[str, float]:
    """Expectation over the random order of candidates that score the same as the held-out item."""
    above = sum(1 for score in scores.values() if score > scores[wanted])
    equal = sum(1 for score in scores.values() if score == scores[wanted])
    places = range(above + 1, above + equal + 1)
    return {
        "recall@10": sum(1 for place in places if place <= K) / equal,
        "ndcg@10": sum(1 / math.log2(place + 1) for place in places if place <= K) / equal,
        "above": above,
        "equal": equal,
    }


def judge(held_out: dict[str, set[str]], masks: list[dict[str, set[str]]], items: list[str], scores_of) -> dict:
    result = {}
    for user, (wanted,) in ((user, tuple(held)) for user, held in held_out.items()):
        closed = set().union(*(mask[user] for mask in masks))
        assert wanted not in closed
        candidates = {item: s for item, s in zip(items, scores_of(user), strict=True) if item not in closed}
        result[user] = metrics(candidates, wanted)
    return result


def main() -> None:
    method, run, split = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    train, valid, test = (histories(split / f"{part}.csv") for part in ("train", "valid", "test"))
    items, users = column(run / "items.csv", "item"), column(run / "users.csv", "user")
    about = method, load_file(run / "checkpoint.safetensors"), users, items
    found = {
        "valid": judge(valid, [train], items, scorer(*about, [train])),
        "test": judge(test, [train, valid], items, scorer(*about, [train, valid])),
    }
    assert not any(name.split(".")[0] in ("fedrec", "torch") for name in sys.modules)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
