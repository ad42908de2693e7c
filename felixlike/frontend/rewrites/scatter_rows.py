"""Write whole rows at once where an index selects the row of a scatter.

    scatter_elements(x, broadcast_to(rows, (n, w)), y)   →   y0 = x
                                                             parallel group of columns:
                                                                 for i in n: y0[rows[i], group] += y[i, group]

TVM's kernel walks through each column alone, so that neighbours in memory are written far apart in time, and reads an
index for every element. Here, the threads share the columns, since two rows may have the same index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt
from felixlike.codegen.build import Builder, named, seq
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape

_LEAST_COLUMNS = 32
"""Columns of the smallest group, two cache lines of float32. Chosen by hand."""
_GROUPS = 8
"""Upper limit on groups of columns. Each reads all indices. Chosen by hand."""
_DTYPES = ("float32", "float64", "int32", "int64")
"""Types of elements. TVM's kernel converts others for each sum."""

_BUILD = Builder("int64", _LEAST_COLUMNS)


def with_row_scatters(module: Any) -> Any:
    """Replace scatters of whole rows that assign or add.

    Args:
        module: Relax IRModule with operators and fixed sizes.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _scattered)


def _scattered(expression: Any, bindings: Bindings, rewriter: Rewriter) -> Any:
    """Replace a scatter along the first of two dimensions, whose indices are the same for all columns."""
    if operator(expression) != "scatter_elements":
        return None
    data, indices, source = expression.args
    how, spread = expression.attrs, bindings.value(indices)
    if operator(spread) != "broadcast_to" or str(how.reduction) not in ("add", "update"):
        return None
    sizes, rows = shape(data), spread.args[0]
    if len(sizes) != 2 or int(how.axis) not in (0, -2) or str(data.ty.dtype) not in _DTYPES:
        return None
    count = shape(indices)[0]
    if shape(rows) != (count, 1) or shape(indices)[1] != sizes[1] or shape(source) != (count, sizes[1]):
        return None
    kernel = partial(_kernel, adds=str(how.reduction) == "add")
    tensors = [rewriter.new(tensor) for tensor in (data, rows, source)]
    return rewriter.builder.call_te(kernel, *tensors, primfunc_name_hint="scatter_rows")


def _kernel(data: Any, rows: Any, source: Any, *, adds: bool) -> Any:
    """Return the TE tensor of the data with the rows of the source assigned or added, one after another."""
    whole = partial(_groups, adds=adds)
    inputs = (data, rows, source)
    reads = [_tvm.tirx.decl_buffer(x.shape, str(x.dtype), x.op.name) for x in inputs]  # which start at offset 0
    writes = _tvm.tirx.decl_buffer(data.shape, str(data.dtype), "scatter_rows")
    return _tvm.te.extern([data.shape], inputs, whole, "scatter_rows", None, reads, [writes])


def _groups(inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, adds: bool) -> Stmt:
    """Return the loop over groups of columns."""
    data, rows, source = inputs
    (result,) = outputs
    (size, width), count, tirx = map(int, data.shape), int(rows.shape[0]), _tvm.tirx
    vectors = -(-width // _LEAST_COLUMNS)
    columns = min(width, _LEAST_COLUMNS * -(-vectors // _GROUPS))

    def group(number: Any) -> Stmt:
        start = number * columns
        extent = columns if width % columns == 0 else tirx.min(_BUILD.const(columns), _BUILD.const(width) - start)

        def copied(row: Any) -> Stmt:
            return _BUILD.loop("c", extent, lambda c: tirx.BufferStore(result, data[row, start + c], [row, start + c]))

        def written(i: Any) -> Stmt:
            index, bind_index = named("index", rows[i, 0].astype("int64"))
            # Negative ones count from the end.
            row, bind_row = named("row", tirx.Select(index < 0, index + size, index))

            def store(c: Any) -> Stmt:
                new = source[i, start + c]
                return tirx.BufferStore(result, result[row, start + c] + new if adds else new, [row, start + c])

            inside = tirx.all(row >= 0, row < size)
            body = tirx.IfThenElse(inside, _BUILD.loop("c", extent, store), None)
            return seq(bind_index, bind_row, body)

        return seq(_BUILD.loop("row", size, copied), _BUILD.loop("i", count, written))

    return _BUILD.loop("group", -(-width // columns), group, "PARALLEL")
