"""Writing an exported model, with the ids that its numbers stand for. It tells of single users: for its owner alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedrec.data.atomic import atomic_file
from fedrec.errors import unknown
from fedrec.serve import Recommender, onnx_graph
from fedrec.serve.export_models import SequenceModel, exportable
from fedrec.serve.item_space import Factors

FORMATS = ("onnx", "npz")


def export(recommender: Recommender, to: str, out: Path) -> list[Path]:
    """Write the model; returns the files: an ONNX graph comes with its ids in a second one."""
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    found = exportable(recommender)
    return _npz(recommender, found, out) if to == "npz" else _onnx(recommender, found, out)


def _npz(recommender: Recommender, found: Factors | SequenceModel, out: Path) -> list[Path]:
    """Plain arrays: `user`, `item`, or the weights by name, and `user_ids`, `item_ids`, `titles`."""
    arrays = {"item": found.item.cpu().numpy(), "item_ids": _ids(recommender.item_ids[: len(found.item)])}
    if recommender.titles is not None:
        arrays["titles"] = _ids(recommender.titles[: len(found.item)])
    if isinstance(found, SequenceModel):
        arrays |= {name: value.numpy() for name, value in found.dense.items()}
        arrays["settings"] = np.array(json.dumps({"kind": "sasrec", **asdict(found.model)}))
    else:
        arrays |= {"user": found.user.cpu().numpy(), "user_ids": _ids(recommender.user_ids)}
        arrays["settings"] = np.array(json.dumps({"kind": "inner product"}))
    with atomic_file(out, private=True) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return [out]


def _onnx(recommender: Recommender, found: Factors | SequenceModel, out: Path) -> list[Path]:
    graph = onnx_graph.sequence(found) if isinstance(found, SequenceModel) else onnx_graph.inner_product(found)
    with atomic_file(out, private=True) as temporary:
        temporary.write_bytes(graph)
    names: dict[str, list[object]] = {"items": recommender.item_ids[: len(found.item)].tolist()}
    if recommender.titles is not None:
        names["titles"] = recommender.titles[: len(found.item)].tolist()
    if isinstance(found, Factors):
        names["users"] = recommender.user_ids.tolist()
    beside = out.with_suffix(".ids.json")
    with atomic_file(beside, private=True) as temporary:
        temporary.write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")
    return [out, beside]


def _ids(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind in "iuU" else values.astype(str)
