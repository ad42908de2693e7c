"""Which buffers of a PrimFunc hold constants, and which of those a schedule may lay out as it reads them.

In: a fused Relax module, or a PrimFunc. Out: indices of parameters. TVM's own AttachAttrLayoutFreeBuffers marks every
constant of every call; here a function is marked only for what is constant at all its call sites, and only where
another layout helps: weights of contractions and convolutions, not biases. Operators may say on their own that the
layout of a buffer is free, whoever provides it; what they say is dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from felixlike import _tvm

CONSTANTS = "felixlike.constants"
"""The attribute of a task's function that lists all its constant parameters."""

LAYOUT_FREE = "layout_free_buffers"
"""TVM's attribute that lists those whose layout MetaSchedule's RewriteLayout, or a rule of ours, may change."""

PACKING = "meta_schedule.layout_rewrite_preproc"
"""TVM's mark of a block that only brings a constant into the layout that the rest of a schedule reads."""


def packing_blocks(statement: Any) -> list[Any]:
    """The blocks below a TVM statement that are run once, before the first call."""
    return [block for block in _tvm.found(statement, _tvm.s_tir.SBlock) if PACKING in block.annotations]


def constant_arguments(module: Any) -> Mapping[str, tuple[int, ...]]:
    """Name of each PrimFunc that is called → the parameters bound to constants at every call site."""
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    found: dict[str, set[int]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op == call_tir:
            name = str(node.args[0].name_hint)
            here = {i for i, given in enumerate(node.args[1].fields) if isinstance(given, _tvm.ir.GenericConst)}
            found[name] = found.get(name, here) & here

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return {name: tuple(sorted(indices)) for name, indices in found.items()}


def noted_constants(func: Any) -> tuple[int, ...]:
    """The constant parameters that a task's function, or a workload of MetaSchedule's, is marked with."""
    found = (_listed(func, name) for name in (CONSTANTS, LAYOUT_FREE))
    return next((indices for indices in found if indices is not None), ())


def layout_free_parameters(func: Any) -> list[Any]:
    """The buffers among a task's function's parameters whose layout schedules may choose: constants, all of them."""
    return [func.params[index] for index in _listed(func, LAYOUT_FREE) or ()]


def _listed(func: Any, name: str) -> tuple[int, ...] | None:
    """The parameters that an attribute lists; None where there is no such attribute."""
    return tuple(int(index) for index in func.attrs[name]) if func.attrs and name in func.attrs else None


def with_marks(module: Any) -> Any:
    """A fused Relax module whose PrimFuncs say which layouts are free, and nothing else about it."""
    constants = constant_arguments(module)
    marked = _tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for variable, func in module.functions.items():
        if isinstance(func, _tvm.PrimFunc):
            free = layout_free(func, constants.get(str(variable.name_hint), ()))
            marked.update_func(variable, with_indices(func, LAYOUT_FREE, free))
    return marked


def with_indices(func: Any, name: str, indices: Sequence[int]) -> Any:
    """A PrimFunc with an attribute that lists parameters; without it where there are none."""
    return func.with_attr(name, list(indices)) if indices else _tvm.without_attributes(func, name)


def layout_free(func: Any, constants: Iterable[int]) -> tuple[int, ...]:
    """Those of a PrimFunc's constant parameters that are worth another layout: the floating-point ones that one
    reduction reads once, element by element."""
    reads = _reads(func)
    return tuple(index for index in constants if _is_weight(func.params[index], reads))


def _is_weight(buffer: Any, reads: Sequence[tuple[Any, Any]]) -> bool:
    own = [(block, load) for block, load in reads if load.source.same_as(buffer)]
    if not str(buffer.dtype).startswith("float") or len(own) != 1:
        return False
    ((block, load),) = own
    reduces = any(map(_tvm.is_reduction, block.iter_vars))
    extents = {iterator.var: int(iterator.dom.extent) for iterator in block.iter_vars}
    moving = [(index, int(extent)) for index, extent in zip(load.indices, buffer.shape, strict=True) if extent != 1]
    plain = all(extents.get(index) == extent for index, extent in moving)
    return reduces and len(moving) > 1 and plain and len({index for index, _ in moving}) == len(moving)


def _reads(func: Any) -> list[tuple[Any, Any]]:
    """(block, load) of everything that a function reads."""
    blocks = [block for block in _tvm.found(func.body, _tvm.s_tir.SBlock) if block.iter_vars]
    return [(block, load) for block in blocks for load in _tvm.found(block.body, _tvm.ir.TensorLoad)]
