"""Write a value to memory where fused functions would otherwise compute it many times.

    y = f(y, y); y = f(y, y); … 20 times      →      f(f(y, y), f(y, y)), …: a few steps in each kernel

TVM fuses chains of elementwise operators, and schedules inline each of them into its readers. If every step reads its
predecessor twice, as iterations for roots or the steps of `logcumsumexp` do, the expression of the last step doubles
with each of them: twenty steps were a million additions, and scheduling them did not end.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.isolate_broadcast_gates import opaque
from felixlike.frontend.rewrites.rewriting import INJECTIVE, Bindings, Rewriter, kernel_of, pattern_of, rewritten

_MOST = 64
"""Loads in the expression of an element, everything fused inlined, from which on it is computed once. Chosen by hand:
cells of recurrent layers and activations have fewer than 40."""


def with_limited_recomputation(module: Any) -> Any:
    """Separate long expressions without reductions from functions that would compute them several times.

    Args:
        module: Relax IRModule of annotated PrimFuncs that are not fused yet.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_separated, {}))


def _separated(loads: dict[int | None, int], call: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Write the result of a call to memory if its expression is long and read more than once.

    loads: the loads in the expression of an element of each variable so far, by its identity. 1 for those not in it.
    """
    kernel = kernel_of(rewriter.module, call)
    variable = known.variable(call)
    if kernel is None or variable is None or pattern_of(kernel) > INJECTIVE:
        return None
    operands = call.args[1].fields
    total = sum(n * loads.get(_tvm.identity(o), 1) for n, o in zip(_reads(kernel, call), operands, strict=True))
    if total <= _MOST or _times_read(rewriter.module, variable, known) < 2:
        loads[_tvm.identity(variable)] = total
        return None
    callee, _, *rest = call.args
    arguments = _tvm.relax.Tuple([rewriter.new(operand) for operand in operands])
    value = rewriter.builder.emit(_tvm.relax.Call(call.op, [callee, arguments, *rest], call.attrs, call.ty_args))
    return opaque(rewriter, value)


def _times_read(module: Any, variable: Any, known: Bindings) -> int:
    """Return how often the expressions of kernels read a variable."""
    readers = [(kernel_of(module, reader), reader) for reader in known.readers(variable)]
    return sum(
        count
        for kernel, reader in readers
        if kernel is not None
        for count, operand in zip(_reads(kernel, reader), reader.args[1].fields, strict=True)
        if operand.same_as(variable)
    )


def _reads(kernel: Any, call: Any) -> list[int]:
    """Return how often the expression of a kernel's output reads each operand of a call."""
    sources = [load.source for load in _tvm.found(kernel.body, _tvm.ir.TensorLoad)]
    buffers = kernel.params[: len(call.args[1].fields)]
    return [sum(source.same_as(buffer) for source in sources) for buffer in buffers]
