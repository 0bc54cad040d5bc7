"""A power of e that a loop can compute for many numbers at once: the library's takes one after another.

In single precision, to two units in the last place; in double precision it is the library's.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

# e ** -87 is the last that a normal number of single precision holds: below it, numbers would lose digits and be
# computed slowly, so that smaller arguments have the result of this one.
LOWEST = -87.0
LOG2_E = 1.4426950408889634
LN2 = (0.693145751953125, 1.428606765330187e-06)  # its first bits, so that a multiple of these is exact, and the rest
# Coefficients of e ** x, the highest first, for |x| <= ln(2) / 2: to 4e-9, below the rounding of single precision.
TERMS = (1.386380492e-03, 8.367476104e-03, 4.166723738e-02, 1.666653406e-01, 0.5, 1.0, 1.0)

_FLOAT, _BITS = ir.FloatType(), ir.IntType(32)


@intrinsic
def exp_below(typing, x):  # type: ignore[no-untyped-def]
    """e ** x for x <= 0; what is not a number stays so."""
    if x not in (types.float32, types.float64):
        raise TypingError("exp_below takes numbers of single or double precision")
    return x(x), _single if x == types.float32 else _library


def _library(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kind = args[0].type
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), "llvm.exp.f64")
    return builder.call(function, args)


def _single(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """x = n ln(2) + rest: the series of the rest, times 2 ** n."""

    def call(name: str, result: Any, *values: Any) -> Any:
        kind = ir.FunctionType(result, [value.type for value in values])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)

    def fma(a: Any, b: Any, c: Any) -> Any:
        return call("llvm.fma.f32", _FLOAT, a, b, c)

    low = _FLOAT(LOWEST)
    # An ordered comparison with NaN is false, so NaN goes on.
    x = builder.select(builder.fcmp_ordered("<", args[0], low), low, args[0])
    whole = call("llvm.rint.f32", _FLOAT, builder.fmul(x, _FLOAT(LOG2_E)))
    # in two parts: n times a rounded ln(2) would be wrong in the last places of the rest
    rest = x
    for part in LN2:
        rest = fma(whole, _FLOAT(-part), rest)
    value = _FLOAT(TERMS[0])
    for term in TERMS[1:]:
        value = fma(value, rest, _FLOAT(term))
    # a power of two is its exponent, 127 above the true one, in bits 23 to 30; saturating, for what is not a number
    exponent = builder.add(call("llvm.fptosi.sat.i32.f32", _BITS, whole), _BITS(127))
    return builder.fmul(value, builder.bitcast(builder.shl(exponent, _BITS(23)), _FLOAT))
