"""Count the arithmetic of a store: how often each kind of operation is executed.

    feature = occurrences in the statement · iterations

Categories are those of TVM's per_store_feature.cc (group 1). Arithmetic inside indices is not counted, since it depends
on how an index is written and not on the schedule. Operations on tensor cores are divided by the tensor cores' speed-up
(`hardware/precision.py`).
"""

from felixlike.features.view import StoreView
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program import Operation


def arithmetic(view: StoreView) -> dict[str, Expr]:
    """Return one count for each `Operation`."""
    counts = dict(view.store.operations)
    return {
        op.value: view.iterations * counts[op] / view.store.at_once if op in counts else const(0) for op in Operation
    }
