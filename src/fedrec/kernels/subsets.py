"""Products with a matrix of zeros and ones, from within a compiled kernel.

What lies behind a ReLU has such a factor: which unit is active for which sample. Of every four rows of the other factor
all sixteen sums are formed once; four zeros and ones then choose one of them, so that one addition does the work of
four multiplications. Sums are those of the plain product in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fedrec.kernels.mf import FAST
from fedrec.kernels.products import ROWS
from fedrec.kernels.vectors import INDEX, LANES, Code

GROUP, SUBSETS = 4, 16
# So few groups at once that their sums stay in the nearest cache.
NEAR = 20
LINE = 64  # bytes of a line of the cache


@intrinsic
def _add_chosen(typing, c, at, stride, sums, choice, first, along, count):
    """c[at + r * stride + l] += sum over k of sums[(k * SUBSETS + choice[first + k * along + r]) * LANES + l].

    For all r < ROWS, l < LANES and k < count, which is at least 1. All are arrays of one axis, `choice` of bytes below
    SUBSETS, of which ROWS are read at once; nothing checks that the places are inside.
    """
    number = types.intp
    return types.void(c, number, number, sums, choice, number, number, number), _code


def _code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = Code(context, builder, signature, args)
    at, stride, first, along, count = (args[k] for k in (1, 2, 5, 6, 7))
    c, sums, choice = (code.array(k) for k in (0, 3, 4))
    lanes = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)

    def vector(data: Any, offset: Any) -> Any:
        return builder.bitcast(builder.gep(data, [offset]), lanes.as_pointer())

    def body(k: Any, totals: list[Any]) -> list[Any]:
        group, eight = builder.mul(k, INDEX(SUBSETS * LANES)), builder.gep(choice, [code.place(first, k, along)])
        bits = builder.load(builder.bitcast(eight, INDEX.as_pointer()), align=1)  # the first row's are the lowest
        which = [builder.and_(builder.lshr(bits, INDEX(8 * r)), INDEX(SUBSETS - 1)) for r in range(ROWS)]
        values = [builder.load(vector(sums, code.place(group, one, INDEX(LANES))), align=4) for one in which]
        return [builder.fadd(total, value) for total, value in zip(totals, values, strict=True)]

    results = [vector(c, place) for place in code.places(at, ROWS, stride)]
    starts = [builder.load(result, align=4) for result in results]
    for value, result in zip(code.loop(count, 1, starts, body), results, strict=True):
        builder.store(value, result, align=4)
    return context.get_dummy_value()


@intrinsic
def _sum_subsets(typing, sums, at, source, places, factors, k, lane):
    """sums[at + s * LANES + l] = sum over the bits g of s of factors[k + g] * source[places[k + g] + lane + l].

    For all s < SUBSETS and l < LANES; nothing checks that the places are inside.
    """
    number = types.intp
    return types.void(sums, number, source, places, factors, number, number), _summing


def _summing(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    at, k, lane = (args[j] for j in (1, 5, 6))
    sums, source, places, factors = (
        context.make_array(signature.args[j])(context, builder, args[j]).data for j in (0, 2, 3, 4)
    )
    lanes = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

    def vector(data: Any, offset: Any) -> Any:
        return builder.bitcast(builder.gep(data, [offset]), lanes.as_pointer())

    totals = [ir.Constant(lanes, [0.0] * LANES)]
    for g in range(GROUP):
        one = builder.add(k, INDEX(g))
        row = builder.load(vector(source, builder.add(builder.load(builder.gep(places, [one])), lane)), align=4)
        factor = builder.insert_element(
            ir.Constant(lanes, ir.Undefined), builder.load(builder.gep(factors, [one])), ir.IntType(32)(0)
        )
        row = builder.fmul(row, builder.shuffle_vector(factor, factor, everywhere))
        # Each new subset is an earlier one and this row, so that it costs one addition.
        totals += [row, *(builder.fadd(total, row) for total in totals[1:])]
    for s, total in enumerate(totals):
        builder.store(total, vector(sums, builder.add(at, INDEX(s * LANES))), align=4)
    return context.get_dummy_value()


@njit(**FAST)
def add_chosen_sums(c, width, rows, source, places, factors, choice, sums):
    """To row r < `rows` of c add the rows of `source` that its bits choose, each times its factor.

    Both have rows of `width` numbers, a multiple of LANES; `rows` is a multiple of ROWS. The rows of the source begin
    at `places`, as many as a multiple of GROUP; choice[g * rows + r] has the bits of the g-th four.
    """
    for lane in range(0, width, LANES):
        for low in range(0, len(places), NEAR * GROUP):
            high = min(low + NEAR * GROUP, len(places))
            for k in range(low, high, GROUP):
                _sum_subsets(sums, (k - low) // GROUP * SUBSETS * LANES, source, places, factors, k, lane)
            for r in range(0, rows, ROWS):
                _add_chosen(
                    c, r * width + lane, width, sums, choice, low // GROUP * rows + r, rows, (high - low) // GROUP
                )


@njit(**FAST)
def near_space(size, dtype):
    """Room that begins where a line of the cache does: a vector that spans two lines is read twice."""
    room = np.empty(size + LINE, dtype)
    start = (LINE - room.ctypes.data % LINE) % LINE // room.itemsize
    return room[start : start + size]
