"""The hash and everything drawn from it: the same integers everywhere, and honest distributions."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy import stats

from fedrec.kernels import mf as kernels
from fedrec.random import (
    BITS,
    Purpose,
    below,
    fold,
    fold_array,
    fold_tensor,
    gamma,
    laplace,
    normal,
    permute,
    shuffle,
    stream,
    to_signed,
    uniform,
)

words = st.integers(min_value=0, max_value=BITS)


@njit
def fold_compiled(key, value):
    return kernels.fold(key, value)


def unsigned(tensor: torch.Tensor) -> list[int]:
    return [int(x) & BITS for x in tensor.flatten()]


class TestFold:
    @given(key=words, value=words)
    def test_same_in_python_numpy_torch_and_compiled(self, key, value):
        expected = fold(key, value)
        assert int(fold_array(key, value)) == expected
        assert int(fold_array(np.array([key], np.uint64), np.array([value], np.uint64))[0]) == expected
        tensor = torch.tensor([to_signed(value)])
        assert unsigned(fold_tensor(key, tensor)) == [expected]
        assert unsigned(fold_tensor(torch.tensor([to_signed(key)]), to_signed(value))) == [expected]
        assert unsigned(fold_tensor(torch.tensor([to_signed(key)]), tensor)) == [expected]
        assert int(fold_compiled(np.uint64(key), np.uint64(value))) == expected

    def test_is_the_published_splitmix64(self):
        """From state 0 the generator gives these first outputs."""
        assert [fold(0, k) for k in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    def test_negative_values_are_their_64_bits(self):
        assert fold(5, -3) == int(fold_array(5, -3)) == unsigned(fold_tensor(5, torch.tensor([-3])))[0]

    @given(key=words, value=words)
    def test_stays_in_64_bits(self, key, value):
        assert 0 <= fold(key, value) <= BITS
        assert to_signed(fold(key, value)) & BITS == fold(key, value)


class TestStream:
    def test_differs_by_seed_purpose_and_place(self):
        keys = [
            stream(seed, purpose, round, client)
            for seed in range(4)
            for purpose in Purpose
            for round in range(4)
            for client in range(4)
        ]
        assert len(set(keys)) == len(keys)
        assert stream(1, Purpose.INIT, 2, 3) != stream(1, Purpose.INIT, 3, 2)

    def test_purposes_are_independent(self):
        draws = {p: uniform(fold_tensor(stream(0, p), torch.arange(20000))).numpy() for p in Purpose}
        for left, right in pairwise(draws.values()):
            assert abs(np.corrcoef(left, right)[0, 1]) < 0.03


class TestBelow:
    @pytest.mark.parametrize("bound", [1, 2, 7, 100, 1000])
    def test_uniform(self, bound):
        draws = below(fold_tensor(11, torch.arange(200 * bound)), bound).numpy()
        assert draws.min() == 0
        assert draws.max() == bound - 1
        if bound > 1:
            assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 0.001

    @given(draw=words, bound=st.integers(1, 2**31 - 1))
    def test_same_everywhere_and_in_range(self, draw, bound):
        expected = ((draw >> 32) * bound) >> 32
        assert int(below(torch.tensor(to_signed(draw)), bound)) == expected
        assert 0 <= expected < bound


@njit
def permutation_compiled(key, size, out):
    kernels.permutation(key, size, out)


def permutation(key: int, size: int) -> torch.Tensor:
    owner = torch.zeros(size, dtype=torch.int64)
    return permute(torch.tensor([to_signed(key)]), torch.tensor([size]), torch.arange(size), owner)


class TestPermute:
    @pytest.mark.parametrize("size", [*range(1, 71), 127, 128, 129, 1000, 4096, 4097, 65537])
    def test_bijection_and_same_as_compiled(self, size):
        key = stream(3, Purpose.ORDER, size)
        found = permutation(key, size)
        assert torch.equal(found.sort().values, torch.arange(size))
        out = np.empty(size, np.int64)
        permutation_compiled(np.uint64(key), size, out)
        assert found.tolist() == out.tolist()

    def test_many_sizes_at_once(self):
        sizes = torch.tensor([3, 17, 64])
        keys = torch.tensor([to_signed(stream(0, Purpose.ORDER, c)) for c in range(3)])
        owner = torch.repeat_interleave(torch.arange(3), sizes)
        position = torch.cat([torch.arange(size) for size in sizes.tolist()])
        together = permute(keys, sizes, position, owner)
        for k, size in enumerate(sizes.tolist()):
            assert torch.equal(together[owner == k], permutation(int(keys[k]), size))

    def test_keys_give_different_orders(self):
        orders = {tuple(permutation(stream(0, Purpose.ORDER, k), 40).tolist()) for k in range(300)}
        assert len(orders) == 300

    @pytest.mark.parametrize(("size", "batch"), [(75, 16), (30, 8), (200, 64)])
    def test_every_sample_falls_into_every_batch(self, size, batch):
        """Each sample is as often in the first batch as any other, and so is each pair of samples."""
        repeats = 4000
        keys = fold_tensor(stream(1, Purpose.ORDER), torch.arange(repeats))
        owner = torch.repeat_interleave(torch.arange(repeats), batch)
        position = torch.arange(batch).repeat(repeats)  # the first batch of each key
        order = permute(keys, torch.full((repeats,), size), position, owner).reshape(repeats, batch)
        inside = torch.zeros(repeats, size, dtype=torch.float64)
        inside.scatter_(1, order, 1.0)
        rate = inside.mean(0).numpy()
        share = batch / size
        error = np.sqrt(share * (1 - share) / repeats)
        assert np.abs(rate - share).max() < 5 * error
        together = (inside.T @ inside / repeats).numpy()
        pairs = share * (batch - 1) / (size - 1)
        gap = np.abs(together - pairs)[~np.eye(size, dtype=bool)]
        deviation = np.sqrt(pairs * (1 - pairs) / repeats)
        assert gap.mean() < 1.3 * deviation
        assert gap.max() < 6 * deviation


class TestShuffle:
    @pytest.mark.parametrize("size", [1, 2, 3, 40, 64, 1000])
    def test_bijection(self, size):
        owner = torch.zeros(size, dtype=torch.int64)
        key = torch.tensor([to_signed(stream(5, Purpose.NEGATIVES, size))])
        found = shuffle(key, torch.tensor([size]), torch.arange(size), owner)
        assert found.sort().values.tolist() == list(range(size))

    @pytest.mark.parametrize("size", [6, 11])
    def test_every_pair_of_places_is_as_likely_as_any_other(self, size):
        repeats, count = 20_000, 4
        keys = fold_tensor(stream(1, Purpose.NEGATIVES), torch.arange(repeats))
        owner, position = torch.arange(repeats).repeat_interleave(count), torch.arange(count).repeat(repeats)
        found = shuffle(keys, torch.full((repeats,), size), position, owner).reshape(repeats, count).numpy()
        for first, second in combinations(range(count), 2):
            seen = np.bincount(found[:, first] * size + found[:, second], minlength=size * size).reshape(size, size)
            assert stats.chisquare(seen[~np.eye(size, dtype=bool)]).pvalue > 0.001
            assert (np.diag(seen) == 0).all()


class TestReals:
    where = torch.arange(200_000)

    def test_uniform(self):
        draws = uniform(fold_tensor(2, self.where)).numpy()
        assert draws.min() > 0
        assert draws.max() < 1
        assert stats.kstest(draws[:20000], "uniform").pvalue > 0.001

    def test_uniform_ends_are_open(self):
        ends = uniform(torch.tensor([0, -1]))
        assert 0 < float(ends[0]) < float(ends[1]) < 1
        assert bool(torch.log(ends).isfinite().all())

    def test_normal(self):
        draws = normal(3, self.where).numpy()
        assert stats.kstest(draws[:20000], "norm").pvalue > 0.001
        assert abs(draws.mean()) < 0.01
        assert abs(draws.std() - 1) < 0.01
        assert abs(stats.kurtosis(draws)) < 0.05

    def test_laplace(self):
        draws = laplace(4, self.where).numpy()
        assert stats.kstest(draws[:20000], "laplace").pvalue > 0.001
        assert abs(draws.mean()) < 0.02
        assert abs(draws.std() - 2**0.5) < 0.02

    @pytest.mark.parametrize("shape", [1.0, 3.0, 5551.0])
    def test_gamma(self, shape: float):
        draws = gamma(4, self.where, shape).numpy()
        assert stats.kstest(draws[:20000], stats.gamma(shape).cdf).pvalue > 0.001

    def test_gamma_of_an_entry_does_not_depend_on_the_others(self):
        assert torch.equal(gamma(4, self.where, 2.0)[:100], gamma(4, self.where[:100], 2.0))

    @pytest.mark.parametrize("draw", [normal, laplace])
    def test_a_draw_depends_on_its_place_only(self, draw):
        whole = draw(9, torch.arange(100))
        assert torch.equal(draw(9, torch.arange(40, 50)), whole[40:50])
        assert draw(9, torch.arange(3), torch.float32).dtype == torch.float32
