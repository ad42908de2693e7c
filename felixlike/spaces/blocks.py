"""Reading blocks: what rules ask of them, in one place.

In: a schedule and a reference to one of its blocks, or a function's body. Out: its neighbours, loops and iterators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRealize, BlockRef, Buffer, LoopRef, Node, Schedule

ROOT = "root"
"""The name of the block around all others."""


def realizes(root: Node) -> list[Any]:
    """The blocks below a TVM object with the values of their iterators, in their order, without the root."""
    found = _tvm.found(root, _tvm.s_tir.SBlockRealize)
    return [realize for realize in found if realize.block.name_hint != ROOT]


def blocks_of(schedule: Schedule) -> list[Any]:
    """References to the function's blocks in their order, without the root."""
    return [schedule.get_sblock(str(r.block.name_hint)) for r in realizes(schedule.mod["main"].body)]


def realize_of(schedule: Schedule, block: BlockRef) -> Any | None:
    """A block with the values of its iterators; None where it does not stand alone in its innermost loop."""
    found = getattr(schedule.get_sref(block).parent.stmt, "body", None)
    return found if isinstance(found, _tvm.s_tir.SBlockRealize) else None


def bound(realize: BlockRealize) -> list[tuple[Any, Any]]:
    """A block's iterators with their values."""
    return list(zip(realize.block.iter_vars, realize.iter_values, strict=True))


def moving(realize: BlockRealize) -> list[tuple[Any, Any]]:
    """The same without those that a constant is bound to, as in single elements."""
    return [(i, value) for i, value in bound(realize) if not isinstance(value, _tvm.tirx.IntImm)]


def are_loops(schedule: Schedule, values: Sequence[Any], loops: Sequence[LoopRef]) -> bool:
    """Whether the values of iterators are the variables of loops, one for each, in their order."""
    variables = [schedule.get(loop).loop_var for loop in loops]
    return len(values) == len(variables) and all(a.same_as(b) for a, b in zip(values, variables, strict=True))


def loads_of(root: Node, buffer: Buffer) -> list[Any]:
    """The loads of a buffer below a TVM object."""
    return [load for load in _tvm.found(root, _tvm.ir.TensorLoad) if load.source.same_as(buffer)]


def elementwise(schedule: Schedule, block: BlockRef) -> bool:
    """Whether all its axes are data-parallel."""
    statement = schedule.get(block)
    return statement.init is None and all(map(_tvm.is_spatial, statement.iter_vars))


def is_intermediate(schedule: Schedule, block: BlockRef) -> bool:
    """Whether other blocks read what a block writes, and it is no output of the function beside."""
    own = schedule.mod["main"].body.block.alloc_buffers
    return bool(schedule.get_consumers(block)) and all(
        any(write.source.same_as(buffer) for buffer in own) for write in schedule.get(block).writes
    )


def costs(schedule: Schedule, block: BlockRef) -> bool:
    """Whether a condition says where it reads, or a function is called: neither may stand in the hot loop."""
    return bool(_tvm.found(schedule.get(block).body, _tvm.ir.Call))


def in_step(schedule: Schedule, block: BlockRef, tile: BlockRef) -> bool:
    """Whether the last dimension that a block writes is the last of what it reads of the tile's output."""
    statement, source = schedule.get(block), schedule.get(tile).writes[0].source
    last = statement.iter_vars[-1].var
    read = next((r for r in statement.reads if r.source.same_as(source)), None)
    return (
        read is not None and bool(statement.body.indices[-1].same_as(last)) and bool(read.region[-1].min.same_as(last))
    )


def chooses_for_all(block: Block) -> bool:
    """Whether a choice between two values hangs on what is the same for all neighbours along a block's last axis: where
    these are a vector, the CUDA source that TVM writes takes four conditions for four numbers, and does not compile."""
    last = block.iter_vars[-1].var
    return any(not _tvm.uses(choice.condition, last) for choice in _tvm.found(block.body, _tvm.tirx.Select))


def in_step_on_gpus(schedule: Schedule, block: BlockRef, tile: BlockRef) -> bool:
    """`in_step`, and whether TVM can write CUDA source of such vectors."""
    return in_step(schedule, block, tile) and not chooses_for_all(schedule.get(block))
