"""Test FTuner's compile stage: the formula of each stage, and how thresholds are relaxed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felixlike.dynamic.align import column_tiles, depth_tiles, factors, hardware_align, row_tiles
from felixlike.dynamic.analysis import analyse, compute_eff, memory_time
from felixlike.dynamic.bounds import registers_in_block, set_bound
from felixlike.dynamic.crosspick import Stride, blocks_of, cross_pick, usage_eff
from felixlike.dynamic.padding import padding_threshold
from felixlike.dynamic.stages import compile_stage
from felixlike.dynamic.ukernel import UKernels, Workload
from felixlike.errors import NoUKernels
from felixlike.hardware import Device, described, resolve_target, target_device

_CPU = described("zen4")
_WORKLOAD = st.builds(
    Workload, st.integers(1, 8), st.integers(1, 130), st.integers(1, 300), st.integers(1, 300), st.sampled_from([4, 8])
)


def _kernels(*rows: tuple[int, int, int, int, int], workloads: int = 1) -> UKernels:
    columns = np.asarray(rows, dtype=np.int64)
    empty = np.full((len(rows), workloads), np.nan)
    return UKernels(columns[:, :2], columns[:, 2:], empty, empty, empty, np.ones(empty.shape, dtype=np.bool_))


def test_primes_take_the_factors_of_their_neighbours() -> None:
    assert row_tiles(53, _CPU) == [1, 2, 3, 4, 6, 9, 13, 18, 26, 27]
    assert row_tiles(12, _CPU) == [1, 2, 3, 4, 6, 12]
    assert row_tiles(2, _CPU) == [1, 2]
    assert row_tiles(64, _CPU)[-1] == 32  # limited by the number of registers


def test_tiles_are_multiples_of_vectors_and_transactions() -> None:
    assert column_tiles(40, _CPU, 4) == [16, 32, 48]
    assert column_tiles(40, _CPU, 8) == [8, 16, 24, 32, 40]
    assert all(depth % 8 == 0 for depth in depth_tiles(768, 4))
    assert all(depth % 4 == 0 for depth in depth_tiles(768, 8))
    assert depth_tiles(7, 4) == [7]


@given(st.integers(1, 3000))
def test_factors_divide(number: int) -> None:
    assert factors(number) == [f for f in range(1, number + 1) if number % f == 0]


@settings(deadline=None, max_examples=30)
@given(_WORKLOAD)
def test_aligned_tiles_grow_from_register_tiles(workload: Workload) -> None:
    candidates = hardware_align([workload], _CPU)
    assert len(candidates) > 0
    assert len(np.unique(np.concatenate([candidates.reg, candidates.smem], axis=1), axis=0)) == len(candidates)
    assert not (candidates.smem[:, :2] % candidates.reg).any()
    assert not (workload.k % candidates.smem[:, 2]).any()


@settings(deadline=None, max_examples=30)
@given(_WORKLOAD)
def test_padding_and_occupancy_equal_their_definitions(workload: Workload) -> None:
    """The values equal Eq. 2 and 3, computed by counting."""
    candidates = hardware_align([workload], _CPU)
    pad, occ = padding_threshold(candidates, [workload])[:, 0], usage_eff(candidates, [workload], _CPU)[:, 0]
    for row in range(0, len(candidates), max(1, len(candidates) // 7)):
        i, j, k = (
            -(-e // t) * t for e, t in zip((workload.i, workload.j, workload.k), candidates.smem[row], strict=True)
        )
        base = workload.i * workload.k + workload.j * workload.k + workload.i * workload.j
        assert pad[row] == pytest.approx(base / (i * k + j * k + i * j))
        blocks = workload.batch * (i // candidates.smem[row, 0]) * (j // candidates.smem[row, 1])
        assert occ[row] == pytest.approx(blocks / (-(-blocks // _CPU.cores) * _CPU.cores))
    assert ((pad > 0) & (pad <= 1) & (occ > 0) & (occ <= 1)).all()


def test_cross_pick_moves_its_thresholds_in_46_steps() -> None:
    steps = Stride().pairs()
    assert steps[0] == (0.5, 0.95)
    assert steps[1] == (0.51, 0.949)
    assert steps[-1] == (0.95, 0.905)
    assert len(steps) == 46


@settings(deadline=None, max_examples=20)
@given(st.lists(_WORKLOAD, min_size=1, max_size=3))
def test_cross_pick_keeps_tiles_that_pass_a_step(workloads: list[Workload]) -> None:
    device = replace(_CPU, cores=7)
    aligned = hardware_align(workloads, device)
    picked = cross_pick(aligned, workloads, device)
    expected = np.zeros(picked.fits.shape, dtype=np.bool_)
    for epsilon, lam in Stride().pairs():
        expected |= (picked.pad >= epsilon) & (picked.occ >= lam)
    assert (picked.fits == expected).all()
    assert picked.fits.any(axis=1).all()


def test_tiles_that_overflow_the_cache_are_filtered_out() -> None:
    small = replace(_CPU, l2_bytes=16 * 2**10)
    picked = cross_pick(hardware_align([Workload(1, 64, 768, 768)], small), [Workload(1, 64, 768, 768)], small)
    i, j, k = picked.smem.T
    assert len(picked) > 0
    assert ((i * k + j * k) * 4 <= 8 * 2**10).all()


def test_registers_bound_tiles() -> None:
    """Eq. 4: 14 × 2 vectors and 3 more need 31 registers, and 15 × 2 vectors exceed the limit."""
    kernels = _kernels((14, 32, 14, 32, 64), (15, 32, 15, 32, 64), (1, 128, 1, 128, 64))
    assert registers_in_block(kernels, _CPU, 4).tolist() == [31, 33, 17]
    assert set_bound(kernels, [Workload(1, 128, 768, 64)], _CPU).reg.tolist() == [[14, 32], [1, 128]]


def test_registers_of_a_gpu_are_shared_by_its_threads() -> None:
    gpu = target_device(resolve_target("sm_80"))
    kernels = _kernels((8, 8, 128, 128, 8), (16, 16, 256, 256, 8))
    assert registers_in_block(kernels, gpu, 4).tolist() == [(64 + 16) * 256, (256 + 16) * 256]
    assert set_bound(kernels, [Workload(1, 4096, 4096, 768)], gpu).reg.tolist() == [[8, 8]]


def test_analysis_filters_by_blocks_and_arithmetic() -> None:
    device = replace(_CPU, cores=8)
    workload = Workload(1, 64, 256, 768)
    kernels = _kernels((8, 32, 64, 256, 768), (8, 32, 8, 32, 768))
    assert blocks_of(kernels, workload).tolist() == [1, 64]
    assert analyse(kernels, [workload], device, psi=0.1).smem.tolist() == [[8, 32, 768]]
    assert len(analyse(kernels, [workload], device, psi=1e6)) == 0
    assert (memory_time(kernels, workload, device) > 0).all()
    slower = replace(device, memory_bandwidth=device.memory_bandwidth / 1000)
    assert (compute_eff(kernels, workload, slower) < compute_eff(kernels, workload, device)).all()


def test_all_stages_count_their_kernels() -> None:
    workloads = [Workload(1, t, 2304, 768) for t in (1, 5, 53, 128)]
    kernels, stages = compile_stage(workloads, _CPU)
    assert [stage.name for stage in stages] == ["HardwareAlign", "CrossPick", "SetBound", "Analysis"]
    counts = [stage.kernels for stage in stages]
    assert counts[0] > counts[1] > counts[2] >= counts[3] == len(kernels) > 0
    assert kernels.fits.any(axis=0).all()
    assert np.isfinite(kernels.cmr).all()
    listed = kernels.as_list()
    assert len(listed) == len(kernels)
    assert all(0 < k.padding_threshold <= 1 and 0 < k.usage_eff <= 1 and k.compute_eff > 0 for k in listed)
    assert "uKernels" in str(stages[0])
    assert "pad 1.00" in str(max(listed, key=lambda k: k.padding_threshold))


def test_thresholds_are_relaxed_if_no_kernel_passes() -> None:
    """One row of few columns does not fill eight cores and is limited by memory bandwidth."""
    device = replace(_CPU, cores=8, memory_bandwidth=1e8)
    kernels, stages = compile_stage([Workload(1, 1, 16, 768), Workload(1, 128, 4096, 768)], device)
    assert [stage.relaxed for stage in stages] == [0, 1, 0, 2]
    assert kernels.fits.any(axis=0).all()


@pytest.mark.parametrize(("changes", "stage"), [({"l2_bytes": 8}, "CrossPick"), ({"register_bytes": 64}, "SetBound")])
def test_a_stage_without_candidates_is_named_in_the_error(changes: dict[str, int], stage: str) -> None:
    device: Device = replace(_CPU, **changes)  # type: ignore[arg-type]
    with pytest.raises(NoUKernels, match=f"{stage} .*uKernels"):
        compile_stage([Workload(1, 64, 768, 768)], device)


def test_gpus_have_uKernels() -> None:  # noqa: N802  the paper's word
    kernels, stages = compile_stage([Workload(1, 64, 2304, 768)], target_device(resolve_target("sm_90")))
    assert len(kernels) == stages[-1].kernels > 0
