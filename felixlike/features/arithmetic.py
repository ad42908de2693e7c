"""Arithmetic: how often each kind of operation is executed.

    feature = occurrences in the statement · iterations

Categories are those of TVM's per_store_feature.cc (group 1); arithmetic inside indices is left out, since it depends
on how an index is written and not on what a schedule chooses. What tensor cores do counts as so many times less as they
are faster (`hardware/precision.py`).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import Operation


def arithmetic(view: StoreView) -> dict[str, Expr]:
    """One count for each Operation."""
    counts = dict(view.store.operations)
    return {
        op.value: view.iterations * counts[op] / view.store.at_once if op in counts else const(0) for op in Operation
    }
