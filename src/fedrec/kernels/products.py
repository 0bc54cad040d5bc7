"""Products of small matrices at the full rate of a processor, from within a compiled kernel.

A library's product of matrices cannot be called from inside a tile, where the next pass finds the result in the nearest
cache. Here `ROWS` rows by `LANES` columns of the result stay in registers while their sums are formed: one instruction
of the compiler's intermediate language for every line below, which it turns into the widest vectors there are.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES, ROWS = 16, 8

_INDEX, _LANE = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_NOTHING, _FIRST = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)


@intrinsic
def add_products(typing, c, at, stride, a, first, step, along, b, begin, width, count):  # type: ignore[no-untyped-def]
    """c[at + r * stride + l] += sum over k of a[first + r * step + k * along] * b[begin + k * width + l].

    For all r < ROWS, l < LANES and k < count, which is at least 1. All three are arrays of one axis in single
    precision; nothing checks that the places are inside.
    """
    number = types.intp
    return types.void(c, number, number, a, number, number, number, b, number, number, number), _code


def _code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    at, stride, first, step, along, begin, width, count = (args[k] for k in (1, 2, 4, 5, 6, 8, 9, 10))
    c, a, b = (context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 3, 7))
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )

    def place(start: Any, times: Any, by: Any) -> Any:
        return builder.add(start, builder.mul(times, by))

    def vector(data: Any, offset: Any) -> Any:
        return builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer())

    def repeated(number: Any) -> Any:
        return builder.shuffle_vector(builder.insert_element(_NOTHING, number, _LANE(0)), _NOTHING, _FIRST)

    results = [vector(c, place(at, _INDEX(r), stride)) for r in range(ROWS)]
    left = [place(first, _INDEX(r), step) for r in range(ROWS)]
    sums = [builder.load(result, align=4) for result in results]
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    k, totals = builder.phi(_INDEX), [builder.phi(_VECTOR) for _ in range(ROWS)]
    right, along_k = builder.load(vector(b, place(begin, k, width)), align=4), builder.mul(k, along)
    numbers = [builder.load(builder.gep(a, [builder.add(start, along_k)])) for start in left]
    new = [builder.call(fma, [repeated(x), right, total]) for x, total in zip(numbers, totals, strict=True)]
    following = builder.add(k, _INDEX(1))
    for phi, start, value in zip([k, *totals], [_INDEX(0), *sums], [following, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    for value, result in zip(new, results, strict=True):
        builder.store(value, result, align=4)
    return context.get_dummy_value()
