"""The products of a contrastive loss, as `products.py`: similarities with their powers, and weighted sums of rows.

Where sums have units of their own (`vectors.APART`), some products are replaced by sums, as many as keep both busy:

    x.y = sum over pairs of (x_0 + y_1) (x_1 + y_0) - x_0 x_1 - y_0 y_1 (Winograd 1968), two products fewer of four;
    w y for the row of x and w x for that of y: w (y - x) for the one and less for the other. They differ by multiples
    of x and y themselves, which do not matter where only what is across to them counts.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fedrec.kernels.bounds import TILE
from fedrec.kernels.vectors import APART, INDEX, LANES, Code, number

TALL, BESIDE = 8, 2  # rows, and vectors of columns, whose similarities stay in registers
WINOGRAD = 5 if APART else 0  # of the pairs of factors in a vector, how many by that identity
ORDER = (5, 0, 6, 1, 2, 7, 3, 4)  # of these pairs in time: sums beside products
HELD = 8  # vectors of rows whose weighted sums stay in registers

# 2 ** x for |x| <= 1/2, to 9e-8; a number plus ROUND has its nearest whole number in its last bits
EXP2 = (
    1.3264727195346174e-3,
    9.671512639766289e-3,
    5.550733743257949e-2,
    2.4022242085372453e-1,
    6.931469775991601e-1,
    1.0,
)
ROUND = 3 << 22

_INT = types.intp


@intrinsic
def set_powers(  # type: ignore[no-untyped-def]
    typing, e, at, x, left, right, own, mine, more, other, lowest, count
):
    """e[at + r * TILE + l] = 2 ** max(x_r.y_l + pairs(x_r) + pairs(y_l) + own[mine + r] + more[other + l], lowest).

    For all r < TALL and l < BESIDE * LANES, with x_r[k] = x[left + k * TILE + r] and y_l[k] = x[right + k * TILE + l],
    for k < count, a multiple of LANES; pairs(x) is the sum of x_0 x_1 over the pairs of Winograd's identity, the first
    WINOGRAD pairs of every LANES numbers. Exponents are above -126 and below 128. Otherwise as
    `products.add_products`, in single precision.
    """
    return types.void(e, _INT, x, _INT, _INT, own, _INT, more, _INT, types.float32, _INT), _powers


def _powers(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = Code(context, builder, signature, args)
    _, at, _, left, right, _, mine, _, other, lowest, count = args
    e, x, own, more = (code.array(k) for k in (0, 2, 5, 7))

    def body(k: Any, sums: list[Any]) -> list[Any]:
        row, column = (code.place(start, k, INDEX(TILE)) for start in (left, right))
        for pair in ORDER:
            i, j = INDEX(2 * pair * TILE), INDEX((2 * pair + 1) * TILE)
            y_i, y_j = (_load_beside(code, x, builder.add(column, at), BESIDE) for at in (i, j))
            for r in range(TALL):
                own_row = builder.add(row, INDEX(r))
                x_i, x_j = (code.keep_in_register(code.repeat(x, builder.add(own_row, at))) for at in (i, j))
                for n, (a, b) in enumerate(zip(y_i, y_j, strict=True), r * BESIDE):
                    if pair < WINOGRAD:
                        sums[n] = code.fma(builder.fadd(x_i, b), builder.fadd(x_j, a), sums[n])
                    else:
                        sums[n] = code.fma(x_j, b, code.fma(x_i, a, sums[n]))
        return sums

    starts = [code.repeat(own, builder.add(mine, INDEX(r))) for r in range(TALL) for _ in range(BESIDE)]
    rest, least = _load_beside(code, more, other, BESIDE), code.spread(lowest)
    for n, total in enumerate(code.loop(count, LANES, starts, body)):
        r, half = divmod(n, BESIDE)
        # The bound comes first, because lower exponents would leave the range of single precision.
        power = _exp2(code, code.larger(builder.fadd(total, rest[half]), least))
        code.store(power, e, builder.add(at, INDEX(r * TILE + half * LANES)))
    return context.get_dummy_value()


def _beside(code: Code, at: Any, count: int) -> list[Any]:
    """Where vectors begin that follow each other."""
    return code.places(at, count, INDEX(LANES))


def _load_beside(code: Code, data: Any, at: Any, count: int) -> list[Any]:
    return [code.load(data, place) for place in _beside(code, at, count)]


def _exp2(code: Code, x: Any) -> Any:
    b = code.builder
    rounded = b.fadd(x, number(ROUND))
    rest = b.fsub(x, b.fsub(rounded, number(ROUND)))
    value = number(EXP2[0])
    for term in EXP2[1:]:
        value = code.fma(value, rest, number(term))
    return code.times_power(value, rounded)


@intrinsic
def add_both(typing, c, mine, other, width, z, w, first, count, beside):  # type: ignore[no-untyped-def]
    """c[mine + r] += w[r, j] z[other + j] and c[other + j] += w[r, j] z[mine + r], summed over j and over r.

    For all r < HELD / beside and j < count, and the numbers of `beside` vectors, 1 or 2 as a literal, from `mine` and
    `other` on in rows of `width` of `c` and `z`; w[r, j] = w[first + r * TILE + j]. To every row of c a multiple of the
    same row of z may be added besides. Otherwise as `products.add_products`; the rows of the two must not overlap.
    """
    # Loops over it are unrolled, so it must be known when the code is made.
    if not isinstance(beside, types.IntegerLiteral):
        return None
    return types.void(c, _INT, _INT, _INT, z, w, _INT, _INT, beside), _both


def _both(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code, beside = Code(context, builder, signature, args), signature.args[8].literal_value
    _, mine, other, width, _, _, first, count, _ = args
    c, z, w = (code.array(k) for k in (0, 4, 5))
    tall = HELD // beside
    rows = [place for row in code.places(mine, tall, width) for place in _beside(code, row, beside)]
    own = [code.load(z, row) for row in rows]

    def body(j: Any, sums: list[Any]) -> list[Any]:
        at, weights = _beside(code, code.place(other, j, width), beside), builder.add(first, j)
        by = [code.keep_in_register(code.repeat(w, place)) for place in code.places(weights, tall, INDEX(TILE))]
        for k, place in enumerate(at):
            there, total, shared = code.load(z, place), code.load(c, place), []
            for n, weight in zip(range(k, HELD, beside), by, strict=True):
                if n // beside % 2 and APART:
                    shared.append(builder.fmul(weight, builder.fsub(there, own[n])))
                    sums[n] = builder.fadd(sums[n], shared[-1])
                else:
                    sums[n] = code.fma(weight, there, sums[n])
                    total = code.fma(weight, own[n], total)
            code.store(builder.fsub(total, code.total(shared)) if shared else total, c, place)
        return sums

    for value, row in zip(code.loop(count, 1, [code.load(c, row) for row in rows], body), rows, strict=True):
        code.store(value, c, row)
    return context.get_dummy_value()


@intrinsic
def square_of(typing, x, at, width):  # type: ignore[no-untyped-def]
    """The sum of the squares of the `width` numbers from `at` on, in the same order wherever this is compiled."""
    return types.float32(x, _INT, _INT), _square


def _square(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code, (_, at, width) = Code(context, builder, signature, args), args
    x = code.array(0)

    def body(k: Any, sums: list[Any]) -> list[Any]:
        values = code.load(x, builder.add(at, k))
        return [code.fma(values, values, sums[0])]

    return builder.extract_element(_total(code, *code.loop(width, LANES, [number(0)], body)), INDEX(0))


@intrinsic
def attract(typing, pull, z, at, friends, mates, two, unit, by, width):  # type: ignore[no-untyped-def]
    """Add to a row's gradient the pull of its friends; keep what is across to the row, times `by`.

    p -= two * (f - z), then p = by * (p - (p.u) u), for the `width` numbers from `at` on of pull, z and unit, and of
    friends from `mates` on. Returns z.(f - z).
    """
    one = types.float32
    return one(pull, z, _INT, friends, _INT, one, unit, one, _INT), _attraction


def _attraction(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = Code(context, builder, signature, args)
    _, _, at, _, mates, two, _, by, width = args
    pull, z, friends, unit = (code.array(k) for k in (0, 1, 3, 6))
    less, by = builder.fneg(code.spread(two)), code.spread(by)

    def join(k: Any, sums: list[Any]) -> list[Any]:
        here, (alike, along) = builder.add(at, k), sums
        own = code.load(z, here)
        others = builder.fsub(code.load(friends, builder.add(mates, k)), own)
        slope = code.fma(less, others, code.load(pull, here))
        code.store(slope, pull, here)
        return [code.fma(own, others, alike), code.fma(slope, code.load(unit, here), along)]

    alike, along = (_total(code, parts) for parts in code.loop(width, LANES, [number(0)] * 2, join))

    def leave(k: Any, nothing: list[Any]) -> list[Any]:
        here = builder.add(at, k)
        across = code.fma(builder.fneg(along), code.load(unit, here), code.load(pull, here))
        code.store(builder.fmul(by, across), pull, here)
        return nothing

    code.loop(width, LANES, [], leave)
    return builder.extract_element(alike, INDEX(0))


def _total(code: Code, vector: Any) -> Any:
    """The sum of all lanes, in all lanes."""
    # Halves are added crosswise: few sums suffice, and all lanes end with the same number.
    apart = LANES // 2
    while apart:
        vector = code.builder.fadd(vector, code.pick_lanes(vector, [lane ^ apart for lane in range(LANES)]))
        apart //= 2
    return vector


@intrinsic
def add_sums(typing, by_row, by_column, at, e):  # type: ignore[no-untyped-def]
    """Add a tile's sums to LANES parts of every row's sum and, from `at` on, to that of every column."""
    return types.void(by_row, by_column, _INT, e), _sums


def _sums(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = Code(context, builder, signature, args)
    by_row, by_column, e = (code.array(k) for k in (0, 1, 3))
    columns = code.places(args[2], TILE // LANES, INDEX(LANES))

    def body(i: Any, sums: list[Any]) -> list[Any]:
        parts = [code.load(e, at) for at in code.places(builder.mul(i, INDEX(TILE)), len(sums), INDEX(LANES))]
        new = [builder.fadd(total, part) for total, part in zip(sums, parts, strict=True)]
        row = builder.mul(i, INDEX(LANES))
        code.store(builder.fadd(code.load(by_row, row), code.total(parts)), by_row, row)
        return new

    starts = [code.load(by_column, at) for at in columns]
    for value, at in zip(code.loop(INDEX(TILE), 1, starts, body), columns, strict=True):
        code.store(value, by_column, at)
    return context.get_dummy_value()
