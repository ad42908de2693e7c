"""Bound the registers of a GPU's threads: block annotations that a schedule carries and a postprocessor checks.

Accumulators are the outputs that a thread has in registers: virtual threads times the unrolled loops that are not
reductions. All threads of a block share 65,536 registers, so many threads have few each. Unrolled loops are code: a
kernel that exceeds the instruction cache waits for it, and takes long to compile.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRef, Schedule
from felixlike.spaces.blocks import bound, realize_of

_PREFIX = "felixlike.thread_"
"""Prefix of the annotations' keys."""

OWN = "felixlike.threads"
"""An annotation without meaning to TVM. All felixlike traces for GPUs have some annotation that begins with
"felixlike."."""

WARP, _MOST_THREADS = 32, 1024
"""Threads of a warp, and the upper limit on threads of a block."""
_THREAD_LIMITS = ("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive")
"""The annotations from which VerifyGPUCode takes the limits on threads of a block."""

VIRTUAL, THREADS = "vthread.x", "threadIdx.x"
"""TVM's names of virtual threads and of threads."""


@dataclass(frozen=True, slots=True)
class ThreadBounds:
    """Limits of a thread's tile.

    Attributes:
        accumulators: Upper limit on outputs of a thread.
        registers: Upper limit on registers of a block.
        steps: Upper limit on unrolled multiplications of a thread.
    """

    accumulators: int
    registers: int
    steps: int

    def holds(self, accumulators: int, threads: int, unrolled: int) -> bool:
        """Return whether a tile is within the bounds. `unrolled` is the number of unrolled reduction steps."""
        fits = registers_of(accumulators, threads) <= 4 * self.registers
        return accumulators <= self.accumulators and fits and accumulators * unrolled <= self.steps


def registers_of(accumulators: Any, threads: Any) -> Any:
    """Estimate four times the registers that a block needs, from numbers or expressions.

    A thread needs its accumulators, a quarter as many for operands, and 80 for addresses and prefetched elements.
    """
    return threads * (accumulators * 5 + 320)


def note_thread_bounds(schedule: Schedule, block: BlockRef, bounds: ThreadBounds) -> None:
    """Annotate the block whose loops are a thread's tile with its bounds."""
    for name, value in asdict(bounds).items():
        schedule.annotate(block, _PREFIX + name, value)


def note_own(schedule: Schedule, block: BlockRef) -> None:
    """Annotate a block without bounds as scheduled by a felixlike rule."""
    schedule.annotate(block, OWN, True)


def note_threads(schedule: Schedule, block: BlockRef, least: int = WARP) -> None:
    """Make MetaSchedule's VerifyGPUCode require at least `least` threads, a warp by default."""
    for note, limit in zip(_THREAD_LIMITS, (least, _MOST_THREADS), strict=True):  # it needs both annotations
        schedule.annotate(block, note, limit)


def noted_thread_bounds(block: Block) -> ThreadBounds | None:
    """Return the bounds that a block of a TVM schedule is annotated with, or None."""
    names = {name: _PREFIX + name for name in ThreadBounds.__slots__}
    if any(note not in block.annotations for note in names.values()):
        return None
    return ThreadBounds(**{name: int(block.annotations[note]) for name, note in names.items()})


def fits_registers(schedule: Schedule) -> bool:
    """Return whether every annotated tile of a postprocessed schedule is within its bounds."""
    blocks = _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = [(str(block.name_hint), noted_thread_bounds(block)) for block in blocks]
    return all(
        bounds.holds(*_sizes(schedule, schedule.get_sblock(name)))
        for name, bounds in noted
        if bounds is not None and not name.endswith("_init")
    )


def _sizes(schedule: Schedule, reference: BlockRef) -> tuple[int, int, int]:
    """Return the accumulators, threads and unrolled steps of a block."""
    reductions = [value for i, value in bound(realize_of(schedule, reference)) if _tvm.is_reduction(i)]
    accumulators = threads = steps = 1
    for loop in schedule.get_loops(reference):
        statement = schedule.get(loop)
        extent = int(statement.extent)
        thread = str(statement.thread_binding.thread_tag) if statement.thread_binding is not None else ""
        unrolled = statement.kind == _tvm.tirx.ForKind.UNROLLED
        if unrolled and any(_tvm.uses(value, statement.loop_var) for value in reductions):
            steps *= extent
        elif unrolled or thread == VIRTUAL:
            accumulators *= extent
        elif thread == THREADS:
            threads *= extent
    return accumulators, threads, steps
