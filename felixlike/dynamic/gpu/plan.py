"""Plan an operator with symbolic sizes on a GPU: by formulas, and with timings if there is a GPU.

Input: an operator, its dimensions, a device. Output: `Planned`. Formulas take a quarter of a second. The number of
timings does not grow with the number of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from felixlike import _tvm, codegen
from felixlike.dynamic.bench import Timings
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.dispatch import Tree, programs_of
from felixlike.dynamic.gpu.emit import emit_blocks, in_order
from felixlike.dynamic.gpu.evolve import evolved
from felixlike.dynamic.gpu.operand import operands_of
from felixlike.dynamic.gpu.search import Ranked, constructed, ranked, tree_of
from felixlike.dynamic.gpu.throughput import Waves, alone, blocks_held, blocks_of, counted
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.gpu.timing import BlockBench
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.planner import DietCode, FTuner, Planner, Timed
from felixlike.dynamic.retiming import Corrected, places_of, timed_again
from felixlike.dynamic.selection import BLOCKS, GPU
from felixlike.dynamic.sia import top
from felixlike.dynamic.stages import Stage
from felixlike.dynamic.timing import kendall
from felixlike.dynamic.ukernel import Floats, Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.hardware import Device, kind_of
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import MeasurePool, Pool


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan for all sizes.

    Attributes:
        tree: Decision tree that chooses a program by the sizes.
        kernel: The generated function.
        stages: uKernels left after each stage of FTuner's filter.
        programs: Number of ranked programs.
        measured: Number of timings.
        agreement: Kendall's τ between prediction and measurement.
        among_top: Fraction of timed sizes whose fastest program is among SIA's ten best.
        repaired: Number of sizes at which the tree was changed.
    """

    tree: Tree[BlockProgram]
    kernel: Any
    stages: tuple[Stage, ...]
    programs: int
    measured: int = 0
    agreement: float = 1.0
    among_top: float = 1.0
    repaired: int = 0

    @property
    def tiles(self) -> tuple[BlockTile, ...]:
        """The uKernels in the code."""
        return tuple(sorted({tile for program in programs_of(self.tree) for tile in program.tiles}))


@dataclass(frozen=True, slots=True)
class _Job:
    """The inputs of planning.

    Attributes:
        operator: The operator.
        device: The hardware description.
        planner: How programs are chosen.
        few: The operator at sizes by which uKernels are filtered.
        workloads: The operator at sizes for which programs are ranked.
        sizes: Sizes of each workload, one per symbol.
    """

    operator: Operator
    device: Device
    planner: Timed | DietCode
    few: list[Workload]
    workloads: list[Workload]
    sizes: list[tuple[int, ...]]

    def waves(self, tiles: Sequence[BlockTile], reports: Mapping[BlockTile, Kernel] = MappingProxyType({})) -> Waves:
        """Return predicted costs of uKernels. reports: The compiler's reports of some of them."""
        rows, columns = operands_of(self.operator)
        return counted(tiles, self.device, (rows.lanes, columns.lanes), reports)

    def ranked(self, waves_of: Callable[[Sequence[BlockTile]], Waves]) -> Ranked:
        """Rank programs with the given costs of uKernels."""
        if isinstance(self.planner, DietCode):
            return evolved(self.workloads, self.device, self.planner, waves_of)
        return ranked(self.few, self.workloads, self.device, self.planner.sia, waves_of)

    def tree(self, programs: Sequence[BlockProgram], seconds: Floats) -> Tree[BlockProgram]:
        """Fit the tree that chooses among programs."""
        return tree_of(programs, seconds, self.sizes, [w.weight for w in self.workloads])


def plan_blocks(
    operator: Operator,
    dims: Sequence[Dim],
    device: Device,
    target: Any,
    planner: Planner,
    *,
    pool: Pool | None,
    timings: Timings | None = None,
    name: str = "operator",
) -> Planned:
    """Return the launches for all sizes. Raise NoUKernels.

    planner: How programs are chosen. pool: Times programs. If None, programs are ranked by formulas alone. timings: The
    timings of the run. name: Name of the operator in its store.
    """
    workloads, sizes = workloads_of(operator, dims, GPU.instances)
    if isinstance(planner, FTuner):
        programs, stages = constructed(workloads, device, planner)
        chosen = programs.tree(sizes, [w.weight for w in workloads])
        return Planned(chosen, emit_blocks(operator, chosen), stages, programs.programs)
    analysed, _ = workloads_of(operator, dims, GPU.analysed)
    job = _Job(operator, device, planner, analysed, workloads, sizes)
    if pool is None:
        candidates = job.ranked(job.waves)
        tree = _without_spills(job, candidates, target)
        return Planned(tree, emit_blocks(operator, tree), candidates.stages, len(candidates.programs))
    return measured(job, BlockBench(operator, target, pool, timings, name=name))


def pool_for(target: Any, *, measure: bool) -> AbstractContextManager[Pool | None]:
    """Return the pool that times programs for a target, or None.

    Nothing is timed if `measure` is False. Programs for CPUs are timed in this process, without a pool.
    """
    return MeasurePool(target) if measure and kind_of(target).binds_threads else nullcontext()


def _without_spills(job: _Job, candidates: Ranked, target: Any) -> Tree[BlockProgram]:
    """Return a tree of programs that do not spill registers, as far as a CUDA compiler is available to check.

    After a few rounds only programs known not to spill are used.
    """
    seconds, spill_free = candidates.seconds.copy(), set[BlockProgram]()
    for _ in range(BLOCKS.compilations if codegen.cuda_toolchain() else 0):
        tree = job.tree(candidates.programs, seconds)
        spilling = _spilling(job.operator, tree, target)
        if not spilling:
            return tree
        spill_free |= set(programs_of(tree)) - spilling
        seconds[[candidates.programs.index(program) for program in spilling]] = np.inf
    if spill_free:
        seconds[[n for n, program in enumerate(candidates.programs) if program not in spill_free]] = np.inf
    return job.tree(candidates.programs, seconds)


def _spilling(operator: Operator, tree: Tree[BlockProgram], target: Any) -> set[BlockProgram]:
    """Return the programs of a tree whose threads use local memory, according to the CUDA compiler.

    The whole function is compiled, since the same launch may be compiled differently next to others.
    """
    func = emit_blocks(operator, tree).with_attr("global_symbol", "main")
    binary = codegen.cuda_binary(_tvm.IRModule({"main": func}), target)
    kernels = {kernel.name: kernel for kernel in codegen.kernels_of(binary, str(target.attrs["arch"]))}
    names = ["main_kernel", *(f"main_kernel_{number}" for number in range(1, len(kernels)))]  # as TVM calls them
    named = zip(in_order(tree), names, strict=False)
    return {program for program, name in named if name in kernels and kernels[name].local_bytes}


def measured(job: _Job, bench: BlockBench) -> Planned:
    """Plan with timings: of uKernels in waves, of the best programs at a few sizes, of the tree between those."""
    first = job.ranked(job.waves)
    candidates = job.ranked(partial(_corrected, job, _ratios(job, first, bench), bench.reports))
    predicted = bench.without_failed(candidates.programs, candidates.seconds)
    places = places_of(len(job.sizes), GPU.places)
    trials = [
        (n, place)
        for place in places
        for n in dict.fromkeys(
            [*top(-predicted[:, place], GPU.timed), *top(candidates.scores[:, place], GPU.timed_by_sia)]
        )
        if np.isfinite(predicted[n, place])
    ]
    seconds = bench.seconds([(candidates.programs[n], job.sizes[place]) for n, place in trials])
    corrected, agreements, among = Corrected(predicted), [], []
    for (n, place), elapsed in zip(trials, seconds, strict=True):
        corrected.note(n, place, float(elapsed))
    for place in places:
        trials_at_place = [i for i, (_, at) in enumerate(trials) if at == place]
        agreements.append(
            kendall(seconds[trials_at_place], np.asarray([predicted[trials[i]] for i in trials_at_place]))
        )
        if np.isfinite(candidates.scores[:, place]).any():
            among.append(trials[min(trials_at_place, key=lambda i: seconds[i])][0] in top(candidates.scores[:, place]))

    def tree_of(elapsed: Floats) -> Tree[BlockProgram]:
        return job.tree(candidates.programs, bench.without_failed(candidates.programs, elapsed))

    tree, changed = timed_again(bench.seconds, candidates.programs, corrected, job.sizes, tree_of, GPU)
    return Planned(
        tree,
        emit_blocks(job.operator, tree),
        candidates.stages,
        len(candidates.programs),
        bench.used,
        float(np.mean(agreements)),
        sum(among) / len(among) if among else math.nan,
        changed,
    )


def _ratios(job: _Job, candidates: Ranked, bench: BlockBench) -> dict[BlockTile, tuple[float, float]]:
    """Return measured over predicted seconds for one block and for N blocks on each multiprocessor (DietCode).

    Timed are uKernels of the programs that are best at many sizes. Their sizes are among those at which programs are
    timed, since each size needs a float64 reference.
    """
    gain = candidates.seconds / candidates.seconds.min(axis=0)[None, :]
    order = np.argsort(np.sort(gain, axis=1)[:, : max(1, gain.shape[1] // 8)].mean(axis=1), kind="stable")
    tiles = list(dict.fromkeys(tile for n in order for tile in candidates.programs[n].tiles))[: BLOCKS.kernels_timed]
    blocks, cores = blocks_of(tiles, job.workloads), job.device.cores
    places = np.asarray(places_of(len(job.sizes), GPU.places))

    def timed(held: Sequence[int]) -> list[float]:
        """Time each uKernel at the size with about as many blocks per multiprocessor; return ratios to predictions."""
        nearest = [int(places[np.abs(row[places] - n * cores).argmin()]) for row, n in zip(blocks, held, strict=True)]
        seconds = bench.seconds([(BlockProgram(tile), job.sizes[at]) for tile, at in zip(tiles, nearest, strict=True)])
        expected = alone(tiles, job.waves(tiles, bench.reports), job.workloads, job.device)
        return [
            float(np.clip(elapsed / row[at], 1 / BLOCKS.ratio, BLOCKS.ratio)) if np.isfinite(elapsed) else 1.0
            for elapsed, row, at in zip(seconds, expected, nearest, strict=True)
        ]

    one = timed([1] * len(tiles))  # the compiler reports the resources by which the second timing is chosen
    many = timed([blocks_held(tile, job.device, bench.reports.get(tile)) for tile in tiles])
    return dict(zip(tiles, zip(one, many, strict=True), strict=True))


def _corrected(
    job: _Job,
    ratios: Mapping[BlockTile, tuple[float, float]],
    reports: Mapping[BlockTile, Kernel],
    tiles: Sequence[BlockTile],
) -> Waves:
    """Return predicted costs corrected by the ratios; the median ratio is used for uKernels that were not timed."""
    median = tuple(np.median(np.asarray(list(ratios.values())), axis=0))
    one, many = (np.asarray([ratios.get(tile, median)[n] for tile in tiles]) for n in (0, 1))
    return replace(job.waves(tiles, reports), one=one, many=many)
