"""Count the arithmetic of one store's value by TVM's categories, without index arithmetic.

Input: a TVM expression. Output: how often each `Operation` occurs. Like TVM's per_store_feature.cc, this visits the
whole tree without removing duplicates. TVM also counts the arithmetic inside indices, which depends on how indices are
written and not on the schedule.
"""

from collections import Counter

from felixlike import _tvm
from felixlike._tvm.typing import TirExpr
from felixlike.symbolic.program import Operation

_ARITHMETIC = {
    "Add": "ADD_SUB",
    "Sub": "ADD_SUB",
    "Mul": "MUL",
    "Div": "DIV_MOD",
    "Mod": "DIV_MOD",
    "FloorDiv": "DIV_MOD",
    "FloorMod": "DIV_MOD",
    "Min": "CMP",
    "Max": "CMP",
}
# A comparison's own type is bool, so TVM counts it as an integer comparison for all operand types.
_COMPARISONS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_LOGIC = frozenset({"And", "Or", "Not"})
_PURE = (0, 1)
"""Values of tvm::tirx::CallEffectKind for expression annotations and pure functions."""


def count_operations(value: TirExpr, *, indices: bool = False) -> tuple[tuple[Operation, int], ...]:
    """Return (operation, occurrences) for each operation that occurs in `value`, in the order of `Operation`.

    Args:
        value: A TVM expression.
        indices: Whether operations inside indices count too, as in TVM.
    """
    counts: Counter[Operation] = Counter()
    stack = [value]
    while stack:
        node = stack.pop()
        kind = type(node).__name__
        if kind == "TensorLoad":
            stack += list(node.indices) if indices else []
        elif kind in _ARITHMETIC:
            counts[_typed(node, _ARITHMETIC[kind])] += 1
            stack += [node.a, node.b]
        elif kind in _COMPARISONS:
            counts[Operation.INT_CMP] += 1
            stack += [node.a, node.b]
        elif kind in _LOGIC:
            counts[Operation.BOOL_OP] += 1
            stack += [node.a] if kind == "Not" else [node.a, node.b]
        elif kind == "Select":
            counts[Operation.SELECT_OP] += 1
            stack += [node.condition, node.true_value, node.false_value]
        elif kind == "Cast":
            stack.append(node.value)
        elif kind == "Call":
            counts[_typed(node, "MATH_FUNC" if _is_pure(node) else "OTHER_FUNC")] += 1
            stack += list(node.args)
    return tuple((op, counts[op]) for op in Operation if counts[op])


def _typed(node: TirExpr, name: str) -> Operation:
    """Return the operation for the type of a node."""
    return Operation[("FLOAT_" if str(node.ty.dtype).startswith("float") else "INT_") + name]


def _is_pure(call: TirExpr) -> bool:
    """Return whether a call is to a pure function."""
    effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, _tvm.ir.Op) else None
    return effect is not None and int(effect) in _PURE
