"""What is chosen for a GPU: waves of blocks, two uKernels a launch, few kernels; and timings that change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from schedules import run, without_threads
from support import dynamic_operators as operators

import felixlike as fx
from felixlike import _tvm, codegen
from felixlike.codegen import nvrtc
from felixlike.dynamic.align import hardware_align
from felixlike.dynamic.bounds import registers_in_block
from felixlike.dynamic.dispatch import Branch, Leaf, choose, programs_of
from felixlike.dynamic.gpu import plan as planning
from felixlike.dynamic.gpu.emit import emit_blocks, in_order
from felixlike.dynamic.gpu.search import ranked, tree_of
from felixlike.dynamic.gpu.throughput import MANY, alone, blocks_of, counted, paired
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.gpu.timing import BlockBench
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.sia import Sia
from felixlike.dynamic.ukernel import Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.errors import NoUKernels
from felixlike.hardware import resolve_target, target_device
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import Measurement, Status

_H100, _A100 = (target_device(resolve_target(arch)) for arch in ("sm_90", "sm_80"))
_DIM = fx.Dim("T", range(1, 129))
_GOOD = BlockTile(64, 64, 16, 4, 4, 3)


@pytest.mark.parametrize("device", [_H100, _A100])
def test_aligned_blocks_fit_a_multiprocessor(device: Any) -> None:
    found = hardware_align([Workload(1, t, 768, 768) for t in (1, 53, 128)], device)
    threads = (found.smem[:, :2] // found.reg).prod(axis=1)
    assert ((threads >= 32) & (threads <= 256)).all()
    assert (found.reg.prod(axis=1) <= 64).all()
    assert not (768 % found.smem[:, 2]).any()
    assert (registers_in_block(found, device, 4) <= device.core_registers).all()
    assert {13, 9, 6} <= set(found.reg[:, 0].tolist())  # factors of 52 and 54
    small = hardware_align([Workload(1, 2, 3, 16)], device)  # fewer outputs than a warp has threads
    assert {(1, 1, 2, 4), (2, 1, 2, 4)} <= {tuple(row) for row in np.hstack([small.reg, small.smem[:, :2]]).tolist()}


def test_seconds_grow_in_waves() -> None:
    """As many blocks as multiprocessors take as long as one; one more takes longer, once their room is full."""
    tile = [_GOOD]
    waves = counted(tile, _H100)
    room = int(waves.room[0])
    sizes = [Workload(blocks, 64, 64, 768) for blocks in (1, 132, 132 * room, 132 * room + 1, 132 * 2 * room)]
    one, full, many, more, twice = alone(tile, waves, sizes, _H100)[0]
    assert blocks_of(tile, sizes)[0].tolist() == [w.batch for w in sizes]
    assert one == full <= many < more < twice
    assert waves.block(np.asarray([0]))[0] == pytest.approx(waves.steps[0, room] / room)


def test_two_timings_correct_what_is_counted() -> None:
    waves = counted([_GOOD], _H100)
    twice = replace(waves, one=np.asarray([2.0]), many=np.asarray([1.0]))
    at = np.asarray([[1.0, float(MANY), 2.0 * MANY]])
    plain, corrected = (w.seconds(np.asarray([0]), at, np.full((1, 1), 768.0))[0] for w in (waves, twice))
    start = waves.seconds(np.asarray([0]), np.zeros((1, 1)), np.full((1, 1), 768.0))[0, 0]
    assert (corrected[0] - start) == pytest.approx(2 * (plain[0] - start))
    assert corrected[1:] == pytest.approx(plain[1:])


def test_lower_blocks_begin_where_multiprocessors_are_idle() -> None:
    """Rows that fill a wave and a bit: the bit is cheaper with lower blocks."""
    tiles = [_GOOD, BlockTile(16, 64, 16, 1, 4, 3)]
    waves = counted(tiles, _H100)
    workload = [Workload(132 * int(waves.room[0]), 80, 64, 768)]
    alone_ = alone(tiles, waves, workload, _H100)[0, 0]
    both = paired([(0, 1)], tiles, waves, workload, _H100)[0, 0]
    assert both < alone_
    assert paired([(0, 1)], tiles, waves, [Workload(1, 64, 64, 768)], _H100)[0, 0] == pytest.approx(
        alone(tiles, waves, [Workload(1, 64, 64, 768)], _H100)[0, 0]
    )


@pytest.mark.parametrize("device", [_H100, _A100])
@pytest.mark.parametrize("func", [operators.dense(768, 2304), operators.scores(192, 64), operators.mixed(192, 64)])
def test_few_kernels_serve_all_sizes_nearly_as_well_as_one_each(func: Any, device: Any) -> None:
    operator = read_operator(func)
    assert operator is not None
    few, _ = workloads_of(operator, [_DIM], 32)
    workloads, sizes = workloads_of(operator, [_DIM], 128)
    found = ranked(few, workloads, device, Sia(), lambda tiles: counted(tiles, device))
    assert [stage.name for stage in found.stages] == ["HardwareAlign", "CrossPick", "SetBound", "Analysis"]
    assert found.seconds.shape == found.scores.shape == (len(found.programs), 128)
    assert np.isfinite(found.scores).any(axis=0).all()
    tree = tree_of(found.programs, found.seconds, sizes, [w.weight for w in workloads])
    chosen = [choose(tree, size) for size in sizes]
    assert len(programs_of(tree)) <= 6
    taken = np.asarray([found.seconds[found.programs.index(p), n] for n, p in enumerate(chosen)])
    assert (taken / found.seconds.min(axis=0)).max() <= 1.24
    for program in programs_of(tree):
        assert program.shared_bytes(4) <= device.tile_bytes
        assert len({(tile.columns, tile.threads) for tile in program.tiles}) == 1


class _Pool:
    """Candidates take what a rule says of them; each is run as it is, its threads made serial, where that is asked."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        self.seen: list[tuple[Any, Any]] = []

    def measure(self, task: Any, candidates: Sequence[Any], **_: Any) -> list[Measurement]:
        self.seen += [(task, candidate) for candidate in candidates]
        return [self._measured(task, candidate) for candidate in candidates]

    def _measured(self, task: Any, candidate: Any) -> Measurement:
        rows = int(task.module["main"].params[0].shape[0])
        seconds = self.rule(candidate.program, rows)
        return Measurement(Status.OK if np.isfinite(seconds) else Status.RUN_ERROR, seconds)


def _job(func: Any, dim: Any) -> Any:
    operator = read_operator(func)
    assert operator is not None
    few, _ = workloads_of(operator, [dim], 32)
    return planning._Job(operator, _H100, Sia(), few, *workloads_of(operator, [dim], 128))


def test_timings_decide() -> None:
    """A pool by whose clock blocks of few rows are best, whatever is counted, and one kind of block fails."""

    def rule(program: BlockProgram, rows: int) -> float:
        if program.large.threads == 64:
            return float("inf")
        return 1e-5 * (1 + program.large.rows / 64) * (1 + rows / 128)

    pool = _Pool(rule)
    job = _job(operators.dense(64, 256), fx.Dim("T", range(1, 65)))
    bench = BlockBench(job.operator, resolve_target("sm_90"), pool)  # type: ignore[arg-type]
    found = planning.measured(job, bench)
    assert found.measured == bench.measured == len(pool.seen) > 50
    for size in (5, 33, 64):
        chosen = choose(found.tree, [size])
        assert chosen.large.threads != 64
        timed = [rule(c.program, size) for t, c in pool.seen if int(t.module["main"].params[0].shape[0]) == size]
        if timed:
            assert rule(chosen, size) <= 1.06 * min(timed)
    assert -1 <= found.agreement <= 1
    assert 0 <= found.among_top <= 1


def test_where_nothing_runs_it_is_said() -> None:
    pool = _Pool(lambda *_: float("inf"))
    job = _job(operators.dense(64, 256), fx.Dim("T", [8, 9]))
    with pytest.raises(NoUKernels, match="that were tried runs: run error"):
        planning.measured(job, BlockBench(job.operator, resolve_target("sm_90"), pool))  # type: ignore[arg-type]


def test_what_is_timed_is_the_kernel_at_fixed_sizes() -> None:
    pool = _Pool(lambda *_: 1e-6)
    operator = read_operator(operators.dense(16, 40))
    assert operator is not None
    bench = BlockBench(operator, resolve_target("sm_90"), pool)  # type: ignore[arg-type]
    program = BlockProgram(BlockTile(16, 16, 8, 4, 4, 2), BlockTile(8, 16, 8, 2, 4, 2))
    assert bench.seconds([(program, (37,)), (program, (5,)), (program, (37,))]).tolist() == [1e-6] * 3
    assert len({task.key for task, _ in pool.seen}) == 2
    task, candidate = pool.seen[0]
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype("float32") for shape in ((37, 16), (40, 16), (40,)))
    module = without_threads(candidate.module())
    found = run(module, [x, w, b, np.zeros((37, 40), "float32")])[-1]
    np.testing.assert_allclose(found, x @ w.T + b, rtol=1e-4, atol=1e-5)
    assert [tuple(map(int, p.shape)) for p in task.module["main"].params] == [(37, 16), (40, 16), (40,), (37, 40)]


def test_programs_that_spill_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have the order of the tree; here all of two uKernels spill."""
    job = _job(operators.dense(768, 2304), _DIM)
    found = job.ranked(job.waves)
    asked: list[list[BlockProgram]] = []

    def kernels(*_: Any) -> tuple[Kernel, ...]:
        names = ["main_kernel", *(f"main_kernel_{n}" for n in range(1, len(asked[-1])))]
        return tuple(Kernel(n, 64, 8 * (p.small is not None), 0, 0) for n, p in zip(names, asked[-1], strict=True))

    def emitted(operator: Any, tree: Any) -> Any:
        asked.append(in_order(tree))
        return emit_blocks(operator, tree)

    monkeypatch.setattr(planning, "emit_blocks", emitted)
    monkeypatch.setattr(codegen, "cuda_toolchain", lambda: "nvrtc")
    monkeypatch.setattr(codegen, "cuda_binary", lambda *_: b"")
    monkeypatch.setattr(codegen, "kernels_of", kernels)
    tree = planning._without_spills(job, found, resolve_target("sm_90"))
    assert any(program.small is not None for program in asked[0])
    assert all(program.small is None for program in programs_of(tree))
    assert len(asked) > 1


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not on this machine")
def test_kernels_are_those_of_the_tree_in_order() -> None:
    """By their threads, as the compiler has them."""
    operator = read_operator(operators.dense(64, 96))
    assert operator is not None
    tiles = [BlockTile(16, 32, 16, 4, 4, 2), BlockTile(32, 32, 16, 4, 4, 2), BlockTile(64, 32, 16, 4, 4, 2)]
    programs = [BlockProgram(tiles[n]) for n in (1, 0, 2)]
    tree = Branch(0, 20, Leaf(programs[0]), Branch(0, 64, Leaf(programs[1]), Leaf(programs[2])))
    assert in_order(tree) == programs
    func = emit_blocks(operator, tree).with_attr("global_symbol", "main")
    binary = codegen.cuda_binary(_tvm.IRModule({"main": func}), resolve_target("sm_90"))
    found = codegen.kernels_of(binary, "sm_90")
    assert [(k.name, k.threads) for k in found] == [
        (name, program.threads)
        for name, program in zip(("main_kernel", "main_kernel_1", "main_kernel_2"), programs, strict=True)
    ]
