"""Copies that go past the caches: what is far larger than they are is written without being read into them first."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, marked for the compiler as a number that nobody reads soon."""

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (held, at, number) = signature.args[0], arguments
        opened = context.make_array(kind)(context, builder, held)
        place = cgutils.get_item_pointer(context, builder, kind, opened, [at], wraparound=False)
        mark = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        builder.store(number, place).set_metadata("nontemporal", mark)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), made


@njit(error_model="numpy")
def copy_past(source, to):
    """`source` to `to`, both one run of numbers of the same type: eight bytes at a time, where they make up all."""
    if to.size * to.itemsize % 8:
        for j in range(len(to)):
            to[j] = source[j]
        return
    numbers, places = source.view(np.uint64), to.view(np.uint64)
    for j in range(len(places)):
        _store(places, j, numbers[j])
