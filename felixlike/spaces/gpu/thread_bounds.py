"""What keeps the registers of a GPU's threads from spilling: notes that a schedule carries and a postprocessor checks.

Accumulators are the outputs that a thread keeps in registers: virtual threads times the unrolled loops that are no
reduction. All threads of a block share 65,536 registers, so many threads must do with few each. What is unrolled is
code: a kernel that does not fit the instruction cache waits for it, and the compiler takes long over it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRef, Schedule
from felixlike.spaces.blocks import bound, realize_of

_NOTE = "felixlike.thread_"
"""What the notes' names begin with."""

OWN = "felixlike.threads"
"""A note without meaning to TVM.  All our traces for GPUs have some note that begins with "felixlike."."""

WARP, _MOST_THREADS = 32, 1024
_THREADS = ("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive")

VIRTUAL, THREADS = "vthread.x", "threadIdx.x"


@dataclass(frozen=True, slots=True)
class ThreadBounds:
    """accumulators: most outputs of a thread.  registers: of a block of threads.  steps: most multiplications of a
    thread that are written out one after the other."""

    accumulators: int
    registers: int
    steps: int

    def holds(self, accumulators: int, threads: int, unrolled: int) -> bool:
        """Whether numbers keep to the bounds.  unrolled: steps of the reduction that are written out."""
        fits = registers_of(accumulators, threads) <= 4 * self.registers
        return accumulators <= self.accumulators and fits and accumulators * unrolled <= self.steps


def registers_of(accumulators: Any, threads: Any) -> Any:
    """Four times the registers that a block asks for, about: a thread's accumulators, a quarter as many for operands,
    and 80 for addresses and what is fetched ahead.  Numbers or expressions."""
    return threads * (accumulators * 5 + 320)


def note_thread_bounds(schedule: Schedule, block: BlockRef, bounds: ThreadBounds) -> None:
    """Write the bounds on the block whose loops are a thread's tile."""
    for name, value in asdict(bounds).items():
        schedule.annotate(block, _NOTE + name, value)


def note_own(schedule: Schedule, block: BlockRef) -> None:
    """Say on a block without bounds that its schedule is of our own space."""
    schedule.annotate(block, OWN, True)


def note_threads(schedule: Schedule, block: BlockRef, least: int = WARP) -> None:
    """Ask MetaSchedule's VerifyGPUCode for at least a warp of threads, or so many."""
    for note, limit in zip(_THREADS, (least, _MOST_THREADS), strict=True):  # it heeds both notes or neither
        schedule.annotate(block, note, limit)


def noted_thread_bounds(block: Block) -> ThreadBounds | None:
    """The bounds noted on a block of a TVM schedule; None where there are none."""
    names = {name: _NOTE + name for name in ThreadBounds.__slots__}
    if any(note not in block.annotations for note in names.values()):
        return None
    return ThreadBounds(**{name: int(block.annotations[note]) for name, note in names.items()})


def fits_registers(schedule: Schedule) -> bool:
    """Whether every noted tile of a postprocessed schedule keeps to its bounds."""
    blocks = _tvm.found(schedule.mod["main"].body, _tvm.s_tir.SBlock)
    noted = [(str(block.name_hint), noted_thread_bounds(block)) for block in blocks]
    return all(
        bounds.holds(*_sizes(schedule, schedule.get_sblock(name)))
        for name, bounds in noted
        if bounds is not None and not name.endswith("_init")
    )


def _sizes(schedule: Schedule, reference: BlockRef) -> tuple[int, int, int]:
    """Accumulators, threads and unrolled steps of a block."""
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
