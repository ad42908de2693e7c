"""Read properties of blocks for schedule rules.

Input: a schedule and a reference to a block, or a function's body. Output: neighbouring blocks, loops and iterators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRealize, BlockRef, Buffer, LoopRef, Node, Schedule

ROOT = "root"
"""The name of the root block."""


def realizes(root: Node) -> list[Any]:
    """Return the block realizations below a TVM object in program order, without the root."""
    realizations = _tvm.found(root, _tvm.s_tir.SBlockRealize)
    return [realize for realize in realizations if realize.block.name_hint != ROOT]


def blocks_of(schedule: Schedule) -> list[Any]:
    """Return references to the function's blocks in program order, without the root."""
    return [schedule.get_sblock(str(r.block.name_hint)) for r in realizes(schedule.mod["main"].body)]


def realize_of(schedule: Schedule, block: BlockRef) -> Any | None:
    """Return a block's realization, or None if the block is not the only statement in its innermost loop."""
    body = getattr(schedule.get_sref(block).parent.stmt, "body", None)
    return body if isinstance(body, _tvm.s_tir.SBlockRealize) else None


def bound(realize: BlockRealize) -> list[tuple[Any, Any]]:
    """Return a block's iterators with their binding values."""
    return list(zip(realize.block.iter_vars, realize.iter_values, strict=True))


def moving(realize: BlockRealize) -> list[tuple[Any, Any]]:
    """Return a block's iterators with their binding values, without those bound to a constant."""
    return [(i, value) for i, value in bound(realize) if not isinstance(value, _tvm.tirx.IntImm)]


def are_loops(schedule: Schedule, values: Sequence[Any], loops: Sequence[LoopRef]) -> bool:
    """Return whether `values` are the loop variables of `loops`, one for each, in the same order."""
    variables = [schedule.get(loop).loop_var for loop in loops]
    return len(values) == len(variables) and all(a.same_as(b) for a, b in zip(values, variables, strict=True))


def loads_of(root: Node, buffer: Buffer) -> list[Any]:
    """Return the loads of a buffer below a TVM object."""
    return [load for load in _tvm.found(root, _tvm.ir.TensorLoad) if load.source.same_as(buffer)]


def sampled(schedule: Schedule, loop: LoopRef, parts: int, most: int) -> list[Any]:
    """Split a loop into sampled factors, the innermost of at most `most`."""
    factors = schedule.sample_perfect_tile(loop, n=parts, max_innermost_factor=most)
    return list(schedule.split(loop, factors))


def copy_operand(schedule: Schedule, block: BlockRef, read: int, scope: str, last: BlockRef) -> Any:
    """Copy what a block reads into a new buffer, and return the block that copies it.

    Args:
        schedule: The schedule.
        block: The block.
        read: The place of the buffer among the block's reads.
        scope: The scope of the new buffer.
        last: The block's epilogue. If it reads the same buffer, as in conv(x) + x, it goes on reading the original.
    """
    source = schedule.get(block).reads[read].source
    read_again = any(region.source.same_as(source) for region in schedule.get(last).reads)
    return schedule.cache_read(block, read, scope, [block] if read_again else None)


def elementwise(schedule: Schedule, block: BlockRef) -> bool:
    """Return whether all axes of a block are data-parallel."""
    statement = schedule.get(block)
    return statement.init is None and all(map(_tvm.is_spatial, statement.iter_vars))


def is_intermediate(schedule: Schedule, block: BlockRef) -> bool:
    """Return whether other blocks read a block's output and the function allocates that buffer itself."""
    allocated = schedule.mod["main"].body.block.alloc_buffers
    return bool(schedule.get_consumers(block)) and all(
        any(write.source.same_as(buffer) for buffer in allocated) for write in schedule.get(block).writes
    )


def costs(schedule: Schedule, block: BlockRef) -> bool:
    """Return whether a block's body has a call: a conditional load or a function. Neither belongs in the hot loop."""
    return bool(_tvm.found(schedule.get(block).body, _tvm.ir.Call))


def in_step(schedule: Schedule, block: BlockRef, tile: BlockRef) -> bool:
    """Return whether the last dimension that a block writes is also the last one that it reads of the tile's output."""
    statement, source = schedule.get(block), schedule.get(tile).writes[0].source
    last = statement.iter_vars[-1].var
    read = next((r for r in statement.reads if r.source.same_as(source)), None)
    return (
        read is not None and bool(statement.body.indices[-1].same_as(last)) and bool(read.region[-1].min.same_as(last))
    )


def chooses_for_all(block: Block) -> bool:
    """Return whether a Select's condition does not depend on the block's last axis.

    If that axis is vectorized, TVM's CUDA source needs one condition for each of four elements and does not compile.
    """
    last = block.iter_vars[-1].var
    return any(not _tvm.uses(choice.condition, last) for choice in _tvm.found(block.body, _tvm.tirx.Select))


def in_step_on_gpus(schedule: Schedule, block: BlockRef, tile: BlockRef) -> bool:
    """Return whether `in_step` holds and TVM can generate CUDA source for vectors of the block."""
    return in_step(schedule, block, tile) and not chooses_for_all(schedule.get(block))
