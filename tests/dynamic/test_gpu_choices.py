"""Test what is selected for a GPU: block counts in waves, two uKernels per launch, few kernels, and timings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from schedules import run, without_threads
from support import dynamic_operators as operators

import felixlike as fx
from felixlike import _tvm, codegen, dynamic
from felixlike.codegen import nvrtc
from felixlike.dynamic.align import hardware_align
from felixlike.dynamic.bounds import registers_in_block
from felixlike.dynamic.dispatch import Branch, Leaf, choose, programs_of
from felixlike.dynamic.gpu import plan as planning
from felixlike.dynamic.gpu.emit import emit_blocks, in_order
from felixlike.dynamic.gpu.evolve import _Search, evolved
from felixlike.dynamic.gpu.search import ranked, tree_of
from felixlike.dynamic.gpu.throughput import alone, blocks_held, blocks_of, counted, paired
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.gpu.timing import BlockBench
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.plan import plan_operator
from felixlike.dynamic.planner import DietCode, Timed
from felixlike.dynamic.sia import Sia
from felixlike.dynamic.ukernel import Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.errors import InvalidOption, NoUKernels
from felixlike.hardware import resolve_target, target_device
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import Measurement, Status

_H100, _A100 = (target_device(resolve_target(arch)) for arch in ("sm_90", "sm_80"))
_DIM = fx.Dim("T", range(1, 129))
_GOOD = BlockTile(64, 64, 16, 4, 4, 3)


@pytest.mark.parametrize("device", [_H100, _A100])
def test_aligned_blocks_fit_a_multiprocessor(device: Any) -> None:
    candidates = hardware_align([Workload(1, t, 768, 768) for t in (1, 53, 128)], device)
    threads = (candidates.smem[:, :2] // candidates.reg).prod(axis=1)
    assert ((threads >= 32) & (threads <= 256)).all()
    assert (candidates.reg.prod(axis=1) <= 64).all()
    assert not (768 % candidates.smem[:, 2]).any()
    assert (registers_in_block(candidates, device, 4) <= device.core_registers).all()
    assert {13, 9, 6} <= set(candidates.reg[:, 0].tolist())  # factors of 52 and 54, the neighbours of 53
    small_candidates = hardware_align([Workload(1, 2, 3, 16)], device)  # fewer outputs than threads in a warp
    assert {(1, 1, 2, 4), (2, 1, 2, 4)} <= {
        tuple(row) for row in np.hstack([small_candidates.reg, small_candidates.smem[:, :2]]).tolist()
    }


def test_seconds_grow_in_waves() -> None:
    """A launch with up to one block per multiprocessor takes constant time, and filling a wave and starting another
    takes longer.
    """
    tiles = [_GOOD]
    waves = counted(tiles, _H100)
    blocks_at_once = int(waves.room[0])
    sizes = [
        Workload(blocks, 64, 64, 768)
        for blocks in (1, 132, 132 * blocks_at_once, 132 * blocks_at_once + 1, 132 * 2 * blocks_at_once)
    ]
    one, full, many, more, twice = alone(tiles, waves, sizes, _H100)[0]
    assert blocks_of(tiles, sizes)[0].tolist() == [w.batch for w in sizes]
    assert one == full <= many < more < twice
    assert waves.block(np.asarray([0]))[0] == pytest.approx(waves.steps[0, blocks_at_once] / blocks_at_once)


def test_two_timings_correct_the_predicted_seconds() -> None:
    waves = counted([_GOOD], _H100)
    corrected_waves = replace(waves, one=np.asarray([2.0]), many=np.asarray([1.0]))
    room = int(waves.room[0])
    assert room > 1
    block_counts = np.asarray([[1.0, float(room), 2.0 * room]])
    predicted, corrected = (
        w.seconds(np.asarray([0]), block_counts, np.full((1, 1), 768.0))[0] for w in (waves, corrected_waves)
    )
    launch_seconds = waves.seconds(np.asarray([0]), np.zeros((1, 1)), np.full((1, 1), 768.0))[0, 0]
    assert (corrected[0] - launch_seconds) == pytest.approx(2 * (predicted[0] - launch_seconds))
    assert corrected[1:] == pytest.approx(predicted[1:])


def test_lower_blocks_reduce_the_cost_of_a_partial_wave() -> None:
    """When the rows slightly exceed a full wave, covering the rest with lower blocks is cheaper."""
    tiles = [_GOOD, BlockTile(16, 64, 16, 1, 4, 3)]
    waves = counted(tiles, _H100)
    workload = [Workload(132 * int(waves.room[0]), 80, 64, 768)]
    one_tile = alone(tiles, waves, workload, _H100)[0, 0]
    two_tiles = paired([(0, 1)], tiles, waves, workload, _H100)[0, 0]
    assert two_tiles < one_tile
    assert paired([(0, 1)], tiles, waves, [Workload(1, 64, 64, 768)], _H100)[0, 0] == pytest.approx(
        alone(tiles, waves, [Workload(1, 64, 64, 768)], _H100)[0, 0]
    )


@pytest.mark.parametrize("device", [_H100, _A100])
@pytest.mark.parametrize("func", [operators.dense(768, 2304), operators.scores(192, 64), operators.mixed(192, 64)])
def test_few_kernels_are_nearly_as_fast_as_one_kernel_per_size(func: Any, device: Any) -> None:
    operator = read_operator(func)
    assert operator is not None
    few, _ = workloads_of(operator, [_DIM], 32)
    workloads, sizes = workloads_of(operator, [_DIM], 128)
    ranking = ranked(few, workloads, device, Sia(), lambda tiles: counted(tiles, device))
    assert [stage.name for stage in ranking.stages] == ["HardwareAlign", "CrossPick", "Analysis"]
    assert ranking.seconds.shape == ranking.scores.shape == (len(ranking.programs), 128)
    assert np.isfinite(ranking.scores).any(axis=0).all()
    tree = tree_of(ranking.programs, ranking.seconds, sizes, [w.weight for w in workloads])
    chosen = [choose(tree, size) for size in sizes]
    assert len(programs_of(tree)) <= 6
    seconds_chosen = np.asarray([ranking.seconds[ranking.programs.index(p), n] for n, p in enumerate(chosen)])
    assert (seconds_chosen / ranking.seconds.min(axis=0)).max() <= 1.24
    for program in programs_of(tree):
        assert program.shared_bytes(4) <= device.tile_bytes
        assert len({(tile.columns, tile.threads) for tile in program.tiles}) == 1


def test_the_compilers_report_decides_how_many_blocks_a_multiprocessor_holds() -> None:
    """Registers: 65536 / (8 warps · 32 · 128) = 2 blocks. Shared memory: 228 KiB / (100 + 1) KiB = 2. Warps: 64 / 8."""
    assert _GOOD.threads == 256
    reports = {
        "registers": (Kernel("main_kernel", 128, 0, 1024, 256), 2),
        "shared memory": (Kernel("main_kernel", 32, 0, 100 * 1024, 256), 2),
        "warps": (Kernel("main_kernel", 32, 0, 0, 256), 8),
        "warps, undeclared": (Kernel("main_kernel", 32, 0, 0, 0), 8),
        "nothing fits": (Kernel("main_kernel", 255, 0, 300 * 1024, 256), 1),
    }
    for report, blocks in reports.values():
        assert blocks_held(_GOOD, _H100, report) == blocks
        assert counted([_GOOD], _H100, reports={_GOOD: report}).room.tolist() == [blocks]
    assert counted([_GOOD], _H100).room.tolist() == [blocks_held(_GOOD, _H100)]


class _Pool:
    """A measuring pool whose candidates take the seconds that `rule` returns for them."""

    devices = frozenset({"H100"})

    def __init__(self, rule: Any, kernels: tuple[Kernel, ...] = ()) -> None:
        self.rule, self.kernels = rule, kernels
        self.seen: list[tuple[Any, Any]] = []

    def measure(self, task: Any, candidates: Sequence[Any], **_: Any) -> list[Measurement]:
        self.seen += [(task, candidate) for candidate in candidates]
        return [self._measured(task, candidate) for candidate in candidates]

    def _measured(self, task: Any, candidate: Any) -> Measurement:
        rows = int(task.module["main"].params[0].shape[0])
        seconds = self.rule(candidate.program, rows)
        status = Status.OK if np.isfinite(seconds) else Status.RUN_ERROR
        return Measurement(status, seconds, kernels=self.kernels)


def _job(func: Any, dim: Any, planner: Any = Timed()) -> Any:  # noqa: B008  immutable
    operator = read_operator(func)
    assert operator is not None
    few, _ = workloads_of(operator, [dim], 32)
    return planning._Job(operator, _H100, planner, few, *workloads_of(operator, [dim], 128))


def test_measured_times_override_predictions() -> None:
    """The pool reports that blocks of few rows are fastest and that blocks of 64 threads fail."""

    def rule(program: BlockProgram, rows: int) -> float:
        if program.large.threads == 64:
            return float("inf")
        return 1e-5 * (1 + program.large.rows / 64) * (1 + rows / 128)

    pool = _Pool(rule)
    job = _job(operators.dense(64, 256), fx.Dim("T", range(1, 65)))
    bench = BlockBench(job.operator, resolve_target("sm_90"), pool)  # type: ignore[arg-type]
    plan = planning.measured(job, bench)
    assert plan.measured == bench.used == len(pool.seen) > 50
    for size in (5, 33, 64):
        chosen = choose(plan.tree, [size])
        assert chosen.large.threads != 64
        timed = [rule(c.program, size) for t, c in pool.seen if int(t.module["main"].params[0].shape[0]) == size]
        if timed:
            assert rule(chosen, size) <= 1.06 * min(timed)
    assert -1 <= plan.agreement <= 1
    assert 0 <= plan.among_top <= 1


def test_ukernels_are_timed_with_as_many_blocks_as_the_compiler_reports_to_fit() -> None:
    """Reports of 1 and of 8 blocks per multiprocessor: the second timing is at other sizes, and N is theirs."""
    sizes_timed, held = [], []
    for report in (Kernel("main_kernel", 255, 0, 200 * 1024, 256), Kernel("main_kernel", 32, 0, 1024, 32)):
        pool = _Pool(lambda *_: 1e-5, kernels=(report,))
        job = _job(operators.dense(64, 4096), fx.Dim("T", range(1, 2049)))
        bench = BlockBench(job.operator, resolve_target("sm_90"), pool)  # type: ignore[arg-type]
        ratios = planning._ratios(job, job.ranked(job.waves), bench)
        assert set(bench.reports) == set(ratios)
        assert set(bench.reports.values()) == {report}
        sizes_timed.append([int(task.module["main"].params[0].shape[0]) for task, _ in pool.seen])
        held.append(planning._corrected(job, ratios, bench.reports, list(ratios)).room.tolist())
    assert set(held[0]) == {1}
    assert set(held[1]) == {32}
    assert sum(sizes_timed[1]) > sum(sizes_timed[0])


def _evolved(workloads: list[Workload], **options: Any) -> Any:
    return evolved(workloads, _H100, DietCode(**options), lambda tiles: counted(tiles, _H100))


def test_evolution_finds_faster_blocks_than_sampling() -> None:
    workloads = [Workload(1, t, 768, 768, weight=1 / 8) for t in range(16, 144, 16)]
    sampled = _evolved(workloads, population=64, generations=0)
    better = _evolved(workloads, population=64, generations=4)
    assert better.seconds.min(axis=0).sum() < sampled.seconds.min(axis=0).sum()
    assert (better.seconds.min(axis=0) <= sampled.seconds.min(axis=0)).all()
    assert [stage.name for stage in better.stages] == ["Sampling", "Evolution", "Best of each size"]
    for program in better.programs:
        tile = program.large
        assert program.small is None
        assert 32 <= tile.threads <= 256
        assert tile.sums <= 64
        assert tile.shared_bytes(4) <= _H100.tile_bytes
        assert 768 % tile.depth == 0


def test_evolution_is_reproducible() -> None:
    workloads = [Workload(1, 64, 768, 768)]
    assert _evolved(workloads, population=32).programs == _evolved(workloads, population=32).programs
    assert _evolved(workloads, population=32).programs != _evolved(workloads, population=32, seed=1).programs


def test_mutations_spare_the_threads() -> None:
    search = _Search([Workload(1, 128, 768, 768)], _H100, DietCode())
    changed = 0
    for _ in range(300):
        child = search.mutated(_GOOD)
        if child is None:
            continue
        changed += child != _GOOD
        assert child.rows // child.own_rows == _GOOD.rows // _GOOD.own_rows
        assert child.columns // child.own_columns == _GOOD.columns // _GOOD.own_columns
    assert changed > 50


def test_dietcode_plans_with_and_without_timings() -> None:
    job = _job(operators.dense(64, 256), fx.Dim("T", range(1, 65)), DietCode(population=64))
    pool = _Pool(lambda program, rows: 1e-5 * (1 + abs(program.large.rows - rows) / 64))
    bench = BlockBench(job.operator, resolve_target("sm_90"), pool)  # type: ignore[arg-type]
    plan = planning.measured(job, bench)
    assert plan.measured == len(pool.seen) > 0
    assert np.isnan(plan.among_top)
    target = resolve_target("sm_90")
    unmeasured = plan_operator(
        operators.dense(64, 256), [fx.Dim("T", range(1, 65))], _H100, target, planner=DietCode(population=64)
    )
    assert unmeasured.report.measured == 0
    assert unmeasured.report.stages[0].name == "Sampling"


@pytest.mark.parametrize("options", [{"population": 0}, {"generations": -1}, {"mutation": 1.5}, {"seed": "a"}])
def test_invalid_options_of_dietcode_raise(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        DietCode(**options)


def test_dietcode_is_for_gpus() -> None:
    with pytest.raises(InvalidOption, match="planner: DietCode's search evolves thread blocks of GPUs"):
        dynamic.compile(operators.dense(16, 32), _DIM, planner="dietcode")
    with pytest.raises(InvalidOption, match="sia: the planner 'dietcode' does not use FTuner's score"):
        dynamic.compile(operators.dense(16, 32), _DIM, planner="dietcode", sia=(1, 1, 1))


def test_measuring_raises_if_no_candidate_runs() -> None:
    pool = _Pool(lambda *_: float("inf"))
    job = _job(operators.dense(64, 256), fx.Dim("T", [8, 9]))
    with pytest.raises(NoUKernels, match=r"tried .*: run error"):
        planning.measured(job, BlockBench(job.operator, resolve_target("sm_90"), pool))  # type: ignore[arg-type]


def test_kernels_are_timed_with_fixed_sizes() -> None:
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
    output = run(module, [x, w, b, np.zeros((37, 40), "float32")])[-1]
    np.testing.assert_allclose(output, x @ w.T + b, rtol=1e-4, atol=1e-5)
    assert [tuple(map(int, p.shape)) for p in task.module["main"].params] == [(37, 16), (40, 16), (40,), (37, 40)]


def test_programs_that_spill_registers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are emitted in the order of the tree. In this test every kernel of two uKernels spills."""
    job = _job(operators.dense(768, 2304), _DIM)
    ranking = job.ranked(job.waves)
    emitted_programs: list[list[BlockProgram]] = []

    def kernels(*_: Any) -> tuple[Kernel, ...]:
        names = ["main_kernel", *(f"main_kernel_{n}" for n in range(1, len(emitted_programs[-1])))]
        return tuple(
            Kernel(n, 64, 8 * (p.small is not None), 0, 0) for n, p in zip(names, emitted_programs[-1], strict=True)
        )

    def emitted(operator: Any, tree: Any) -> Any:
        emitted_programs.append(in_order(tree))
        return emit_blocks(operator, tree)

    monkeypatch.setattr(planning, "emit_blocks", emitted)
    monkeypatch.setattr(codegen, "cuda_toolchain", lambda: "nvrtc")
    monkeypatch.setattr(codegen, "cuda_binary", lambda *_: b"")
    monkeypatch.setattr(codegen, "kernels_of", kernels)
    tree = planning._without_spills(job, ranking, resolve_target("sm_90"))
    assert any(program.small is not None for program in emitted_programs[0])
    assert all(program.small is None for program in programs_of(tree))
    assert len(emitted_programs) > 1


@pytest.mark.skipif(nvrtc.library() is None, reason="NVRTC is not on this machine")
def test_compiled_kernels_are_in_the_order_of_the_tree() -> None:
    """Kernels are identified by their numbers of threads, as the compiler reports them."""
    operator = read_operator(operators.dense(64, 96))
    assert operator is not None
    tiles = [BlockTile(16, 32, 16, 4, 4, 2), BlockTile(32, 32, 16, 4, 4, 2), BlockTile(64, 32, 16, 4, 4, 2)]
    programs = [BlockProgram(tiles[n]) for n in (1, 0, 2)]
    tree = Branch(0, 20, Leaf(programs[0]), Branch(0, 64, Leaf(programs[1]), Leaf(programs[2])))
    assert in_order(tree) == programs
    func = emit_blocks(operator, tree).with_attr("global_symbol", "main")
    binary = codegen.cuda_binary(_tvm.IRModule({"main": func}), resolve_target("sm_90"))
    kernels = codegen.kernels_of(binary, "sm_90")
    assert [(k.name, k.threads) for k in kernels] == [
        (name, program.threads)
        for name, program in zip(("main_kernel", "main_kernel_1", "main_kernel_2"), programs, strict=True)
    ]
