"""Vector instructions for intrinsics of numba: every line becomes one of the compiler's intermediate language.

It turns them into the widest vectors there are. A loop of numba's own cannot say what has to stay in a register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, config

# 16 numbers of single precision fill the widest vectors there are, of 512 bits, and a line of the cache; where vectors
# are narrower, the compiler splits them.
LANES = 16
APART = binding.get_host_cpu_name().startswith("znver")
"""Whether sums have units of their own beside those of products: then two sums cost as little as one product."""

# What a user asks to compile for comes before what this processor can do.
_ASKED = config.CPU_NAME or config.CPU_FEATURES or not config.ENABLE_AVX
_FOLDS = not _ASKED and bool(binding.get_host_cpu_features().get("avx512f"))
"""Whether an instruction can load a number into all lanes by itself."""

INDEX, _BITS, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_VECTOR, _WHOLE = ir.VectorType(_FLOAT, LANES), ir.VectorType(_BITS, LANES)
_NOTHING, _FIRST = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_WHOLE, [0] * LANES)


def number(value: float) -> Any:
    """The same in all lanes."""
    return ir.Constant(_VECTOR, [value] * LANES)


class Code:
    """Writes the code of one intrinsic. Arguments of it are found by their position; sums keep their order.

    What loads, stores or computes is in single precision.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder, self.signature, self.args = context, builder, signature, args

    def array(self, position: int) -> Any:
        """Its data; the array has one axis."""
        kind = self.context.make_array(self.signature.args[position])
        return kind(self.context, self.builder, self.args[position]).data

    def keep_in_register(self, value: Any) -> Any:
        """The same value in a register, which the compiler does not know to be the same.

        It would load a number into all lanes again with each of its uses, and loads are as scarce as products.
        """
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.asm(kind, "", "=v,0", [value], False) if _FOLDS else value

    def place(self, start: Any, times: Any, by: Any) -> Any:
        return self.builder.add(start, self.builder.mul(times, by))

    def places(self, start: Any, count: int, by: Any) -> list[Any]:
        return [self.place(start, INDEX(k), by) for k in range(count)]

    def load(self, data: Any, at: Any) -> Any:
        # Arrays may begin anywhere: if more were promised, the compiler would choose loads that fault elsewhere.
        return self.builder.load(self._vector(data, at), align=4)

    def store(self, value: Any, data: Any, at: Any) -> None:
        self.builder.store(value, self._vector(data, at), align=4)

    def repeat(self, data: Any, at: Any) -> Any:
        """One number of an array in all lanes."""
        return self.spread(self.builder.load(self.builder.gep(data, [at])))

    def spread(self, one: Any) -> Any:
        lane = self.builder.insert_element(_NOTHING, one, _BITS(0))
        return self.builder.shuffle_vector(lane, _NOTHING, _FIRST)

    def pick_lanes(self, vector: Any, lanes: Sequence[int]) -> Any:
        """In every lane what is in another one."""
        return self.builder.shuffle_vector(vector, vector, ir.Constant(_WHOLE, list(lanes)))

    def fma(self, left: Any, right: Any, total: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fma.v{LANES}f32")
        return self.builder.call(function, [left, right, total])

    def total(self, values: Sequence[Any]) -> Any:
        """Their sum, so that few wait for others."""
        # a balanced tree, which leaves few sums waiting for another; its order never depends on the data
        while len(values) > 1:
            values = [*values[2:], self.builder.fadd(*values[:2])]
        return values[0]

    def larger(self, left: Any, right: Any) -> Any:
        """`left` where neither is: what is not a number stays so."""
        return self.builder.select(self.builder.fcmp_ordered("<", left, right), right, left)

    def times_power(self, value: Any, bits: Any) -> Any:
        """value * 2 ** n, for the n in the last bits of `bits`: added to the exponent of the value."""
        # bits 23 to 30 hold the exponent; the sum is right as long as the result is a normal number
        b = self.builder
        power = b.shl(b.bitcast(bits, _WHOLE), ir.Constant(_WHOLE, [23] * LANES))
        return b.bitcast(b.add(b.bitcast(value, _WHOLE), power), _VECTOR)

    def loop(
        self, count: Any, step: int, starts: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """What `body` makes of the values of the turn before, for k = 0, step, ... below `count`, at least once."""
        b = self.builder
        before, turn, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.branch(turn)
        b.position_at_end(turn)
        k, values = b.phi(INDEX), [b.phi(start.type) for start in starts]
        new = body(k, list(values))
        following = b.add(k, INDEX(step))
        for phi, start, value in zip([k, *values], [INDEX(0), *starts], [following, *new], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, count), turn, after)
        b.position_at_end(after)
        return new

    def _vector(self, data: Any, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [at]), _VECTOR.as_pointer())
