"""Use conditions as they are where operators compare them, as numbers, with 0.

    Select(0 < int64(x < 7), y, z)   →   Select(x < 7, y, z)

Input: an IRModule of scheduled PrimFuncs. Output: the same module without such comparisons. TVM's `where` writes them.
Its simplifier then looks for the bounds of the numbers in everything that they are computed from: a chain of three
choices, inlined into one expression of 57 reads, took it 8 s. Comparisons of floats stay as they are: from x < y being
false, the simplifier would conclude that y <= x, which is not so for NaN.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Module, Node, TirExpr
from felixlike.codegen.passes.propagate_nan import compares_floats


def plain_conditions(module: Module) -> Module:
    """Return the IRModule with conditions in place of their comparisons with 0 as numbers."""
    tirx = _tvm.tirx
    changes = (
        (tirx.LT, lambda node: _condition(node, zero=node.a, number=node.b)),
        (tirx.GT, lambda node: _condition(node, zero=node.b, number=node.a)),
        (tirx.NE, lambda node: _condition(node, zero=node.b, number=node.a)),
    )
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, changes))


def _condition(comparison: Node, *, zero: TirExpr, number: Any) -> TirExpr:
    """Return the condition that a comparison with 0 tests, or the comparison if it is of another form."""
    is_zero = isinstance(zero, _tvm.tirx.IntImm) and int(zero.value) == 0
    is_truth = isinstance(number, _tvm.tirx.Cast) and str(number.value.ty.dtype) == "bool"
    return number.value if is_zero and is_truth and not compares_floats(number.value) else comparison
