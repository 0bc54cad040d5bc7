"""Write an exported model with the ids that its numbers stand for.

The files hold vectors of single users, so only their owner may read them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedrec.data.atomic import atomic_file
from fedrec.errors import unknown
from fedrec.serve import Recommender, onnx_graph
from fedrec.serve.export_models import SequenceModel, find_exportable
from fedrec.serve.item_space import Factors

FORMATS = ("onnx", "npz")


def export(recommender: Recommender, to: str, out: Path) -> list[Path]:
    """Write the model and return the files: an ONNX graph comes with a second one that holds the ids."""
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    model = find_exportable(recommender)
    return _write_npz(recommender, model, out) if to == "npz" else _write_onnx(recommender, model, out)


def _write_npz(recommender: Recommender, model: Factors | SequenceModel, out: Path) -> list[Path]:
    """Plain arrays: `user`, `item`, or the weights by name, and `user_ids`, `item_ids`, `titles`."""
    arrays = {"item": model.item.cpu().numpy(), "item_ids": _plain_ids(recommender.item_ids[: len(model.item)])}
    if recommender.titles is not None:
        arrays["titles"] = _plain_ids(recommender.titles[: len(model.item)])
    if isinstance(model, SequenceModel):
        arrays |= {name: value.numpy() for name, value in model.dense.items()}
        arrays["settings"] = np.array(json.dumps({"kind": "sasrec", **asdict(model.model)}))
    else:
        arrays |= {"user": model.user.cpu().numpy(), "user_ids": _plain_ids(recommender.user_ids)}
        arrays["settings"] = np.array(json.dumps({"kind": "inner product"}))
    with atomic_file(out, private=True) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return [out]


def _write_onnx(recommender: Recommender, model: Factors | SequenceModel, out: Path) -> list[Path]:
    if isinstance(model, SequenceModel):
        graph = onnx_graph.build_sequence_model(model)
    else:
        graph = onnx_graph.build_inner_product(model)
    with atomic_file(out, private=True) as temporary:
        temporary.write_bytes(graph)
    names: dict[str, list[object]] = {"items": recommender.item_ids[: len(model.item)].tolist()}
    if recommender.titles is not None:
        names["titles"] = recommender.titles[: len(model.item)].tolist()
    if isinstance(model, Factors):
        names["users"] = recommender.user_ids.tolist()
    beside = out.with_suffix(".ids.json")
    with atomic_file(beside, private=True) as temporary:
        temporary.write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")
    return [out, beside]


def _plain_ids(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind in "iuU" else values.astype(str)
