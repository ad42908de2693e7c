"""Split a schedule that packs constants into the packing, done once before the first call, and the kernel.

The input is a scheduled PrimFunc. The output is its kernel, which takes packed constants, and a function that packs
each of them. TVM's SplitLayoutRewritePreproc does the same for a whole module; this module does it for one function.
RemoveWeightLayoutRewriteBlock does not handle a packing that also pads. Measured and deployed functions are split
alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm, codegen
from felixlike.errors import InvalidSchedule
from felixlike.frontend.constants import PACKING, packing_blocks
from felixlike.hardware import kind_of

_PACKED = "_prepacked"
"""End of the names of kernels that take packed constants."""

_LARGE = 2**18
"""Elements of a constant from which its packing is scheduled. Chosen by hand: unscheduled, it takes some 0.5 ms."""

_PART = 2**12
"""Fewest elements of a parallel iteration of a packing. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of one constant.

    Attributes:
        parameter: Index of the constant among the function's parameters.
        shape: Shape of the packed constant.
        dtype: Dtype of the packed constant.
        function: PrimFunc of the constant and of the packed constant, which it writes.
    """

    parameter: int
    shape: tuple[int, ...]
    dtype: str
    function: Any


def cut(func: Any) -> tuple[Any, tuple[Packing, ...]]:
    """Split a scheduled PrimFunc into its kernel and the packings before it.

    Returns:
        The kernel and the packings; the function itself and () if it packs no constants.

    Raises:
        InvalidSchedule: A packing block reads anything but one parameter, or shares its loop nest with other blocks.
    """
    parts = _parts(func)
    packed = [(part, block) for part in parts for block in packing_blocks(part)]
    if not packed:
        return func, ()
    kernel_parts = [part for part in parts if not any(part.same_as(other) for other, _ in packed)]
    params = list(func.params)
    packings = []
    for part, block in packed:
        old, new = block.reads[0].source, block.writes[0].source
        indices = [index for index, param in enumerate(func.params) if param.same_as(old)]
        alone = len(block.reads) == 1 and len(_tvm.found(part, _tvm.s_tir.SBlock)) == 1
        if len(indices) != 1 or not alone or not params[indices[0]].same_as(old):
            raise InvalidSchedule(
                "the block packs something other than a parameter of the function, or packs it in several steps",
                where=f"block {block.name_hint}",
                remedy="make each packing block read one parameter and share its loop nest with no other block",
            )
        params[indices[0]] = new
        plain = _tvm.structural_map(part, (_tvm.s_tir.SBlock, _without_mark))
        function = _tvm.without_attributes(_function([old, new], [plain], [], None), "tirx.is_scheduled")
        packings.append(Packing(indices[0], tuple(int(e) for e in new.shape), str(new.dtype), function))
    allocated = [b for b in func.body.block.alloc_buffers if not any(b.same_as(p) for p in params)]
    return _function(params, kernel_parts, allocated, func.attrs), tuple(packings)


def packing_functions(packings: Mapping[str, Packing], target: Any) -> Any:
    """Return an IRModule of functions that pack constants, by name, scheduled for a target.

    On CPUs those of large constants run on all cores, in the order of the packed elements: the lines of a constant that
    a vector's elements come from stay in the L1 cache for the next vectors.
    """
    functions = {name: packing.function.with_attr("global_symbol", name) for name, packing in packings.items()}
    if kind_of(target).on_host:
        large = {name for name, packing in packings.items() if math.prod(packing.shape) >= _LARGE}
        functions = {name: _in_order(func) if name in large else func for name, func in functions.items()}
    return codegen.default_schedules(_tvm.IRModule(functions), target)


def compiled_packings(packings: Mapping[str, Packing]) -> Any:
    """Compile functions that pack constants on this machine's CPU.

    Each runs once for a constant and is limited by memory, so LLVM does not optimize it: it then compiles in 0.4 of the
    time.

    Args:
        packings: Packings by the name of their function.

    Returns:
        An Executable.
    """
    target = _tvm.Target({"kind": "llvm", "opt-level": 0})
    return codegen.compile_primfuncs(packing_functions(packings, target), target, checks_arguments=False)


def _in_order(func: Any) -> Any:
    """Return a function that copies elements of a buffer, scheduled in the order of the copies."""
    if not _tvm.found(func.body, _tvm.s_tir.SBlock):  # the packing of a uKernel, which is in this order
        return func
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    statement = schedule.get(block)
    places = [dimension.min for dimension in statement.writes[0].region]
    axes = [iterator.var for iterator in statement.iter_vars]
    try:
        schedule.transform_block_layout(block, _tvm.tirx.IndexMap(axes, places, None))
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return func  # some packed elements are copies of the same one
    loops, part = schedule.get_loops(block), 1
    while loops and part < _PART:
        part *= int(schedule.get(loops.pop()).extent)
    if loops:
        schedule.parallel(schedule.fuse(*loops))
    return schedule.mod["main"]


def kernel_name(name: str, packings: Sequence[Packing]) -> str:
    """Return the name of the kernel that `cut` makes of a function with this name."""
    return name + _PACKED if packings else name


def kernel_seconds(name: str, times: Mapping[str, float]) -> float:
    """Return the seconds of a function's kernel, from those of kernels by name; nan if it is not among them."""
    return times.get(name, times.get(name + _PACKED, math.nan))


def _parts(func: Any) -> list[Any]:
    """Return the statements of the root block."""
    root = func.body.block if type(func.body).__name__ == "SBlockRealize" else None
    if root is None or type(root.body).__name__ != "SeqStmt":
        return []
    return list(root.body.seq)


def _without_mark(block: Any) -> Any:
    """Return the block without its packing annotation."""
    rest = {key: value for key, value in block.annotations.items() if key != PACKING}
    return _tvm.s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init, annotations=rest
    )


def _function(params: list[Any], parts: list[Any], allocated: list[Any], attrs: Any) -> Any:
    """Return a PrimFunc whose root block has these statements and allocations."""
    body = parts[0] if len(parts) == 1 else _tvm.tirx.SeqStmt(parts)
    root = _tvm.s_tir.SBlock([], [], [], "root", body, alloc_buffers=allocated)
    func = _tvm.PrimFunc(params, _tvm.s_tir.SBlockRealize([], True, root), attrs=attrs)
    return _tvm.s_tir.renew_defs(func.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True))
