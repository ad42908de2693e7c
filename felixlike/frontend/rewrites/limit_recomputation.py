"""Write a value to memory where fused functions would otherwise compute it many times.

    y = f(y, y); y = f(y, y); … 20 times      →      f(f(y, y), f(y, y)), …: a few steps in each kernel

TVM fuses chains of elementwise operators, and schedules inline each of them into its readers. If every step reads its
predecessor twice, as iterations for roots or the steps of `logcumsumexp` do, the expression of the last step doubles
with each of them: twenty steps were a million additions, and scheduling them did not end.

    y = tanh(softplus(conv(x)))      →      y = softplus(conv(x)); tanh(y)

The formulas of elementary functions bind what they read more than once to names. TVM's code generator simplifies the
value of each name with all names in it written out: compiling the tile of a convolution before two formulas in a row
takes a second, before three minutes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.codegen.passes.vector_math import formula_reads
from felixlike.frontend.rewrites.isolate_broadcast_gates import opaque
from felixlike.frontend.rewrites.rewriting import INJECTIVE, Bindings, Rewriter, kernel_of, pattern_of, rewritten

_MOST = 64
"""Loads in the expression of an element, everything fused inlined, from which on it is computed once. Chosen by hand:
cells of recurrent layers and activations have fewer than 40."""

_MOST_WRITTEN_OUT = 12_000
"""The same with the names of formulas written out, from which on an operand is computed before. Measured: the tile of a
convolution compiles in 0.6 s with 6,000 (softplus), in 42 s with 16,000 (two erf-GELUs), in 19 s with 106,000."""


@dataclass(frozen=True, slots=True)
class _Loads:
    """Loads in the expression of an element: as they are, and with the names of formulas written out."""

    plain: int = 1
    written_out: int = 1


def with_limited_recomputation(module: Any, formulas: bool = False) -> Any:
    """Separate long expressions without reductions from functions that would compute them several times.

    Args:
        module: Relax IRModule of annotated PrimFuncs that are not fused yet.
        formulas: Whether elementary functions become formulas.

    Returns:
        The rewritten module.
    """
    return rewritten(module, partial(_separated, module, {}, formulas))


def _separated(
    module: Any, loads: dict[int | None, _Loads], formulas: bool, call: Any, known: Bindings, rewriter: Rewriter
) -> Any:
    """Write the result of a call to memory if its expression is long and read more than once, or an operand of it.

    loads: the loads in the expression of an element of each variable so far, by its identity. 1 for those not in it.
    """
    kernel = kernel_of(module, call)
    variable = known.variable(call)
    if kernel is None or variable is None or pattern_of(kernel) > INJECTIVE:
        return None
    callee, _, *rest = call.args
    operands = call.args[1].fields
    sizes = [loads.get(_tvm.identity(operand), _Loads()) for operand in operands]
    reads, formula = _reads(kernel, call), _reads(kernel, call, formulas=formulas)
    arguments = list(map(rewriter.new, operands))
    gated = _gated([n * size.written_out for n, size in zip(formula, sizes, strict=True)], formula)
    for place in gated:
        arguments[place], sizes[place] = opaque(rewriter, arguments[place]), _Loads()
    total = _Loads(
        sum(n * size.plain for n, size in zip(reads, sizes, strict=True)),
        sum(n * size.written_out for n, size in zip(formula, sizes, strict=True)),
    )
    new = _tvm.relax.Call(call.op, [callee, _tvm.relax.Tuple(arguments), *rest], call.attrs, call.ty_args)
    if total.plain > _MOST and _times_read(module, variable, known) >= 2:
        return opaque(rewriter, rewriter.builder.emit(new))
    loads[_tvm.identity(variable)] = total
    return new if gated else None


def _gated(written_out: list[int], least: list[int]) -> list[int]:
    """Return the operands to be computed before a call, largest first, until its expression is short enough.

    written_out: the loads in the expression for each operand.  least: the same if the operand is computed before.
    """
    gated = []
    for place in sorted(range(len(written_out)), key=lambda place: -written_out[place]):
        if sum(written_out) <= _MOST_WRITTEN_OUT or written_out[place] == least[place]:
            break
        written_out[place] = least[place]
        gated.append(place)
    return gated


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


def _reads(kernel: Any, call: Any, *, formulas: bool = False) -> list[int]:
    """Return how often the expression of a kernel's output reads each operand of a call.

    formulas: count what the formulas of elementary functions read.
    """
    operands = {_tvm.identity(buffer): place for place, buffer in enumerate(kernel.params[: len(call.args[1].fields)])}
    of_buffers = {key: Counter({place: 1}) for key, place in operands.items()}
    read = Counter[int]()
    for store in _tvm.found(kernel.body, _tvm.tirx.BufferStore):  # an operator may have several steps
        read = Counter()
        for source, count in _loads(store.value, formulas):
            for place, number in of_buffers.get(source, {}).items():
                read[place] += count * number
        of_buffers[_tvm.identity(store.buffer)] = read
    return [read[place] for place in range(len(operands))]


def _loads(value: Any, formulas: bool) -> list[tuple[int | None, int]]:
    """Return the buffers that an expression loads from, and how often it does."""
    loads = _tvm.found(value, _tvm.ir.TensorLoad)
    counts = [1] * len(loads)
    for function in _tvm.found(value, _tvm.ir.Call) if formulas else ():
        inside = [_tvm.identity(load) for load in _tvm.found(function, _tvm.ir.TensorLoad)]
        factor = formula_reads(str(getattr(function.op, "name", "")))
        counts = [n * factor if _tvm.identity(load) in inside else n for n, load in zip(counts, loads, strict=True)]
    return [(_tvm.identity(load.source), count) for load, count in zip(loads, counts, strict=True)]
