"""Define minima, maxima, gates and selections.

A gate is 1 where its test holds, else 0. If the bounds of variables decide a comparison, it is simplified immediately.
"""

from __future__ import annotations

from felixlike.symbolic.expr.expression import CONSTRUCTORS, Expr, as_expr, const, make_node
from felixlike.symbolic.expr.node import Number, Op
from felixlike.symbolic.expr.polynomial import expand, nonnegative


def minimum(a: Expr | Number, b: Expr | Number) -> Expr:
    """Return the smaller of two expressions."""
    a, b = as_expr(a), as_expr(b)
    if a is b or a.high <= b.low or nonnegative(b - a):
        return a
    if b.high <= a.low or nonnegative(a - b):
        return b
    a, b = sorted((a, b), key=lambda e: e.order)
    return make_node(Op.MIN, (a, b), (), min(a.low, b.low), min(a.high, b.high))


def maximum(a: Expr | Number, b: Expr | Number) -> Expr:
    """Return the larger of two expressions."""
    a, b = as_expr(a), as_expr(b)
    if a is b or a.low >= b.high or nonnegative(a - b):
        return a
    if b.low >= a.high or nonnegative(b - a):
        return b
    a, b = sorted((a, b), key=lambda e: e.order)
    return make_node(Op.MAX, (a, b), (), max(a.low, b.low), max(a.high, b.high))


def at_least(x: Expr | Number, threshold: int) -> Expr:
    """Return the gate [x ≥ threshold] of an integer-valued x: 1 or 0."""
    x = as_expr(x)
    if x.low >= threshold:
        return const(1)
    if x.high < threshold:
        return const(0)
    if x.op is Op.AT_LEAST:  # a gate of a gate: [g ≥ 1] = g
        return x
    return make_node(Op.AT_LEAST, (x,), (threshold,), 0.0, 1.0)


def at_most(x: Expr | Number, threshold: int) -> Expr:
    """Return the gate [x ≤ threshold] of an integer-valued x."""
    return 1 - at_least(x, threshold + 1)


def equals(a: Expr | Number, b: Expr | Number) -> Expr:
    """Return the gate [a = b] of integer-valued expressions."""
    difference = expand(as_expr(a) - b)
    if difference.is_const:
        return const(int(difference.value == 0))
    if nonnegative(difference):
        return at_most(difference, 0)
    if nonnegative(-difference):
        return at_least(difference, 0)
    return at_least(difference, 0) * at_most(difference, 0)


def select(gate: Expr, then: Expr | Number, otherwise: Expr | Number) -> Expr:
    """Return `then` where the gate is 1, `otherwise` where it is 0."""
    then, otherwise = as_expr(then), as_expr(otherwise)
    if gate.is_const:
        return then if gate.value else otherwise
    if then is otherwise:
        return then
    if then.is_const and otherwise.is_const and then.value == 1 and otherwise.value == 0:
        return gate
    low, high = min(then.low, otherwise.low), max(then.high, otherwise.high)
    return make_node(Op.SELECT, (gate, then, otherwise), (), low, high)


CONSTRUCTORS.update(
    {
        Op.MIN: lambda args, payload: minimum(*args),
        Op.MAX: lambda args, payload: maximum(*args),
        Op.AT_LEAST: lambda args, payload: at_least(args[0], payload[0]),  # type: ignore[arg-type]
        Op.SELECT: lambda args, payload: select(*args),
    }
)
