"""Copies that go past the caches: what is far larger than they are is written without being read into them first."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line


@intrinsic
def _store_line(typing: Any, to: Any, at: Any, source: Any, first: Any) -> Any:
    """A line of numbers from source[first] on to to[at], marked for the compiler as one that nobody reads soon."""
    if to.dtype != source.dtype:
        raise TypingError("rows and the place they go to differ in type")

    def write_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, (_, at, _, first) = signature.args, arguments
        place, start = (context.make_array(kinds[k])(context, builder, arguments[k]).data for k in (0, 2))
        number = context.get_value_type(kinds[0].dtype)
        line = ir.VectorType(number, LINE // context.get_abi_sizeof(number)).as_pointer()
        # rows are read from wherever they lie; a store past the caches must begin where a line of the cache does
        value = builder.load(builder.bitcast(builder.gep(start, [first]), line), align=1)
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        stored = builder.store(value, builder.bitcast(builder.gep(place, [at]), line), align=LINE)
        stored.set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp), write_code


@intrinsic
def _settle(typing: Any) -> Any:
    """Stores past the caches keep no order of their own: whoever is told afterwards that all is done has to find it."""

    def write_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), write_code


@njit(error_model="numpy")
def gather_past(rows, index, to):
    """to[i] = rows[index[i]], of the same type: past the caches where lines make up a row.

    The numbers of a row lie side by side; `to` may be some columns of a larger matrix.
    """
    wide, line = to.shape[1], LINE // to.itemsize
    # A store past the caches takes a whole line; rows that are not made of such are copied as usual.
    if wide % line or to.ctypes.data % LINE or to.strides[0] % LINE:
        for i in range(len(to)):
            row = rows[index[i]]
            for f in range(wide):
                to[i, f] = row[f]
        return
    for i in range(len(to)):
        row, place = rows[index[i]], to[i]
        for f in range(0, wide, line):
            _store_line(place, f, row, f)
    _settle()


@njit(error_model="numpy")
def scatter_past(rows, index, to):
    """to[index[i]] = rows[i], in the same way."""
    wide, line = to.shape[1], LINE // to.itemsize
    if wide % line or to.ctypes.data % LINE or to.strides[0] % LINE:
        for i in range(len(index)):
            row = rows[i]
            for f in range(wide):
                to[index[i], f] = row[f]
        return
    for i in range(len(index)):
        row, place = rows[i], to[index[i]]
        for f in range(0, wide, line):
            _store_line(place, f, row, f)
    _settle()
