"""Convert expressions to indices.

Input: an expression and the loop variables in it. Output: `Index`, or None if the expression is not quasi-affine in
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from felixlike.symbolic.expr.expression import Expr, const, floordiv, mul
from felixlike.symbolic.expr.node import Op, linear_parts, product_parts
from felixlike.symbolic.expr.polynomial import expand
from felixlike.symbolic.program.indices import Floor, Index, Remainder, ends_of


def affine(expression: Expr, loop_variables: tuple[Expr, ...]) -> Index | None:
    """Return an expression as a quasi-affine function of the loop variables; None if it is not one.

    The strides are in the order of `loop_variables`.
    """
    expression, floors = _without_remainders(expand(expression), loop_variables)
    constant, terms = linear_parts(expression)
    offset: Expr = const(constant)
    strides: dict[Expr, Expr] = {}
    for term, factor in terms:
        parts = product_parts(term)[1]
        loop_parts = [(b, e) for b, e in parts if _depends(b, loop_variables)]
        if not loop_parts:
            offset += term * factor
            continue
        if len(loop_parts) > 1 or loop_parts[0][1] != 1:
            return None
        base = loop_parts[0][0]
        stride = mul([factor, term, 1 / base])
        if base in loop_variables:
            strides[base] = strides.get(base, const(0)) + stride
            continue
        inner = _dividend(base, loop_variables)
        if inner is None or not stride.is_const or stride.value <= 0:
            return None
        divisor, scale = int(base.args[1].value), int(stride.value)
        # ⌊x / d⌋ = ⌊(x + s·d) / d⌋ − s
        floors.append(Floor(inner[0], divisor, scale))
        offset -= inner[1] * scale
    ordered = tuple((v, strides[v]) for v in loop_variables if v in strides)
    return Index(offset, ordered, tuple(floors))


def _without_remainders(expression: Expr, loop_variables: tuple[Expr, ...]) -> tuple[Expr, list[Floor | Remainder]]:
    """Split an expression into the rest and its remainders: k·x − k·d·⌊x / d⌋ = k·(x mod d)."""
    remainders: list[Floor | Remainder] = []
    for term, factor in linear_parts(expression)[1]:
        inner = _dividend(term, loop_variables) if factor < 0 else None
        if inner is None:
            continue
        divisor = int(term.args[1].value)
        if factor % divisor == 0:
            count = -int(factor) // divisor
            remainders.append(Remainder(inner[0], divisor, count))
            expression = expand(expression - term * factor - term.args[0] * count)
    return expression, remainders


def _dividend(base: Expr, loop_variables: tuple[Expr, ...]) -> tuple[Index, int] | None:
    """Return x + s·d ≥ 0 and s for ⌊x / d⌋ with a number d that depends on loops; None for other expressions."""
    if base.op is not Op.FLOORDIV or not base.args[1].is_const or not _depends(base.args[0], loop_variables):
        return None
    inner, divisor = affine(base.args[0], loop_variables), int(base.args[1].value)
    lowest = _lowest(inner) if inner is not None else -math.inf
    if inner is None or not math.isfinite(lowest):
        return None
    shift = max(0, math.ceil(-lowest / divisor))
    return replace(inner, offset=inner.offset + shift * divisor), shift


def _lowest(index: Index) -> float:
    """Return a lower bound of the index's values."""
    straight = index.offset.low + sum((v * c).low for v, c in index.strides)
    return straight + sum(
        _lowest(f.inner) // f.divisor * f.factor if isinstance(f, Floor) else 0.0 for f in index.floors
    )


def carry(floor: Floor | Remainder, outer: frozenset[Expr], extents: Mapping[Expr, Expr]) -> Expr:
    """Return 1 if for some iterations ⌊(a + b) / d⌋ is not ⌊a / d⌋ + ⌊b / d⌋, else 0.

    a is the sum of the loops in `outer` and the offset; b is the sum of the other loops.
    """
    a, b = floor.inner.without(lambda v: v not in outer), floor.inner.without(outer.__contains__)
    b = replace(b, offset=b.offset - floor.inner.offset)
    parts = [floordiv(part.expression, floor.divisor) for part in (floor.inner, a, b)]
    wide = b.span(extents)[1] + 1
    return ends_of(parts[0] - parts[1] - parts[2], extents, (wide,))[1]


def _depends(expression: Expr, loop_variables: tuple[Expr, ...]) -> bool:
    """Return whether an expression contains a loop variable."""
    if expression in loop_variables:
        return True
    return any(_depends(a, loop_variables) for a in expression.args)
