"""Comparisons as IEEE 754 and PyTorch have them: NaN stays NaN in a maximum, and the largest of infinities is one.

In: an IRModule of (scheduled) PrimFuncs. Out: the same with maxima, minima and inequalities of floats written out.
TVM's max(a, b) is a > b ? a : b, which loses a NaN in a; its a != b is false where one of them is NaN, and its
simplifier makes b <= a of not (a < b), true of a = a and 0 of a - a. Maxima begin at the smallest finite number, which
is above -inf. Workloads, traces and records keep TVM's forms, which its schedule rules know; this is done on the way
into the compiler.

Where one side is a constant, as in ReLU, the order of the operands does it (x86's maxps returns the second operand
where one is NaN), at no cost; a maximum of two unknowns is a comparison and a blend more. The operand that a reduction
adds is the one compared with itself, so that what the next step waits for is one blend longer and no more.
"""

import math
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Module, Node, Stmt, TirExpr
from felixlike.codegen.passes.bind_repeated_values import Names

_SIGNS = {"Max": -1, "Min": 1}
"""Where a reduction of this kind begins: at this times infinity."""


_MOST_VARIABLES = 64
"""In an expression that is written more than once."""


def from_infinity(module: Module) -> Module:
    """The IRModule with every maximum over a dimension begun at -inf instead of the smallest finite number, and minima
    at inf: those of nothing but infinities are infinite then."""
    return _tvm.map_functions(module, _from_infinity)


def keep_nan(module: Module) -> Module:
    """The IRModule with maxima and minima that are NaN where an operand is, and inequalities that are true there."""
    tirx = _tvm.tirx
    same = ((kind, _of_itself) for kind in (tirx.EQ, tirx.LE, tirx.GE))
    changes = (
        (tirx.Max, _extreme),
        (tirx.Min, _extreme),
        (tirx.NE, _unequal),
        (tirx.Not, _negated),
        (tirx.Sub, _nothing_left),
        *same,
    )
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, changes))


def is_limit(value: TirExpr, kind: str) -> bool:
    """Whether an expression is the constant that TVM begins a maximum (or minimum) of its type with: the smallest (or
    largest) finite number."""
    if not isinstance(value, _tvm.tirx.FloatImm):
        return False
    limit = (_tvm.tirx.min_value if kind == "Max" else _tvm.tirx.max_value)(str(value.ty.dtype))
    return float(value.value) == float(limit.value)


def infinite(value: TirExpr, kind: str) -> TirExpr:
    """The infinity that takes the place of such a constant."""
    return _tvm.tirx.const(_SIGNS[kind] * math.inf, str(value.ty.dtype))


def _from_infinity(func: Func) -> Func:
    tirx = _tvm.tirx
    kinds: dict[Any, str] = {}
    for store in _tvm.found(func.body, tirx.BufferStore):
        kind = type(store.value).__name__
        if kind in _SIGNS and any(_loads(side, store.buffer) for side in (store.value.a, store.value.b)):
            kinds[store.buffer] = kind
    if not kinds:
        return func

    def begun(store: Stmt) -> Stmt:
        kind = kinds.get(store.buffer)
        if kind is None or not is_limit(store.value, kind):
            return store
        return tirx.BufferStore(store.buffer, infinite(store.value, kind), store.indices)

    return _tvm.structural_map(func, (tirx.BufferStore, begun))


def _loads(value: TirExpr, buffer: Buffer) -> bool:
    return isinstance(value, _tvm.ir.TensorLoad) and value.source.same_as(buffer)


def _extreme(node: Node) -> TirExpr:
    """max(a, b) = b if b is NaN, else b if b > a, else a: where a is NaN the comparison is false."""
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


def _of_itself(node: Node) -> TirExpr:
    """a = a, a <= a, a >= a."""
    return is_number(node.a) if _is_float(node.a) and _tvm.structural_equal(node.a, node.b) else node


def _nothing_left(node: Node) -> TirExpr:
    """a - a, which is NaN for infinities too."""
    if not (_is_float(node) and _tvm.structural_equal(node.a, node.b)):
        return node
    dtype = str(node.ty.dtype)
    finite = _tvm.tirx.abs(node.a) < _tvm.tirx.const(math.inf, dtype)
    return _tvm.tirx.Select(finite, _tvm.tirx.const(0, dtype), _tvm.tirx.const(math.nan, dtype))


def _unequal(node: Node) -> TirExpr:
    return _denied(_of_itself(_tvm.tirx.EQ(node.a, node.b))) if _is_float(node.a) else node


def _negated(node: Node) -> TirExpr:
    """A `not` that TVM's simplifier does not turn into the opposite comparison, as which it would be false for NaN."""
    kinds = (_tvm.tirx.EQ, _tvm.tirx.LT, _tvm.tirx.LE, _tvm.tirx.GT, _tvm.tirx.GE)
    compared = [side for kind in kinds for side in _tvm.found(node.a, kind)]
    return _denied(node.a) if any(_is_float(side.a) for side in compared) else node


def _denied(condition: TirExpr) -> TirExpr:
    return _tvm.tirx.Select(condition, _tvm.tirx.const(False, "bool"), _tvm.tirx.const(True, "bool"))


def is_number(value: TirExpr) -> TirExpr:
    """The condition that a float is not NaN, in a form that TVM's simplifier lets stand and LLVM knows."""
    return _tvm.tirx.GE(value, _tvm.tirx.const(-math.inf, str(value.ty.dtype)))


def _is_plain(value: TirExpr) -> bool:
    """Whether an expression may stand in a formula more than once.  Names for loads make TVM's elimination of common
    subexpressions fail where a loop is unrolled: it takes comparisons of a name out of the name's scope. Names for what
    loop variables alone make up stop TVM's simplifier where they stand in a condition."""
    tirx, load = _tvm.tirx, _tvm.ir.TensorLoad
    if isinstance(value, tirx.FloatImm | load | tirx.Var):
        return True
    if any(_tvm.found(value, kind) for kind in (load, _tvm.ir.Call, tirx.Let)):
        return False
    return len(_tvm.found(value, tirx.Var)) <= _MOST_VARIABLES


def _is_float(value: TirExpr) -> bool:
    return "float" in str(value.ty.dtype)
