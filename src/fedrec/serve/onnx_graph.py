"""Build models as ONNX graphs, node by node: to run them, a program needs an ONNX runtime alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.models.attention import EPSILON
from fedrec.serve.export_models import SequenceModel
from fedrec.serve.item_space import Factors

OPSET = 17  # the first with layer normalisation, which would otherwise take several nodes
IR = 8  # the container that came with it: a runtime refuses newer ones than it knows


class Graph:
    """A graph that grows node by node. Every method returns the name of what it adds, for the inputs of others."""

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

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def input(self, name: str, *axes: str) -> str:
        kind = self.onnx.TensorProto.INT64
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, list(axes)))
        return name

    def add(self, kind: str, *inputs: str, name: str = "", **settings: Any) -> str:
        made = name or f"n{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [made], **settings))
        return made

    def serialize(self, output: str, items: int) -> bytes:
        helper = self.onnx.helper
        shown = helper.make_tensor_value_info(output, self.onnx.TensorProto.FLOAT, ["batch", items])
        graph = helper.make_graph(self.nodes, "fedrec", self.inputs, [shown], self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="fedrec"
        )
        self.onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def build_inner_product(model: Factors) -> bytes:
    """Build the graph from `user` [batch], numbers of users, to `scores` [batch, items]."""
    graph = Graph()
    rows = graph.add("Gather", graph.constant(model.user), graph.input("user", "batch"), axis=0)
    graph.add("MatMul", rows, graph.constant(model.item.T), name="scores")
    return graph.serialize("scores", len(model.item))


def build_sequence_model(exported: SequenceModel) -> bytes:
    """Build the graph from `items` [batch, steps] and `length` [batch] to `scores` [batch, items].

    Items are numbers, oldest first and filled up at the end; what stands beyond `length` is not read. There are at
    most as many steps as the model has positions.
    """
    graph, model, dense = Graph(), exported.model, exported.dense
    items, length = graph.input("items", "batch", "steps"), graph.input("length", "batch")
    steps = graph.add("Shape", items, start=1, end=2)
    rows = graph.add("Gather", graph.constant(exported.item), items, axis=0)
    scaled = graph.add("Mul", rows, graph.scalar(math.sqrt(model.dim)))
    position = graph.add("Slice", graph.constant(dense["position"]), graph.integers(0), steps, graph.integers(0))
    x = graph.add("Add", scaled, position)
    later = _causal_mask(graph, steps)
    first = model.norm_first or model.block_kind == "ligr"
    for block in range(model.blocks):
        for norm in ("attention", "forward"):
            inside = _add_norm(graph, x, dense, f"{norm}_%s{block}") if first else x
            part = (
                _add_attention(graph, inside, exported, block, later)
                if norm == "attention"
                else _add_feed_forward(graph, inside, exported, block)
            )
            if model.block_kind == "ligr":
                part = graph.add("Mul", part, graph.add("Sigmoid", _add_linear(graph, x, dense, f"{norm}_gate", block)))
            total = graph.add("Add", x, part)
            x = total if first else _add_norm(graph, total, dense, f"{norm}_%s{block}")
    hidden = _add_norm(graph, x, dense, "last_%s")
    at = graph.add("Unsqueeze", graph.add("Sub", length, graph.integers(1)), graph.integers(1))
    last = graph.add("GatherND", hidden, at, batch_dims=1)
    graph.add("MatMul", last, graph.constant(exported.item.T), name="scores")
    return graph.serialize("scores", len(exported.item))


def _causal_mask(graph: Graph, steps: str) -> str:
    """Add the mask [steps, steps] that is true where a step lies after another one and must not be seen by it."""
    square = graph.add("Concat", steps, steps, axis=0)
    ones = graph.add("Expand", graph.scalar(1.0), square)
    return graph.add(
        "Cast",
        graph.add("Trilu", ones, graph.constant(np.array(1, dtype=np.int64)), upper=1),
        to=graph.onnx.TensorProto.BOOL,
    )


def _add_attention(graph: Graph, x: str, exported: SequenceModel, block: int, later: str) -> str:
    model, dense = exported.model, exported.dense
    width = model.dim // model.heads

    def heads(values: str) -> str:
        apart = graph.add("Reshape", values, graph.integers(0, 0, model.heads, width))
        return graph.add("Transpose", apart, perm=[0, 2, 1, 3])

    query, value = (heads(_add_linear(graph, x, dense, name, block)) for name in ("query", "value"))
    key = heads(graph.add("MatMul", x, graph.constant(dense[f"key{block}"].T)))
    near = graph.add(
        "MatMul",
        graph.add("Div", query, graph.scalar(math.sqrt(width))),
        graph.add("Transpose", key, perm=[0, 1, 3, 2]),
    )
    shares = graph.add("Softmax", graph.add("Where", later, graph.scalar(-math.inf), near), axis=-1)
    seen = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return _add_linear(graph, graph.add("Reshape", seen, graph.integers(0, 0, model.dim)), dense, "out", block)


def _add_feed_forward(graph: Graph, x: str, exported: SequenceModel, block: int) -> str:
    if exported.model.block_kind == "ligr":
        swish, inner = (
            graph.add("MatMul", x, graph.constant(exported.dense[f"{name}{block}"].T)) for name in ("swish", "inner")
        )
        silu = graph.add("Mul", swish, graph.add("Sigmoid", swish))
        outer = graph.constant(exported.dense[f"outer{block}"].T)
        return graph.add("MatMul", graph.add("Mul", silu, inner), outer)
    inner = graph.add("Relu", _add_linear(graph, x, exported.dense, "inner", block))
    return _add_linear(graph, inner, exported.dense, "outer", block)


def _add_linear(graph: Graph, x: str, dense: dict[str, Tensor], name: str, block: int) -> str:
    product = graph.add("MatMul", x, graph.constant(dense[f"{name}{block}"].T))
    return graph.add("Add", product, graph.constant(dense[f"{name}_bias{block}"]))


def _add_norm(graph: Graph, x: str, dense: dict[str, Tensor], name: str) -> str:
    scale, shift = (graph.constant(dense[name % part]) for part in ("scale", "shift"))
    return graph.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)
