"""One gradient of every client: filled up to one length, as on a GPU, it is that of bands; few logits at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.federation.clients import ClientData
from fedrec.methods import FedOpt
from fedrec.random import Purpose, fold_tensor
from fedrec.testing import tiny_world
from fedrec.training import one_gradient
from fedrec.training.one_gradient import Windows, softmax_slopes

METHOD = FedOpt(backbone="sasrec", loss="ce", dim=4, length=5, init_std=0.3, dropout=0.3)


def start(data: ClientData) -> tuple[torch.Tensor, torch.Tensor]:
    server = METHOD.init_server(data.world)
    return server["item"], server["network"]


@pytest.mark.parametrize("empty", [False, True])
def test_filled_up_to_one_length_it_is_the_same(empty):
    data = tiny_world(empty=empty)
    chunk, gradient = data.chunk(data.clients), METHOD.train._one_gradient
    assert gradient is not None
    found = gradient(chunk, 3, *start(data))
    windows = Windows.from_chunk(chunk, 5, 0, "last").fill_to(9)
    keys = fold_tensor(fold_tensor(chunk.secret.stream(Purpose.DROPOUT, 3), chunk.tensor(chunk.users)), 0)
    arrays = [torch.from_numpy(part) for part in (windows.met, windows.next, windows.size)]
    arrays[:2] = [part[:, :5] for part in arrays[:2]]  # the network has five positions
    losses, *filled = gradient.gradients(*arrays, keys, *start(data))
    for one, other in zip(found, filled, strict=True):
        assert float(one.abs().max()) > 0
        assert torch.allclose(one, other, atol=1e-12)
    assert chunk.observed["loss"][0] == pytest.approx(float(losses.sum()))


def test_random_windows_go_over_the_whole_history():
    """Of a history of fifteen items, windows of five steps begin at ten places, each as often as another."""
    data = tiny_world(per_user=(15, 4, 6, 2, 3, 9, 4, 5, 3, 6, 2, 8))
    chunk, history = data.chunk(data.clients), data.history[: data.user_ptr[1]]
    begun = []
    for round in range(600):
        windows = Windows.from_chunk(chunk, 5, round, "random")
        np.testing.assert_array_equal(windows.size, [5, 3, 5, 1, 2, 5, 3, 4, 2, 5, 1, 5])
        start = int(np.flatnonzero(history == windows.met[0, 0])[0])
        np.testing.assert_array_equal(windows.met[0, :5], history[start : start + 5])
        np.testing.assert_array_equal(windows.next[0, :5], history[start + 1 : start + 6])
        begun.append(start)
    counts = np.bincount(begun, minlength=10)
    assert len(counts) == 10
    assert counts.min() > 35, "60 are expected, give or take 7"


def test_a_window_is_drawn_alike_whoever_shares_the_chunk():
    data = tiny_world()
    together = Windows.from_chunk(data.chunk(data.clients), 5, 3, "random")
    for number in data.clients:
        alone = Windows.from_chunk(data.chunk(np.array([number])), 5, 3, "random")
        np.testing.assert_array_equal(alone.met[0], together.met[number, : alone.met.shape[1]])


def test_short_histories_are_trained_on_whole():
    data = tiny_world(per_user=(3, 6, 2, 5, 2, 4, 4, 5, 3, 6, 2, 6))
    chunk = data.chunk(data.clients)
    np.testing.assert_array_equal(
        Windows.from_chunk(chunk, 5, 3, "random").met, Windows.from_chunk(chunk, 5, 0, "last").met
    )


def test_windows_are_the_last_steps_and_what_followed():
    data = tiny_world()
    windows = Windows.from_chunk(data.chunk(data.clients), 5, 0, "last")
    for k, size in enumerate(windows.size):
        history = data.history[data.user_ptr[k] : data.user_ptr[k + 1]]
        assert size == min(5, len(history) - 1)
        np.testing.assert_array_equal(windows.met[k, :size], history[:-1][-5:])
        np.testing.assert_array_equal(windows.next[k, :size], history[1:][-5:])


def test_the_size_of_blocks_does_not_matter(monkeypatch):
    random = torch.Generator().manual_seed(0)
    hidden, table = (torch.randn(*shape, dtype=torch.float64, generator=random) for shape in ((6, 3, 4), (10, 4)))
    target, weight = (
        torch.randint(10, (6, 3), generator=random),
        torch.rand(6, 3, dtype=torch.float64, generator=random),
    )
    whole = softmax_slopes(hidden, table, target, weight)
    monkeypatch.setattr(one_gradient, "LOGITS", 1)
    for one, other in zip(whole, softmax_slopes(hidden, table, target, weight), strict=True):
        assert torch.allclose(one, other, atol=1e-14)


def test_slopes_are_those_of_cross_entropy():
    random = torch.Generator().manual_seed(0)
    hidden, table = (
        torch.randn(*shape, dtype=torch.float64, generator=random, requires_grad=True) for shape in ((2, 3, 4), (10, 4))
    )
    target, weight = (
        torch.randint(10, (2, 3), generator=random),
        torch.rand(2, 3, dtype=torch.float64, generator=random),
    )
    losses, by_hidden, by_item = softmax_slopes(hidden.detach(), table.detach(), target, weight)
    expected = torch.nn.functional.cross_entropy((hidden @ table.T).mT, target, reduction="none")
    assert torch.allclose(losses, expected, atol=1e-12)
    slopes = torch.autograd.grad((expected * weight).sum(), [hidden, table])
    assert torch.allclose(by_hidden, slopes[0], atol=1e-12)
    assert torch.allclose(by_item.sum(0), slopes[1], atol=1e-12)
