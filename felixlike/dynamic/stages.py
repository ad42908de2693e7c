"""FTuner's compile stage: HardwareAlign → CrossPick → SetBound → multi-axis analysis, with counts (§IV).

Input: workloads, a device. Output: the remaining uKernels, and the count of each stage. If a stage leaves a workload
without uKernels, its thresholds are relaxed for that workload, which is counted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from felixlike.dynamic.align import hardware_align
from felixlike.dynamic.analysis import PSI, analyse, compute_eff, saturates
from felixlike.dynamic.bounds import registers_in_block, set_bound
from felixlike.dynamic.crosspick import Stride, cross_pick, overflows, usage_eff
from felixlike.dynamic.padding import padding_threshold
from felixlike.dynamic.ukernel import Floats, UKernels, Workload
from felixlike.errors import NoUKernels
from felixlike.hardware import Device

_Score = Callable[[UKernels], Floats]
"""Maps uKernels to a criterion: float64[n, workloads]."""

STAGES: Mapping[str, tuple[str, ...]] = {"cpu": ("CrossPick", "SetBound"), "cuda": ("CrossPick", "Analysis")}
"""Stages after HardwareAlign that remove uKernels on each kind of device.

The analysis removes none on CPUs (benchmarks/dynamic.py, its six operators on five presets). Registers are enough for
all aligned tiles on GPUs.
"""

ALL_STAGES = ("CrossPick", "SetBound", "Analysis")
"""Stages after HardwareAlign, as published."""

_KEPT = 8
"""uKernels that a workload gets by relaxing: the best by the stage's criterion, and those equal to the last one. Chosen
by hand.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """Counts after one stage.

    Attributes:
        name: Name of the stage.
        kernels: Remaining uKernels.
        pairs: Remaining (uKernel, workload) pairs. Of CombinSearch: (program, workload) pairs.
        relaxed: Workloads whose thresholds were relaxed.
    """

    name: str
    kernels: int
    pairs: int
    relaxed: int = 0

    def __str__(self) -> str:
        note = f", relaxed for {self.relaxed} sizes" if self.relaxed else ""
        return f"{self.name}: {self.kernels} uKernels{note}"


def compile_stage(
    workloads: list[Workload],
    device: Device,
    *,
    stages: Sequence[str] = ALL_STAGES,
    stride: Stride | None = None,
    psi: float = PSI,
) -> tuple[UKernels, tuple[Stage, ...]]:
    """Return the uKernels for all workloads with their metrics, and the counts. Raise NoUKernels.

    stages: Which of the stages after HardwareAlign to run, in the order of `ALL_STAGES`.
    """
    kernels = hardware_align(workloads, device)
    counts = [_stage("HardwareAlign", kernels)]
    if not len(kernels):
        raise _none_left("HardwareAlign", device)
    for name in stages:
        kernels, relaxed = _FILTERS[name](kernels, _Filter(workloads, device, stride, psi))
        counts.append(_stage(name, kernels, relaxed))
        if not len(kernels):
            raise _none_left(name, device)
    scored = replace(
        kernels,
        pad=padding_threshold(kernels, workloads),
        occ=usage_eff(kernels, workloads, device),
        cmr=np.stack([compute_eff(kernels, w, device) for w in workloads], axis=1),
    )
    return scored, tuple(counts)


@dataclass(frozen=True, slots=True)
class _Filter:
    """What the stages depend on besides the uKernels."""

    workloads: list[Workload]
    device: Device
    stride: Stride | None
    psi: float


def _cross_picked(aligned: UKernels, options: _Filter) -> tuple[UKernels, int]:
    """Run CrossPick, relaxed to uKernels that fit into memory."""
    workloads, device = options.workloads, options.device
    crossed = cross_pick(aligned, workloads, device, options.stride)
    in_memory = aligned.taking(~overflows(aligned, device, max(w.item_bytes for w in workloads)))
    return _relaxed(crossed, in_memory, lambda k: _crossing(k, workloads, device))


def _bounded(crossed: UKernels, options: _Filter) -> tuple[UKernels, int]:
    """Run SetBound, relaxed to uKernels whose registers suffice for one block."""
    workloads, device = options.workloads, options.device
    bounded = set_bound(crossed, workloads, device)
    fitting = crossed.taking(registers_in_block(crossed, device, workloads[0].item_bytes) <= device.core_registers)
    return _relaxed(bounded, fitting, lambda k: _crossing(k, workloads, device))


def _analysed(bounded: UKernels, options: _Filter) -> tuple[UKernels, int]:
    """Run the multi-axis analysis, relaxed to all uKernels."""
    workloads, device = options.workloads, options.device
    analysed = analyse(bounded, workloads, device, options.psi)
    return _relaxed(analysed, bounded, lambda k: _computing(k, workloads, device))


_FILTERS: Mapping[str, Callable[[UKernels, _Filter], tuple[UKernels, int]]] = {
    "CrossPick": _cross_picked,
    "SetBound": _bounded,
    "Analysis": _analysed,
}


def _stage(name: str, kernels: UKernels, relaxed: int = 0) -> Stage:
    return Stage(name, len(kernels), int(kernels.fits.sum()), relaxed)


def _none_left(stage: str, device: Device) -> NoUKernels:
    return NoUKernels(
        f"{stage} removed all uKernels",
        where=device.name,
        remedy="check the hardware description: registers or caches may be too small for every tile",
    )


def _relaxed(filtered: UKernels, before: UKernels, score: _Score) -> tuple[UKernels, int]:
    """Return the uKernels of a stage, with the best of the previous stage for each workload left without any.

    The second value is the number of such workloads.
    """
    lost = np.asarray(~filtered.fits.any(axis=0))
    if not lost.any() or not len(before):
        return filtered, 0
    scores = np.where(before.fits, score(before), -1.0)
    scores = np.where(np.asarray(before.fits.any(axis=0))[None, :], scores, score(before))
    fits = np.zeros(before.fits.shape, dtype=np.bool_)
    index_of = {tuple(row): i for i, row in enumerate(np.concatenate([before.reg, before.smem], axis=1).tolist())}
    rows = [
        index_of[tuple(row)]
        for row in np.concatenate([filtered.reg, filtered.smem], axis=1).tolist()
        if tuple(row) in index_of
    ]
    if len(rows) == len(filtered):
        fits[rows] = filtered.fits
    for workload in np.flatnonzero(lost):
        least = np.sort(scores[:, workload])[-min(_KEPT, len(scores))]
        fits[:, workload] = scores[:, workload] >= least  # equal ones are as good
    return before.added(fits), int(lost.sum())


def _crossing(kernels: UKernels, workloads: list[Workload], device: Device) -> Floats:
    """Return CrossPick's criterion: the smaller of padding and occupancy."""
    return np.minimum(padding_threshold(kernels, workloads), usage_eff(kernels, workloads, device))


def _computing(kernels: UKernels, workloads: list[Workload], device: Device) -> Floats:
    """Return the analysis' criterion: the compute-to-memory ratio, with uKernels that saturate all cores first."""
    cmr = np.stack([compute_eff(kernels, w, device) for w in workloads], axis=1)
    busy = np.stack([saturates(kernels, w, device) for w in workloads], axis=1)
    return np.where(busy, 1e9, 0.0) + cmr
