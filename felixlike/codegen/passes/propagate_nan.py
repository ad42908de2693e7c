"""Give comparisons the semantics of IEEE 754 and PyTorch: maxima propagate NaN, and the maximum of -inf only is -inf.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module with maxima, minima and inequalities of floats
replaced. TVM's max(a, b) is a > b ? a : b, which loses a NaN in a. Its a != b is false if one of them is NaN. Its
simplifier turns not (a < b) into b <= a, a = a into true, and a - a into 0. Its maxima begin at the smallest finite
number, which is above -inf. Workloads, traces and records keep TVM's forms, which its schedule rules know. The pass
runs before the compiler.

If one side is a constant, as in ReLU, the order of the operands suffices (x86's maxps returns the second operand if one
is NaN), at no cost. A maximum of two unknowns takes one more comparison and blend. The operand that a reduction adds is
the one compared with itself, so the dependence from step to step is longer by only one blend. The maxima of a softmax
may lose a NaN, which its sum propagates.
"""

import itertools
import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen.annotations import Softmax
from felixlike.codegen.passes.bind_repeated_values import Names

_SIGNS = {"Max": -1, "Min": 1}
"""Sign of the infinity that a reduction of this kind begins at."""


_MOST_VARIABLES = 64
"""Upper limit on variables in an expression that is duplicated."""


def from_infinity(module: Module) -> Module:
    """Return the IRModule with maximum reductions initialized to -inf and minimum reductions to inf.

    The maximum of infinities is then infinite, instead of the smallest finite number that TVM begins with.
    """
    return _tvm.map_functions(module, _from_infinity)


def keep_rounding(module: Module) -> Module:
    """Return the IRModule with float expressions in forms that TVM's simplifier, which later passes use, leaves alone.

    It takes floats for real numbers: (x + y) - x becomes y, x - x 0, x y - x z x (y - z), x = x true, not (x < y) y <=
    x, and x < y or y <= x true. Such expressions arise where operators are inlined, and where loops are unrolled or
    split: x[i] - x[0] is x[0] - x[0] in the first iteration. They depend on rounding, and on infinities and NaN.
    """
    tirx = _tvm.tirx
    changes = (
        *((kind, _of_itself) for kind in (tirx.EQ, tirx.LE, tirx.GE)),
        (tirx.NE, _unequal_to_itself),
        (tirx.Not, _negated),
        (tirx.Max, _extreme_of_itself),
        (tirx.Min, _extreme_of_itself),
        (tirx.Sub, _difference),
        (tirx.And, _joined),
        (tirx.Or, _joined),
    )
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, changes))


def keep_nan(module: Module) -> Module:
    """Return the IRModule with maxima and minima that propagate NaN, and inequalities that are true for NaN."""
    tirx = _tvm.tirx
    changes = (
        (tirx.Max, _extreme),
        (tirx.Min, _extreme),
        (tirx.NE, _unequal),
        (tirx.Not, _negated),
    )

    def changed(func: Func) -> Func:
        return _tvm.structural_map(_tvm.structural_map(func, (tirx.For, _in_softmax)), changes)

    return _tvm.map_functions(module, changed)


def is_limit(value: TirExpr, kind: str) -> bool:
    """Return whether an expression is the constant that TVM initializes a maximum (or minimum) of its type with.

    It is the smallest (or largest) finite number.
    """
    if not isinstance(value, _tvm.tirx.FloatImm):
        return False
    limit = (_tvm.tirx.min_value if kind == "Max" else _tvm.tirx.max_value)(str(value.ty.dtype))
    return float(value.value) == float(limit.value)


def infinite(value: TirExpr, kind: str) -> TirExpr:
    """Return the infinity that replaces such a constant."""
    return _tvm.tirx.const(_SIGNS[kind] * math.inf, str(value.ty.dtype))


def _from_infinity(func: Func) -> Func:
    """Replace the initial values of a function's maximum and minimum reductions."""
    tirx = _tvm.tirx
    kinds: dict[Any, str] = {}
    for store in _tvm.found(func.body, tirx.BufferStore):
        kind = type(store.value).__name__
        if kind in _SIGNS and any(_loads(side, store.buffer) for side in (store.value.a, store.value.b)):
            kinds[store.buffer] = kind
    if not kinds:
        return func

    def replaced(store: Stmt) -> Stmt:
        kind = kinds.get(store.buffer)
        if kind is None or not is_limit(store.value, kind):
            return store
        return tirx.BufferStore(store.buffer, infinite(store.value, kind), store.indices)

    return _tvm.structural_map(func, (tirx.BufferStore, replaced))


def _loads(value: TirExpr, buffer: Buffer) -> bool:
    """Return whether a value is a load of a buffer."""
    return isinstance(value, _tvm.ir.TensorLoad) and value.source.same_as(buffer)


def _extreme(node: Node) -> TirExpr:
    """Replace a maximum or minimum: max(a, b) = b if b is NaN, else b if b > a, else a; b > a is false if a is NaN."""
    if not _is_float(node):
        return node
    names = Names()
    first, second = (side if _is_plain(side) else names(side) for side in (node.a, node.b))
    if isinstance(second, _tvm.tirx.FloatImm):
        first, second = second, first
    beyond = _tvm.tirx.GT if isinstance(node, _tvm.tirx.Max) else _tvm.tirx.LT
    if isinstance(first, _tvm.tirx.FloatImm) and not math.isnan(float(first.value)):
        return names.close(_tvm.tirx.Select(beyond(first, second), first, second))
    nearer = _tvm.tirx.Select(beyond(second, first), second, first)
    return names.close(_tvm.tirx.Select(is_number(second), nearer, second))


def _in_softmax(loop: Loop) -> Loop:
    """Replace the maxima in a loop that is annotated with `Softmax` by choices. Other loops are not changed."""
    if not Softmax.on(loop):
        return loop

    def chosen(node: Node) -> TirExpr:
        return _tvm.tirx.Select(_tvm.tirx.GT(node.a, node.b), node.a, node.b)

    return _tvm.structural_map(loop, (_tvm.tirx.Max, chosen))


def _of_itself(node: Node) -> TirExpr:
    """Replace a = a, a <= a and a >= a; also test whether a is a number where the operands may become equal."""
    if not _is_float(node.a):
        return node
    if _tvm.structural_equal(node.a, node.b):
        return is_number(node.a)
    return _tvm.tirx.And(is_number(node.a), node) if _may_become_equal(node.a, node.b) else node


def _extreme_of_itself(node: Node) -> TirExpr:
    """Replace max(a, a) and min(a, a), so that a difference of two of them is one of `a` with itself."""
    return node.a if _is_float(node) and _tvm.structural_equal(node.a, node.b) else node


def _difference(node: Node) -> TirExpr:
    """Replace differences such as a - a, (a + b) - b, b - (a + b) and a b - a c, or that may become such differences.

    They become sums with a product, which TVM does not change, and which LLVM turns back.
    """
    if not _is_float(node):
        return node
    first, second = (_parts(side, _tvm.tirx.Add) for side in (node.a, node.b))
    pairs = [*((term, node.b) for term in first), *((term, node.a) for term in second)]
    pairs += itertools.product(*(_parts(side, _tvm.tirx.Mul) for side in (node.a, node.b)))
    same = any(_tvm.structural_equal(one, other) for one, other in pairs)
    if not same and not _may_become_equal(node.a, node.b):
        return node
    return node.a + node.b * _tvm.tirx.const(-1, str(node.ty.dtype))


def _parts(value: TirExpr, kind: Any) -> tuple[TirExpr, ...]:
    """Return the operands of a sum or product, or another value itself."""
    return (value.a, value.b) if isinstance(value, kind) else (value,)


def _may_become_equal(one: TirExpr, other: TirExpr) -> bool:
    """Return whether two expressions load from one buffer: parts may be equal for some values of loop variables."""
    first, second = ({load.source for load in _tvm.found(side, _tvm.ir.TensorLoad)} for side in (one, other))
    return not first.isdisjoint(second)


def _joined(node: Node) -> TirExpr:
    """Replace the comparisons of floats in a conjunction or disjunction by choices between true and false."""
    sides = [_as_choice(side) for side in (node.a, node.b)]
    changed = [new is not old for new, old in zip(sides, (node.a, node.b), strict=True)]
    return type(node)(*sides) if all(changed) else node


def _as_choice(condition: TirExpr) -> TirExpr:
    """Return a comparison of floats as a choice between true and false, and other conditions as they are."""
    tirx = _tvm.tirx
    compares = isinstance(condition, tirx.EQ | tirx.NE | tirx.LT | tirx.LE | tirx.GT | tirx.GE)
    if not compares or not _is_float(condition.a):
        return condition
    return tirx.Select(condition, tirx.const(True, "bool"), tirx.const(False, "bool"))


def _unequal_to_itself(node: Node) -> TirExpr:
    """Replace a != a."""
    return _unequal(node) if _tvm.structural_equal(node.a, node.b) else node


def _unequal(node: Node) -> TirExpr:
    """Replace a != b."""
    return _negation(_of_itself(_tvm.tirx.EQ(node.a, node.b))) if _is_float(node.a) else node


def _negated(node: Node) -> TirExpr:
    """Replace a `not` of comparisons: TVM's simplifier would turn it into the opposite one, which is false for NaN."""
    return _negation(node.a) if compares_floats(node.a) else node


def compares_floats(condition: TirExpr) -> bool:
    """Return whether floats are compared below a condition."""
    tirx = _tvm.tirx
    kinds = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    return any(_is_float(test.a) for kind in kinds for test in _tvm.found(condition, kind))


def _negation(condition: TirExpr) -> TirExpr:
    """Return the negation of a condition in a form that TVM's simplifier does not change."""
    return _tvm.tirx.Select(condition, _tvm.tirx.const(False, "bool"), _tvm.tirx.const(True, "bool"))


def is_number(value: TirExpr) -> TirExpr:
    """Return the condition that a float is not NaN, in a form that TVM does not change and LLVM recognizes."""
    return _tvm.tirx.GE(value, _tvm.tirx.const(-math.inf, str(value.ty.dtype)))


def _is_plain(value: TirExpr) -> bool:
    """Return whether an expression may occur in a formula more than once.

    Names for loads make TVM's common subexpression elimination fail in unrolled loops: it moves comparisons of a name
    out of the name's scope. Names for expressions of loop variables alone stop TVM's simplifier in conditions.
    """
    tirx, load = _tvm.tirx, _tvm.ir.TensorLoad
    if isinstance(value, tirx.FloatImm | load | tirx.Var):
        return True
    if any(_tvm.found(value, kind) for kind in (load, _tvm.ir.Call, tirx.Let)):
        return False
    return len(_tvm.found(value, tirx.Var)) <= _MOST_VARIABLES


def _is_float(value: TirExpr) -> bool:
    """Return whether a value is a float."""
    return "float" in str(value.ty.dtype)
