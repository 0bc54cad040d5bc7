"""Models as ONNX graphs, built node by node: what a program needs to run them is an ONNX runtime and nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models.attention import EPSILON
from fedrec.serve.export_models import SequenceModel
from fedrec.serve.item_space import Factors

OPSET = 17  # the first with layer normalisation
IR = 8  # its container, which all current runtimes read


class Graph:
    """Nodes in the order in which they were added; weights are constants of the graph."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise FedrecError("ONNX files need the package onnx: pip install 'fedrec[export]'") from None
        self.onnx, self.nodes, self.weights, self.inputs = onnx, list[Any](), list[Any](), list[Any]()

    def constant(self, value: np.ndarray | Tensor) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        name = f"w{len(self.weights)}"
        self.weights.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def input(self, name: str, *axes: str) -> str:
        kind = self.onnx.TensorProto.INT64
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, list(axes)))
        return name

    def add(self, kind: str, *inputs: str, name: str = "", **settings: Any) -> str:
        made = name or f"n{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [made], **settings))
        return made

    def finished(self, output: str, items: int) -> bytes:
        helper = self.onnx.helper
        shown = helper.make_tensor_value_info(output, self.onnx.TensorProto.FLOAT, ["batch", items])
        graph = helper.make_graph(self.nodes, "fedrec", self.inputs, [shown], self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="fedrec"
        )
        self.onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def inner_product(found: Factors) -> bytes:
    """`user` [batch], numbers of users, to `scores` [batch, items]."""
    graph = Graph()
    rows = graph.add("Gather", graph.constant(found.user), graph.input("user", "batch"), axis=0)
    graph.add("MatMul", rows, graph.constant(found.item.T), name="scores")
    return graph.finished("scores", len(found.item))


def sequence(found: SequenceModel) -> bytes:
    """`items` [batch, steps], oldest first and filled up at the end, and `length` [batch] to `scores` [batch, items].

    Items are numbers; what stands beyond `length` is not read. At most as many steps as the model has positions.
    """
    graph, model, dense = Graph(), found.model, found.dense
    items, length = graph.input("items", "batch", "steps"), graph.input("length", "batch")
    steps = graph.add("Shape", items, start=1, end=2)
    rows = graph.add("Gather", graph.constant(found.item), items, axis=0)
    scaled = graph.add("Mul", rows, graph.number(math.sqrt(model.dim)))
    position = graph.add("Slice", graph.constant(dense["position"]), graph.numbers(0), steps, graph.numbers(0))
    x = graph.add("Add", scaled, position)
    later = _later(graph, steps)
    first = model.norm_first or model.block_kind == "ligr"
    for block in range(model.blocks):
        for norm in ("attention", "forward"):
            inside = _norm(graph, x, dense, f"{norm}_%s{block}") if first else x
            part = (
                _attend(graph, inside, found, block, later)
                if norm == "attention"
                else _network(graph, inside, found, block)
            )
            if model.block_kind == "ligr":
                part = graph.add("Mul", part, graph.add("Sigmoid", _linear(graph, x, dense, f"{norm}_gate", block)))
            total = graph.add("Add", x, part)
            x = total if first else _norm(graph, total, dense, f"{norm}_%s{block}")
    hidden = _norm(graph, x, dense, "last_%s")
    at = graph.add("Unsqueeze", graph.add("Sub", length, graph.numbers(1)), graph.numbers(1))
    last = graph.add("GatherND", hidden, at, batch_dims=1)
    graph.add("MatMul", last, graph.constant(found.item.T), name="scores")
    return graph.finished("scores", len(found.item))


def _later(graph: Graph, steps: str) -> str:
    """[steps, steps]: whether a step lies after another and must not be seen by it."""
    square = graph.add("Concat", steps, steps, axis=0)
    ones = graph.add("Expand", graph.number(1.0), square)
    return graph.add(
        "Cast",
        graph.add("Trilu", ones, graph.constant(np.array(1, dtype=np.int64)), upper=1),
        to=graph.onnx.TensorProto.BOOL,
    )


def _attend(graph: Graph, x: str, found: SequenceModel, block: int, later: str) -> str:
    model, dense = found.model, found.dense
    width = model.dim // model.heads

    def heads(values: str) -> str:
        apart = graph.add("Reshape", values, graph.numbers(0, 0, model.heads, width))
        return graph.add("Transpose", apart, perm=[0, 2, 1, 3])

    query, value = (heads(_linear(graph, x, dense, name, block)) for name in ("query", "value"))
    key = heads(graph.add("MatMul", x, graph.constant(dense[f"key{block}"].T)))
    near = graph.add(
        "MatMul",
        graph.add("Div", query, graph.number(math.sqrt(width))),
        graph.add("Transpose", key, perm=[0, 1, 3, 2]),
    )
    shares = graph.add("Softmax", graph.add("Where", later, graph.number(-math.inf), near), axis=-1)
    seen = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return _linear(graph, graph.add("Reshape", seen, graph.numbers(0, 0, model.dim)), dense, "out", block)


def _network(graph: Graph, x: str, found: SequenceModel, block: int) -> str:
    if found.model.block_kind == "ligr":
        swish, inner = (
            graph.add("MatMul", x, graph.constant(found.dense[f"{name}{block}"].T)) for name in ("swish", "inner")
        )
        silu = graph.add("Mul", swish, graph.add("Sigmoid", swish))
        outer = graph.constant(found.dense[f"outer{block}"].T)
        return graph.add("MatMul", graph.add("Mul", silu, inner), outer)
    inner = graph.add("Relu", _linear(graph, x, found.dense, "inner", block))
    return _linear(graph, inner, found.dense, "outer", block)


def _linear(graph: Graph, x: str, dense: dict[str, Tensor], name: str, block: int) -> str:
    product = graph.add("MatMul", x, graph.constant(dense[f"{name}{block}"].T))
    return graph.add("Add", product, graph.constant(dense[f"{name}_bias{block}"]))


def _norm(graph: Graph, x: str, dense: dict[str, Tensor], name: str) -> str:
    scale, shift = (graph.constant(dense[name % part]) for part in ("scale", "shift"))
    return graph.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)
