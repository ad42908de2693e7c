"""Find the buffers of a PrimFunc that hold constants, and those among them whose layout a schedule may choose.

Input: a fused Relax module, or a PrimFunc. Output: indices of parameters. TVM's own AttachAttrLayoutFreeBuffers marks
every constant of every call. This module marks only parameters that are constant at all call sites, and only where
another layout helps: weights of contractions and convolutions, not biases. Operators can set the attribute for any
buffer, constant or not. That value is dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.hardware import BFLOAT16, FLOAT32

CONSTANTS = "felixlike.constants"
"""Attribute of a task's function that lists all its constant parameters."""

TERMS = "felixlike.terms"
"""Attribute of a function without reduction blocks: the number of terms of its longest sum."""

EXACT = "felixlike.exact"
"""Attribute of a function whose factors are not rounded, whatever the precision: it would lose too many digits."""

HALF_FACTORS = "felixlike.half_factors"
"""Attribute of a function whose factors are bfloat16 in the model and float32 here: they may be rounded again."""

LAYOUT_FREE = "layout_free_buffers"
"""TVM's attribute that lists the parameters whose layout RewriteLayout of MetaSchedule, or our own rule, may change."""

OWN_ROUNDINGS = "felixlike.own_roundings"
"""Attribute of a model's function that itself rounds float32 tensors to bfloat16, which no rewrite may remove."""

LEAST_INFINITE = (2 - 2.0**-8) * 2.0**127
"""The least number that rounds to infinity in bfloat16: half a unit above the largest one, a tie that goes to even."""

PACKING = "meta_schedule.layout_rewrite_preproc"
"""TVM's annotation of a block that only brings a constant into the layout that the rest of a schedule reads."""


def has_half_factors(func: Any) -> bool:
    """Return whether factors of a PrimFunc's float32 products are bfloat16 in the model."""
    return bool(func.attrs and HALF_FACTORS in func.attrs)


def has_half_weights(func: Any) -> bool:
    """Return whether constants of a task's function are bfloat16, as those of products that a rewrite has rounded."""
    return any(str(func.params[index].dtype) == BFLOAT16.name for index in noted_constants(func))


def packing_blocks(statement: Any) -> list[Any]:
    """Return the blocks below a TVM statement that run once, before the first call."""
    return [block for block in _tvm.found(statement, _tvm.s_tir.SBlock) if PACKING in block.annotations]


def constant_arguments(module: Any) -> Mapping[str, tuple[int, ...]]:
    """Map the name of each called PrimFunc to its parameters that are constant at every call site."""
    return {name: tuple(sorted(set.intersection(*map(set, calls)))) for name, calls in _constants(module).items()}


def _constants(module: Any) -> Mapping[str, list[dict[int, Any]]]:
    """Map the name of each called PrimFunc to the constants of each call, by parameter."""
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    constants: dict[str, list[dict[int, Any]]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op == call_tir:
            here = {i: argument for i, argument in enumerate(node.args[1].fields) if _is_constant(argument)}
            constants.setdefault(str(node.args[0].name_hint), []).append(here)

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return constants


def _is_constant(argument: Any) -> bool:
    """Return whether an argument of a call is a constant."""
    return isinstance(argument, _tvm.ir.GenericConst)


def largest_finite(constant: Any) -> float:
    """Return the largest finite absolute value of a Relax constant in float32; 0 for other types and without any."""
    if str(constant.value.dtype) != FLOAT32.name:
        return 0.0
    sizes = np.abs(constant.value.numpy())
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def noted_constants(func: Any) -> tuple[int, ...]:
    """Return the constant parameters that the function of a task or a MetaSchedule workload is annotated with."""
    attributes = (_listed(func, name) for name in (CONSTANTS, LAYOUT_FREE))
    return next((indices for indices in attributes if indices is not None), ())


def layout_free_parameters(func: Any) -> list[Any]:
    """Return the constant parameters of a task's function whose layout schedules may choose."""
    return [func.params[index] for index in _listed(func, LAYOUT_FREE) or ()]


def _listed(func: Any, name: str) -> tuple[int, ...] | None:
    """Return the parameters that an attribute lists, or None without the attribute."""
    return tuple(int(index) for index in func.attrs[name]) if func.attrs and name in func.attrs else None


def with_marks(module: Any, *, rounds: bool = False) -> Any:
    """Annotate the PrimFuncs of a fused Relax module with the buffers whose layout is free.

    Args:
        module: The module.
        rounds: Whether weights may be rounded to bfloat16. Functions with one that would become infinite are annotated
            as exact.

    Returns:
        The annotated module.
    """
    constants, values = constant_arguments(module), _constants(module)
    marked = _tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for variable, func in module.functions.items():
        if isinstance(func, _tvm.PrimFunc):
            name = str(variable.name_hint)
            free = layout_free(func, constants.get(name, ()))
            weights = [call[index] for call in values.get(name, ()) for index in free]
            if rounds and any(largest_finite(weight) >= LEAST_INFINITE for weight in weights):
                func = func.with_attr(EXACT, True)
            marked.update_func(variable, with_indices(func, LAYOUT_FREE, free))
    return marked


def with_indices(func: Any, name: str, indices: Sequence[int]) -> Any:
    """Set an attribute of a PrimFunc that lists parameters, or remove it if there are none."""
    return func.with_attr(name, list(indices)) if indices else _tvm.without_attributes(func, name)


def layout_free(func: Any, constants: Iterable[int]) -> tuple[int, ...]:
    """Return the constant parameters for which another layout can be faster.

    These are the floating-point ones that a single reduction reads once, element by element.
    """
    reads = _reads(func)
    return tuple(index for index in constants if _is_weight(func.params[index], reads))


def _is_weight(buffer: Any, reads: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether a buffer is read once, by a reduction, with a different loop variable for each dimension."""
    own_reads = [(block, load) for block, load in reads if load.source.same_as(buffer)]
    if not str(buffer.dtype).startswith(("float", "bfloat")) or len(own_reads) != 1:
        return False
    ((block, load),) = own_reads
    reduces = any(map(_tvm.is_reduction, block.iter_vars))
    extents = {iterator.var: int(iterator.dom.extent) for iterator in block.iter_vars}
    moving = [(index, int(extent)) for index, extent in zip(load.indices, buffer.shape, strict=True) if extent != 1]
    plain = all(extents.get(index) == extent for index, extent in moving)
    return reduces and len(moving) > 1 and plain and len({index for index, _ in moving}) == len(moving)


def _reads(func: Any) -> list[tuple[Any, Any]]:
    """Return (block, load) of every load in a function."""
    blocks = [block for block in _tvm.found(func.body, _tvm.s_tir.SBlock) if block.iter_vars]
    return [(block, load) for block in blocks for load in _tvm.found(block.body, _tvm.ir.TensorLoad)]
