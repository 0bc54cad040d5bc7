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

from fedrec.kernels.vectors import INDEX, LANES, Code

# A product with its sum takes about four cycles and two can start in each: eight independent sums keep both units busy.
ROWS = 8

_LANE = ir.IntType(32)
_FIRST = ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)


@intrinsic
def add_products(typing, c, at, stride, a, first, step, along, b, begin, width, count):  # type: ignore[no-untyped-def]
    """c[at + r * stride + l] += sum over k of a[first + r * step + k * along] * b[begin + k * width + l].

    For all r < ROWS, l < LANES and k < count, which is at least 1. All three are arrays of one axis and of the same
    precision; nothing checks that the places are inside.
    """
    number = types.intp
    return types.void(c, number, number, a, number, number, number, b, number, number, number), _code


def _code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = Code(context, builder, signature, args)
    at, stride, first, step, along, begin, width, count = (args[k] for k in (1, 2, 4, 5, 6, 8, 9, 10))
    c, a, b = (code.array(k) for k in (0, 3, 7))
    lanes = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
    nothing, name = ir.Constant(lanes, ir.Undefined), f"llvm.fma.v{LANES}f{signature.args[0].dtype.bitwidth}"
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)

    def vector(data: Any, offset: Any) -> Any:
        return builder.bitcast(builder.gep(data, [offset]), lanes.as_pointer())

    def repeat(number: Any) -> Any:
        return builder.shuffle_vector(builder.insert_element(nothing, number, _LANE(0)), nothing, _FIRST)

    def body(k: Any, totals: list[Any]) -> list[Any]:
        right, along_k = builder.load(vector(b, code.place(begin, k, width)), align=4), builder.mul(k, along)
        numbers = [builder.load(builder.gep(a, [builder.add(start, along_k)])) for start in left]
        return [builder.call(fma, [repeat(x), right, total]) for x, total in zip(numbers, totals, strict=True)]

    left, results = code.places(first, ROWS, step), [vector(c, place) for place in code.places(at, ROWS, stride)]
    starts = [builder.load(result, align=4) for result in results]
    for value, result in zip(code.loop(count, 1, starts, body), results, strict=True):
        builder.store(value, result, align=4)
    return context.get_dummy_value()


@intrinsic
def transpose(typing, c, at, stride, a, first, step):  # type: ignore[no-untyped-def]
    """c[at + r * stride + l] = a[first + l * step + r], for all r and l < LANES."""
    number = types.intp
    return types.void(c, number, number, a, number, number), _transposing


def _transposing(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    (_, at, stride, _, first, step) = args
    c, a = (context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 3))
    lanes = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)

    def vector(data: Any, start: Any, times: int, by: Any) -> Any:
        place = builder.add(start, builder.mul(INDEX(times), by))
        return builder.bitcast(builder.gep(data, [place]), lanes.as_pointer())

    def pick_lanes(one: Any, other: Any, lanes_of: list[int]) -> Any:
        """Lanes of two vectors: those of the other follow those of the one."""
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_LANE, LANES), lanes_of))

    rows = [builder.load(vector(a, first, r, step), align=4) for r in range(LANES)]
    # log2(LANES) rounds, each of which swaps two corners of every square of twice this size: no number goes by memory
    apart = LANES // 2
    while apart:
        near = [lane if not lane & apart else LANES + lane - apart for lane in range(LANES)]
        far = [lane + apart if not lane & apart else LANES + lane for lane in range(LANES)]
        pairs = [(r, r + apart) for r in range(LANES) if not r & apart]
        for r, s in pairs:
            rows[r], rows[s] = pick_lanes(rows[r], rows[s], near), pick_lanes(rows[r], rows[s], far)
        apart //= 2
    for r, row in enumerate(rows):
        builder.store(row, vector(c, at, r, stride), align=4)
    return context.get_dummy_value()
