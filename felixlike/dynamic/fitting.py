"""Fit the weights of the SIA score to a store's timings of kernels for dynamic sizes.

Input: a record store, a target. Output: `Sia`. A score ranks the programs of a size, so the weights are fitted to each
program's throughput relative to the best one of its size, by least squares with weights of at least 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from felixlike import records
from felixlike._util.wording import counted
from felixlike.dynamic.align import grown
from felixlike.dynamic.analysis import compute_eff
from felixlike.dynamic.crosspick import overflows, usage_eff
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.padding import padding_threshold
from felixlike.dynamic.program import Program
from felixlike.dynamic.sia import Sia
from felixlike.dynamic.ukernel import Floats, UKernels, Workload
from felixlike.dynamic.workloads import workload_at
from felixlike.errors import InvalidOption
from felixlike.hardware import Device, device_name, kind_of, resolve_target, target_device
from felixlike.records.record import UKERNELS
from felixlike.training.samples import restored

_FEWEST = 20
"""Least number of programs to fit to. Chosen by hand."""

_ROUNDS = 10
"""Upper limit on fits: the second level's tiles with the best scores depend on the weights. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A timed program.

    Attributes:
        tiles: CMR, Pad and Occ of each of its uKernels, one or two: float64[tiles of the second level, 3].
        throughput: Relative to the fastest program of its size, at most 1.
    """

    tiles: tuple[Floats, ...]
    throughput: float

    def metrics(self, sia: Sia) -> Floats:
        """Return the mean metrics of its uKernels, with the second level's tiles that have the best scores."""
        return np.asarray(np.mean([t[np.argmax(t @ (sia.c0, sia.c1, sia.c2))] for t in self.tiles], axis=0))


def fitted_sia(store: str | PathLike[str], target: Any = "cpu") -> Sia:
    """Fit the weights of FTuner's score to the timings that a store has of kernels for dynamic sizes.

    Only timings of this machine's device count.

    Args:
        store: Path of a record store of `optimize` or `felixlike tune`.
        target: "cpu", "cuda" or a TVM target.

    Returns:
        The weights, for `FTuner(sia=…)`.

    Raises:
        InvalidOption: The store has too few such timings, or the score does not explain them.
        StoreError: The store cannot be opened.
        UnknownTarget: The target is unknown, or its device is missing.

    Example:
        >>> fx.optimize(model, shapes, planner=dynamic.FTuner(sia=dynamic.fitted_sia("runs.sqlite")))
    """
    target = resolve_target(target)
    with records.open(store, read_only=True) as opened:
        sizes = [programs for programs in _timed(opened, target, device_name(target)) if len(programs) > 1]
    count = sum(map(len, sizes))
    if count < _FEWEST:
        raise InvalidOption(
            f"{store} has {counted(count, 'timing')} to compare of kernels for dynamic sizes on {device_name(target)},"
            f" fewer than {_FEWEST}",
            where="sia",
            remedy="fill it with optimize(model, shapes, store=…) without limits, or give three numbers",
        )
    return fitted(sizes)


def fitted(sizes: Sequence[Sequence[Scored]]) -> Sia:
    """Fit the weights to the timed programs of each size. Raise InvalidOption if no metric grows with the throughput.

    A score compares programs of one size, so the means of each size are subtracted.
    """
    from sklearn.linear_model import LinearRegression

    sia = Sia()
    throughput = _centred([[program.throughput for program in programs] for programs in sizes])
    for _ in range(_ROUNDS):
        metrics = _centred([[program.metrics(sia) for program in programs] for programs in sizes])
        weights = LinearRegression(positive=True, fit_intercept=False).fit(metrics, throughput).coef_
        if not weights.any():
            raise InvalidOption(
                "the timings are no faster where CMR, padding or occupancy are better",
                where="sia",
                remedy="use the weights 1, 1, 1, or the timings themselves with planner='timed'",
            )
        previous, sia = sia, Sia(*map(float, weights))
        if np.allclose((previous.c0, previous.c1, previous.c2), weights):
            break
    return sia


def _centred(sizes: Iterable[Sequence[Any]]) -> Floats:
    """Return the values of all programs minus the mean of their size."""
    return np.concatenate([np.asarray(values) - np.mean(values, axis=0) for values in sizes])


def _timed(store: records.Store, target: Any, name: str) -> Iterator[list[Scored]]:
    """Yield the programs of each size that were timed on a device. name: The device's name in the store."""
    device, kind = target_device(target), kind_of(target).device
    for stored in store.workloads():
        seconds: dict[tuple[int, ...], float] = {}
        for brief in store.briefs(stored.task, device=name):
            if brief.sketch == UKERNELS and 0 < brief.seconds < math.inf:
                seconds[brief.point] = min(brief.seconds, seconds.get(brief.point, math.inf))
        task = restored(stored) if len(seconds) > 1 else None
        operator = None if task is None or kind_of(task.target).device != kind else read_operator(task.module["main"])
        if operator is None:
            continue
        workload = workload_at(operator, ())
        lanes = device.unit.lanes(operator.item_bits) if kind == "cpu" else 1
        kernel_metrics = functools.cache(partial(_metrics, workload, device))
        programs = [
            Scored(tuple(map(kernel_metrics, _tiles(point, workload, lanes, device))), min(seconds.values()) / elapsed)
            for point, elapsed in seconds.items()
        ]
        yield [program for program in programs if program.tiles]


def _tiles(point: tuple[int, ...], workload: Workload, lanes: int, device: Device) -> list[tuple[int, ...]]:
    """Return the uKernels of a program, (reg_i, reg_j) on a CPU, (reg_i, reg_j, smem_i, smem_j, smem_k) on a GPU.

    There are none if the point is no program that covers the workload.
    """
    if device.kind == "cpu":
        if len(point) != 3 or min(point[0], point[1]) < 1:  # a fourth number stands for pairs, which the score ignores
            return []
        vectors, large, small = point
        cover = Program(large, small, vectors).at(workload.i)
        if cover is None:
            return []
        counts = ((cover.large, cover.many), (cover.small, cover.few))
        return [(height, vectors * lanes) for height, count in counts if count]
    half = len(BlockTile.__slots__)
    if len(point) != 2 * half:
        return []
    program = BlockProgram(BlockTile(*point[:half]), BlockTile(*point[half:]) if any(point[half:]) else None)
    return [(t.own_rows, t.own_columns, t.rows, t.columns, t.depth) for t in program.tiles]


def _metrics(workload: Workload, device: Device, tile: tuple[int, ...]) -> Floats:
    """Return CMR, Pad and Occ of a uKernel, for each tile of the second level that it may have: float64[n, 3].

    Tiles that do not fit into a core's memory are left out, unless none does.
    """
    kernels = grown(workload, (tile[0], tile[1])) if len(tile) == 2 else UKernels.of([tile], workloads=1)
    fitting = ~overflows(kernels, device, workload.item_bytes)
    kernels = kernels.taking(fitting) if fitting.any() else kernels
    pad, occ = padding_threshold(kernels, [workload])[:, 0], usage_eff(kernels, [workload], device)[:, 0]
    return np.stack([compute_eff(kernels, workload, device), pad, occ], axis=1)
