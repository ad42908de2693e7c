"""Predict launches on a GPU: blocks in waves, two timings per uKernel (DietCode's model; FTuner §IV-B, eq. 3).

Input: uKernels, a device; timings of each, if there are any. Output: `Waves`, and from them the seconds of every launch
at every size. Each multiprocessor runs ⌈blocks / multiprocessors⌉ blocks, some of them concurrently. The time of q
concurrent blocks is counted in cycles of products, loads from shared memory, copies and barriers. If there is a GPU,
these counts are corrected by two timings, with one block on each multiprocessor and with N, the blocks that it holds
at a time according to the compiler's report of registers and shared memory.

Constants are rounded values from NVIDIA's white papers and from published microbenchmarks of A100 and H100. None of
them was measured by this project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.ukernel import Floats, Ints, Workload, ceil_div
from felixlike.hardware import Device
from felixlike.hardware.occupancy import WARP, Kernel, blocks_at_once
from felixlike.spaces.gpu.thread_axes import LANES

_SCHEDULERS = 4
"""Schedulers of a multiprocessor; each issues one warp instruction per cycle."""

_MEMORY_CYCLES, _BARRIER_CYCLES, _END_CYCLES = 600, 60, 1500
"""Cycles of latency of a copy, of the barriers of a step, and of starting and ending a block."""

_BANK_BYTES, _L2_BYTES = 128, 32
"""Bytes per cycle that a multiprocessor reads from shared memory, and from the L2 cache."""

_JOIN_CYCLES = 4
"""Cycles to add one partial sum of another slice."""

_COPY_INSTRUCTIONS = 8
"""Instructions of a copy, for its addresses."""

_ALONE, _TOGETHER = 0.6, 0.95
"""Fraction of cycles in which a scheduler issues an instruction, with one warp and with many."""

_START = 2e-6
"""Seconds of a launch that computes nothing."""

_REST_REGISTERS = 32
"""Registers of a thread besides its sums and operands, if the kernel was not compiled yet."""


@dataclass(frozen=True, slots=True)
class Waves:
    """Costs of uKernels, one entry per uKernel.

    Attributes:
        start: float64[uKernels], seconds of a launch that do not grow with the reduction.
        steps: float64[uKernels, most + 1], seconds of a reduction step with 0, 1, … concurrent blocks.
        room: int64[uKernels], upper limit on concurrent blocks of a multiprocessor, N of DietCode.
        one: float64[uKernels], measured over predicted seconds with one block per multiprocessor, 1 without timings.
        many: float64[uKernels], the same with N blocks.
    """

    start: Floats
    steps: Floats
    room: Ints
    one: Floats
    many: Floats

    def seconds(self, kernels: Ints, blocks: Floats, depth: Floats) -> Floats:
        """Return the seconds of launches, float64[launches, sizes].

        kernels: uKernel of each launch. blocks: Blocks per multiprocessor, fractional where smaller blocks count as
        parts of larger ones. depth: Steps of the reduction.
        """
        room = self.room[kernels][:, None]
        rounds = np.floor(blocks / room)
        rest = blocks - rounds * room
        low = np.floor(rest).astype(np.int64)
        steps = self.steps[kernels]
        full = np.take_along_axis(steps, room, axis=1)
        below = np.take_along_axis(steps, low, axis=1)
        above = np.take_along_axis(steps, np.minimum(low + 1, steps.shape[1] - 1), axis=1)
        counted = rounds * full + below + (rest - low) * (above - below)
        share = np.clip((blocks - 1) / np.maximum(room - 1, 1), 0, 1)
        ratio = self.one[kernels][:, None] * (1 - share) + self.many[kernels][:, None] * share
        return np.asarray(self.start[kernels][:, None] + depth * counted * ratio)

    def block(self, kernels: Ints) -> Floats:
        """Return the seconds per step that one more block adds on a fully occupied multiprocessor, float64[n]."""
        return np.asarray(self.steps[kernels, self.room[kernels]] / self.room[kernels])


def counted(
    tiles: Sequence[BlockTile],
    device: Device,
    lanes: tuple[int, int] = (1, 1),
    reports: Mapping[BlockTile, Kernel] = MappingProxyType({}),
) -> Waves:
    """Return the costs of uKernels by instruction counts.

    lanes: Elements of each operand copied at once. reports: The compiler's reports of some uKernels.
    """
    limits = [blocks_held(tile, device, reports.get(tile)) for tile in tiles]
    steps = np.zeros((len(tiles), max(limits) + 1))
    for number, tile in enumerate(tiles):
        for blocks in range(1, steps.shape[1]):
            steps[number, blocks] = (
                _step_cycles(tile, device, lanes, min(blocks, limits[number])) / tile.depth / device.clock_hz
            )
    joined = np.asarray([_JOIN_CYCLES * (tile.slices - 1) * tile.sums for tile in tiles])
    start = _START + (_MEMORY_CYCLES + _END_CYCLES + joined) / device.clock_hz
    return Waves(start, steps, np.asarray(limits), np.ones(len(tiles)), np.ones(len(tiles)))


def blocks_held(tile: BlockTile, device: Device, report: Kernel | None = None) -> int:
    """Return N, the number of blocks that a multiprocessor holds at a time: at least 1.

    report: The compiler's report of the uKernel. Without one its registers are estimated.
    """
    if report is None:
        registers = min(255, tile.sums + tile.own_rows + tile.own_columns + _REST_REGISTERS)
        report = Kernel("", registers, 0, tile.shared_bytes(4), tile.threads)
    return max(1, blocks_at_once(replace(report, threads=report.threads or tile.threads), device.mcpu))


def _step_cycles(tile: BlockTile, device: Device, lanes: tuple[int, int], blocks: int) -> float:
    """Return the cycles of a step of `blocks` blocks that share a multiprocessor."""
    warps = -(-tile.threads // WARP)
    product = 2 * _SCHEDULERS * WARP * device.clock_hz * device.cores / device.flops  # cycles of a product of a warp
    columns = min(WARP, tile.columns // tile.own_columns)
    rows = -(-WARP // columns)
    loads = sum(-(-own // math.gcd(own, LANES)) for own in (tile.own_rows, tile.own_columns))
    bytes_read = 4 * (rows * tile.own_rows + columns * tile.own_columns)
    copies = (
        sum(side / math.gcd(side, n) for side, n in zip((tile.rows, tile.columns), lanes, strict=True)) * tile.depth
    )
    share = tile.depth // tile.slices
    own = share * (tile.sums * product + loads) + _COPY_INSTRUCTIONS * -(-copies // tile.threads)
    issued = max(-(-blocks * warps // _SCHEDULERS) * own / _TOGETHER, own / _ALONE)
    shared = blocks * (warps * share * max(loads, bytes_read / _BANK_BYTES) + copies / WARP)
    read = blocks * (tile.rows + tile.columns) * tile.depth * 4 / _L2_BYTES
    waited = _MEMORY_CYCLES / max(1, tile.stages - 1)
    return max(issued, shared, read, waited) + _BARRIER_CYCLES


def blocks_of(tiles: Sequence[BlockTile], workloads: Sequence[Workload]) -> Ints:
    """Return the blocks of each uKernel alone at each size, int64[uKernels, sizes]."""
    rows, columns = (np.asarray([getattr(t, name) for t in tiles])[:, None] for name in ("rows", "columns"))
    i, j, batch = (np.asarray([getattr(w, name) for w in workloads])[None, :] for name in ("i", "j", "batch"))
    return np.asarray(batch * ceil_div(i, rows) * ceil_div(j, columns))


def least_seconds(workloads: Sequence[Workload], device: Device) -> Floats:
    """Return a lower bound on seconds: all operands read and the output written once, float64[sizes]."""
    moved = [w.batch * (w.i * w.k + w.j * w.k + w.i * w.j) * w.item_bytes for w in workloads]
    return _START + np.asarray(moved) / device.memory_bandwidth


def alone(tiles: Sequence[BlockTile], waves: Waves, workloads: Sequence[Workload], device: Device) -> Floats:
    """Return the seconds of launches of one uKernel, float64[uKernels, sizes]."""
    depth = np.asarray([w.k for w in workloads], dtype=np.float64)[None, :]
    blocks = np.ceil(blocks_of(tiles, workloads) / device.cores)
    predicted = waves.seconds(np.arange(len(tiles)), blocks, depth)
    return np.maximum(predicted, least_seconds(workloads, device)[None, :])


def paired(
    pairs: Sequence[tuple[int, int]],
    tiles: Sequence[BlockTile],
    waves: Waves,
    workloads: Sequence[Workload],
    device: Device,
) -> Floats:
    """Return the seconds of launches of two uKernels, float64[pairs, sizes].

    pairs: Indices of the higher and the lower uKernel. Lower blocks count as parts of higher ones. They start on
    multiprocessors that the higher ones leave idle in their last wave.
    """
    large, small = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    depth, batch, j = (
        np.asarray([getattr(w, name) for w in workloads], dtype=np.float64)[None, :] for name in ("k", "batch", "j")
    )
    columns = np.asarray([tiles[n].columns for n in large])[:, None]
    many, few = covers([BlockProgram(tiles[a], tiles[b]) for a, b in pairs], [w.i for w in workloads])
    across = batch * np.ceil(j / columns)
    part = (waves.block(small) / waves.block(large))[:, None]
    first, second = many * across / device.cores, few * across / device.cores
    blocks = np.maximum(np.ceil(first), np.ceil((first + second * part) / part) * part)
    predicted = waves.seconds(large, blocks, depth)
    return np.asarray(np.maximum(predicted, least_seconds(workloads, device)[None, :]))


def covers(programs: Sequence[BlockProgram], sizes: Sequence[int]) -> tuple[Floats, Floats]:
    """Return (Num₁, Num₂) of programs of two uKernels, as in `BlockProgram.at`: float64[programs, sizes] each."""
    size = np.asarray(sizes, dtype=np.int64)[None, :]
    numbers = [(p.large.rows, p.tiles[-1].rows, p.divisor, p.inverse) for p in programs]
    large, small, divisor, inverse = (np.asarray(n)[:, None] for n in zip(*numbers, strict=True))
    few = size // divisor * inverse % (large // divisor)
    remaining = size - few * small
    exact = (size % divisor == 0) & (remaining >= 0)
    full_blocks = size // large
    many = np.where(exact, remaining // large, full_blocks)
    few = np.where(exact, few, ceil_div(size - full_blocks * large, small))
    return many.astype(np.float64), few.astype(np.float64)
