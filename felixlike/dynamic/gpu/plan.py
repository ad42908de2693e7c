"""An operator with symbolic sizes → launches for every size on a GPU, by formulas, and timed where there is one.

In: an operator, its dimensions, a device. Out: `Planned`. Formulas take a quarter of a second; what is timed does not
grow with the number of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from felixlike import _tvm, codegen
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.dispatch import Tree, programs_of
from felixlike.dynamic.gpu.emit import emit_blocks, in_order
from felixlike.dynamic.gpu.operand import operands_of
from felixlike.dynamic.gpu.search import Ranked, ranked, tree_of
from felixlike.dynamic.gpu.throughput import MANY, Waves, alone, blocks_of, counted
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.gpu.timing import BlockBench
from felixlike.dynamic.operator import Operator
from felixlike.dynamic.retiming import Corrected, places_of, timed_again
from felixlike.dynamic.sia import Sia, top
from felixlike.dynamic.stages import Stage
from felixlike.dynamic.timing import kendall
from felixlike.dynamic.ukernel import Floats, Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.hardware import Device, kind_of
from felixlike.measure import MeasurePool, Pool

_MOST_INSTANCES, _ANALYSED = 128, 32
"""Sizes that programs are ranked for, and that uKernels are filtered by; as on CPUs."""

_TIMED, _TIMED_BY_SIA, _AGAIN = 4, 1, 1
"""Programs that are timed at a size: the best by prediction, and by FTuner's score; and how often the tree is timed
again.  Fewer than on CPUs, since each is built, compared and run in a process of its own."""

_KERNELS_TIMED = 12
"""uKernels that are timed at one wave and at N."""

_ASKED = 4
"""How often the compiler is asked about the programs of a tree."""

_MOST_RATIO = 8.0
"""What is timed is not taken to differ by more from what is counted: a kernel that was disturbed would spoil others."""


@dataclass(frozen=True, slots=True)
class Planned:
    """tree: which program serves which sizes.  kernel: code of it.  stages: what FTuner's filter kept.  programs: that
    were ranked.  measured: timings taken.  agreement: Kendall's τ of prediction and measurement.  among_top: share of
    the timed sizes at which the fastest is among SIA's ten best.  repaired: sizes at which the tree was changed."""

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
        """The uKernels that there is code for."""
        return tuple(sorted({tile for program in programs_of(self.tree) for tile in program.tiles}))


@dataclass(frozen=True, slots=True)
class _Job:
    """What there is to plan.  few, workloads: the operator at the sizes it is filtered and ranked for."""

    operator: Operator
    device: Device
    sia: Sia
    few: list[Workload]
    workloads: list[Workload]
    sizes: list[tuple[int, ...]]

    def waves(self, tiles: Sequence[BlockTile]) -> Waves:
        """What is counted."""
        rows, columns = operands_of(self.operator)
        return counted(tiles, self.device, (rows.lanes, columns.lanes))

    def ranked(self, waves_of: Callable[[Sequence[BlockTile]], Waves]) -> Ranked:
        """The programs, with such waves."""
        return ranked(self.few, self.workloads, self.device, self.sia, waves_of)

    def tree(self, programs: Sequence[BlockProgram], seconds: Floats) -> Tree[BlockProgram]:
        """The choice among programs."""
        return tree_of(programs, seconds, self.sizes, [w.weight for w in self.workloads])


def plan_blocks(
    operator: Operator, dims: Sequence[Dim], device: Device, target: Any, sia: Sia, *, pool: Pool | None
) -> Planned:
    """The launches for all sizes.  pool: times programs; None for what is counted.  Raises NoUKernels."""
    few, _ = workloads_of(operator, dims, _ANALYSED)
    workloads, sizes = workloads_of(operator, dims, _MOST_INSTANCES)
    job = _Job(operator, device, sia, few, workloads, sizes)
    if pool is None:
        found = job.ranked(job.waves)
        tree = _without_spills(job, found, target)
        return Planned(tree, emit_blocks(operator, tree), found.stages, len(found.programs))
    return measured(job, BlockBench(operator, target, pool))


def pool_for(target: Any, *, measure: bool) -> AbstractContextManager[Pool | None]:
    """What times programs for a target: nothing where nothing is measured, and for CPUs, whose programs are timed in
    this process."""
    return MeasurePool(target) if measure and kind_of(target).binds_threads else nullcontext()


def _without_spills(job: _Job, found: Ranked, target: Any) -> Tree[BlockProgram]:
    """The tree, of programs that do without spills as far as the CUDA compiler is at hand to say; after a few rounds,
    of those that did."""
    seconds, fine = found.seconds.copy(), set[BlockProgram]()
    for _ in range(_ASKED if codegen.cuda_toolchain() else 0):
        tree = job.tree(found.programs, seconds)
        spilling = _spilling(job.operator, tree, target)
        if not spilling:
            return tree
        fine |= set(programs_of(tree)) - spilling
        seconds[[found.programs.index(program) for program in spilling]] = np.inf
    if fine:
        seconds[[n for n, program in enumerate(found.programs) if program not in fine]] = np.inf
    return job.tree(found.programs, seconds)


def _spilling(operator: Operator, tree: Tree[BlockProgram], target: Any) -> set[BlockProgram]:
    """The programs of a tree of whose threads the CUDA compiler keeps something in memory.  Asked of the whole
    function: the same launch may be compiled in another way beside others."""
    func = emit_blocks(operator, tree).with_attr("global_symbol", "main")
    binary = codegen.cuda_binary(_tvm.IRModule({"main": func}), target)
    kernels = {kernel.name: kernel for kernel in codegen.kernels_of(binary, str(target.attrs["arch"]))}
    names = ["main_kernel", *(f"main_kernel_{number}" for number in range(1, len(kernels)))]  # as TVM calls them
    named = zip(in_order(tree), names, strict=False)
    return {program for program, name in named if name in kernels and kernels[name].local_bytes}


def measured(job: _Job, bench: BlockBench) -> Planned:
    """The same with timings: of uKernels in waves, of the best programs at a few sizes, of the tree between those."""
    first = job.ranked(job.waves)
    found = job.ranked(partial(_corrected, job, _ratios(job, first, bench)))
    predicted, places = bench.without_failed(found.programs, found.seconds), places_of(len(job.sizes))
    trials = [
        (n, place)
        for place in places
        for n in dict.fromkeys([*top(-predicted[:, place], _TIMED), *top(found.scores[:, place], _TIMED_BY_SIA)])
        if np.isfinite(predicted[n, place])
    ]
    seconds = bench.seconds([(found.programs[n], job.sizes[place]) for n, place in trials])
    known, agreements, among = Corrected(predicted), [], []
    for (n, place), taken in zip(trials, seconds, strict=True):
        known.note(n, place, float(taken))
    for place in places:
        own = [i for i, (_, at) in enumerate(trials) if at == place]
        agreements.append(kendall(seconds[own], np.asarray([predicted[trials[i]] for i in own])))
        among.append(trials[min(own, key=lambda i: seconds[i])][0] in top(found.scores[:, place]))

    def tree_of(taken: Floats) -> Tree[BlockProgram]:
        return job.tree(found.programs, bench.without_failed(found.programs, taken))

    tree, changed = timed_again(bench.seconds, found.programs, known, job.sizes, tree_of, rounds=_AGAIN, most=_TIMED)
    return Planned(
        tree,
        emit_blocks(job.operator, tree),
        found.stages,
        len(found.programs),
        bench.measured,
        float(np.mean(agreements)),
        sum(among) / len(among),
        changed,
    )


def _ratios(job: _Job, found: Ranked, bench: BlockBench) -> dict[BlockTile, tuple[float, float]]:
    """What timings of one block on each multiprocessor, and of N, are divided by what is counted, of the uKernels of
    the programs that are best at many sizes.  Timed are sizes at which programs are timed, too: each has a float64
    reference."""
    gain = found.seconds / found.seconds.min(axis=0)[None, :]
    order = np.argsort(np.sort(gain, axis=1)[:, : max(1, gain.shape[1] // 8)].mean(axis=1), kind="stable")
    tiles = list(dict.fromkeys(tile for n in order for tile in found.programs[n].tiles))[:_KERNELS_TIMED]
    blocks, cores = blocks_of(tiles, job.workloads), job.device.cores
    expected = alone(tiles, job.waves(tiles), job.workloads, job.device)
    trials, where, places = [], [], places_of(len(job.sizes))
    for n, tile in enumerate(tiles):
        for wanted in (cores, MANY * cores):
            place = places[int(np.abs(blocks[n, places] - wanted).argmin())]
            trials.append((BlockProgram(tile), job.sizes[place]))
            where.append((n, place))
    seconds = bench.seconds(trials)
    ratios = [
        float(np.clip(taken / expected[at], 1 / _MOST_RATIO, _MOST_RATIO)) if np.isfinite(taken) else 1.0
        for taken, at in zip(seconds, where, strict=True)
    ]
    return dict(zip(tiles, zip(ratios[::2], ratios[1::2], strict=True), strict=True))


def _corrected(job: _Job, ratios: dict[BlockTile, tuple[float, float]], tiles: Sequence[BlockTile]) -> Waves:
    """What is counted, corrected; uKernels that were not timed by what the others say in the middle."""
    usual = tuple(np.median(np.asarray(list(ratios.values())), axis=0))
    one, many = (np.asarray([ratios.get(tile, usual)[n] for tile in tiles]) for n in (0, 1))
    return replace(job.waves(tiles), one=one, many=many)
