from __future__ import annotations

import torch

from fedrec.models.lightgcn import Graph, LightGCN

USER, NODE = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 2])  # A = [[1, 1, 0], [0, 1, 1]]


def test_propagation_by_hand():
    graph = Graph.build(USER, NODE, 2, torch.float64)
    block = graph.matrix.to_dense()[:2, 2:]
    assert torch.allclose(block, torch.tensor([[0.707107, 0.5, 0], [0, 0.5, 0.707107]]).double(), atol=1e-6)
    user, item = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[3.0], [4.0], [5.0]]).double()
    model = LightGCN(1, layers=2)
    users, items = model.convolve(graph, user, item)
    assert torch.allclose(users[:, 0], torch.tensor([2.123773, 3.095178]).double(), atol=1e-6)
    assert torch.allclose(items[:, 0], torch.tensor([2.207107, 3.442809, 3.442809]).double(), atol=1e-6)
    expected = torch.tensor([[4.687395, 7.311746, 7.311746], [6.831388, 10.656107, 10.656107]]).double()
    assert torch.allclose(model.scores(users, items, {}), expected, atol=1e-5)


def test_nodes_without_an_edge_keep_a_part_of_themselves():
    """Also users; and parts of a graph do not touch each other."""
    graph = Graph.build(USER, NODE + 1, 3, torch.float64)
    user, item = torch.rand(3, 4).double(), torch.rand(6, 4).double()
    users, items = LightGCN(4, layers=3).convolve(graph, user, item)
    assert torch.equal(users[2], user[2] / 4)
    assert torch.equal(items[[0, 4, 5]], item[[0, 4, 5]] / 4)
    moved, _ = LightGCN(4, layers=3).convolve(graph, user, torch.where(torch.arange(6)[:, None] == 0, 9.0, item))
    assert torch.equal(moved, users)


def test_gradient_is_the_one_of_the_sum_of_layers():
    graph = Graph.build(USER, NODE, 2, torch.float64)
    user, item = (torch.rand(n, 2, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(lambda u, i: LightGCN(2, layers=3).convolve(graph, u, i), (user, item))


def test_an_empty_graph():
    none = torch.zeros(0, dtype=torch.int64)
    users, items = LightGCN(2, layers=1).convolve(
        Graph.build(none, none, 2, torch.float64), *torch.ones(2, 2, 2).double()
    )
    assert users.tolist() == items.tolist() == [[0.5, 0.5]] * 2
