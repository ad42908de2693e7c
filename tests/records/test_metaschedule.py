"""MetaSchedule's databases: exported ones compile with TVM's pass; those of its tuner can be imported into a store."""

from __future__ import annotations

import json
import math
import random
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import workloads
from torch import nn

from felixlike import Optimized, _tvm, codegen, optimize, records
from felixlike.costmodel import CostModel
from felixlike.errors import StoreError
from felixlike.frontend import Task, import_model, make_task
from felixlike.hardware import host_device, resolve_target
from felixlike.measure import MeasurePool, Status
from felixlike.records import metaschedule as metaschedule_file
from felixlike.records.metaschedule import RECORDS, WORKLOADS, export_database, import_database
from felixlike.search import make_strategy
from felixlike.spaces import metaschedule
from felixlike.symbolic import sketches
from felixlike.tuning import Budget, How, Session, choose

ms = _tvm.ms


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Softmax(-1)).eval()


X = torch.linspace(-1, 1, 64).reshape(4, 16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "s.sqlite"


@pytest.fixture(scope="module")
def tuned(store: Path) -> Optimized:
    return optimize(model(), X, trials=20, space="default", strategy="random", store=store, progress=False)


def test_an_exported_database_compiles_the_model(tuned: Optimized, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "database"
    with records.open(store) as opened:
        result = export_database(opened, folder)
        right = sum(r.measurement.status is Status.OK for r in opened.measurements())
    assert result.records == right > 10
    assert result.workloads == 2
    assert not result.passed_over
    imported = import_model(model(), X)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    with imported.target, database:
        applied = _tvm.relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(imported.module)
    scheduled = [
        f for f in applied.functions.values() if isinstance(f, _tvm.PrimFunc) and f.attrs.get("tirx.is_scheduled")
    ]
    assert len(scheduled) == 2
    _, executable = codegen.compile_relax(applied, imported.target)
    machine = _tvm.relax.VirtualMachine(executable, _tvm.device_of(imported.target))
    (output,) = [machine["main"](X)]
    tensor = output if isinstance(output, torch.Tensor) else output[0]
    torch.testing.assert_close(tensor, tuned(X), rtol=1e-5, atol=1e-6)
    with records.open(store) as opened, pytest.raises(StoreError, match=f"{folder}: .*already"):
        export_database(opened, folder)
    with records.open() as new:
        imported_back = import_database(new, folder)
        assert not imported_back.passed_over
        # Each record is exported in four forms.
        assert (imported_back.records, imported_back.known) == (right, 3 * right)
        assert {_timed(r) for r in new.measurements()} == {
            _timed(r) for r in _all(store) if r.measurement.status is Status.OK
        }
        assert import_database(new, folder).records == 0


def test_an_exported_database_works_with_tvms_prepacking(tuned: Optimized, store: Path, tmp_path: Path) -> None:
    """`AttachAttrLayoutFreeBuffers` marks constants, including biases. None is packed at runtime."""
    folder = tmp_path / "database"
    with records.open(store) as opened:
        export_database(opened, folder, best=1)
    imported = import_model(model(), X)
    t = _tvm.relax.transform
    marked = t.AttachAttrLayoutFreeBuffers()(imported.module)
    assert sorted(list(f.attrs["layout_free_buffers"]) for f in _primfuncs(marked)) == [[], [1, 2]]
    with imported.target, ms.database.JSONDatabase(work_dir=str(folder)):
        applied = t.MetaScheduleApplyDatabase(enable_warning=True)(marked)
    assert all(f.attrs.get("tirx.is_scheduled") for f in _primfuncs(applied))
    with imported.target:
        passes = [t.SplitLayoutRewritePreproc(), t.FoldConstant(), t.DeadCodeElimination()]
        packed = _tvm.transform.Sequential(passes)(applied)
    assert len(_primfuncs(packed)) == 2
    assert packed.script().count("R.call_tir(") == 2
    _, executable = codegen.compile_relax(packed, imported.target)
    output = _tvm.relax.VirtualMachine(executable, _tvm.device_of(imported.target))["main"](X)
    tensor = output if isinstance(output, torch.Tensor) else output[0]
    torch.testing.assert_close(tensor, tuned(X), rtol=1e-5, atol=1e-6)


def _primfuncs(module: Any) -> list[Any]:
    return [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]


def _timed(record: records.Record) -> tuple[Any, ...]:
    measurement = record.measurement
    return record.task, record.sketch, record.point, measurement.seconds, measurement.repeats, repr(measurement.spread)


def _all(path: Path) -> list[records.Record]:
    with records.open(path) as store:
        return list(store.measurements())


def test_only_the_best_records_of_a_device_and_target_are_exported(tmp_path: Path) -> None:
    task = _task()
    sketch = sketches(task)[0]
    with records.open() as store:
        for i, point in enumerate(sketch.sample(6, 0).tolist()):
            record = records.make_record(task, sketch.key, point, _ok(1e-3 * (6 - i)))
            store.append(task, record, sketch)
        assert export_database(store, tmp_path / "best", best=2).records == 2
        seconds = {line[1][1][0] for line in map(json.loads, (tmp_path / "best" / RECORDS).read_text().splitlines())}
        assert seconds == {1e-3, 2e-3}
        assert export_database(store, tmp_path / "abroad", device="another").records == 0
        other = export_database(store, tmp_path / "gpu", target="sm_90", device="another")
        assert other.passed_over == {"of another target": 1}


@pytest.mark.parametrize("most", [0, 2**12, 2**14])
def test_an_export_to_a_full_disk_is_an_error(tmp_path: Path, most: int) -> None:
    """TVM, which writes the files, does not notice it."""
    task = _task()
    sketch = sketches(task)[0]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with records.open() as store:
        for i, point in enumerate(sketch.sample(6, 0).tolist()):
            store.append(task, records.make_record(task, sketch.key, point, _ok(1e-3 * (6 - i))), sketch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(StoreError, match=rf"{tmp_path}/full: .*disk has space"):
                export_database(store, tmp_path / "full")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list((tmp_path / "full").iterdir())
        assert export_database(store, tmp_path / "full").records == 6


def _ok(seconds: float) -> Any:
    from felixlike.measure import Measurement

    return Measurement(Status.OK, seconds, (seconds, seconds), 0.0, 1e-7)


def _task() -> Task:
    return make_task(workloads.matmul(12, 10, 18), resolve_target("cpu"), name="dense")


@pytest.fixture(scope="module")
def tuners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a run of MetaSchedule's tuner with made-up times."""
    folder = tmp_path_factory.mktemp("tuner")
    task = _task()

    @_tvm.tvm.ir.utils.derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc,name-defined]
        def build(self, build_inputs: Any) -> Any:
            return [ms.builder.BuilderResult(f"{tempfile.mkdtemp()}/unused", None) for _ in build_inputs]

    @_tvm.tvm.ir.utils.derived_object
    class Future(ms.runner.PyRunnerFuture):  # type: ignore[misc,name-defined]
        def __init__(self, seconds: float | None) -> None:
            super().__init__()
            self.seconds = seconds

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            if self.seconds is None:
                return ms.runner.RunnerResult(None, "made up")
            return ms.runner.RunnerResult([self.seconds, self.seconds * 1.25], None)

    @_tvm.tvm.ir.utils.derived_object
    class Runner(ms.runner.PyRunner):  # type: ignore[misc,name-defined]
        def run(self, runner_inputs: Any) -> Any:
            return [Future(None if i in (3, 5, 7) else 1e-6 * (i + 1)) for i, _ in enumerate(runner_inputs)]

    with metaschedule.without_tensor_intrinsics():
        ms.tune_tir(
            task.module,
            task.target,
            str(folder),
            max_trials_global=24,
            num_trials_per_iter=12,
            builder=Builder(),
            runner=Runner(),
            cost_model="random",
            space=_tvm.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"),
            strategy=ms.search_strategy.EvolutionarySearch(
                population_size=32, init_measured_ratio=0.0, init_min_unmeasured=16, genetic_num_iters=2
            ),
            seed=1,
        )
    return folder


def test_a_run_continues_an_imported_database_of_metaschedule(tuners: Path, tmp_path: Path) -> None:
    task, path = _task(), tmp_path / "s.sqlite"
    lines = [json.loads(line) for line in (tuners / RECORDS).read_text().splitlines()]
    with records.open(path) as store:
        result = import_database(store, tuners)
        imported = list(store.measurements(task))
    # One mutator writes annotations that none of our sketches has.
    assert result.records == len(imported) >= len(lines) - 4
    assert sum(result.passed_over.values()) + result.records + result.known == len(lines)
    assert {r.device for r in imported} == {host_device().name}
    errors = sum(r.measurement.status is Status.RUN_ERROR for r in imported)  # 6 were written
    assert 2 <= 6 - sum(result.passed_over.values()) <= errors <= 6
    by_key = {sketch.key: sketch for sketch in sketches(task)}
    for record in imported[:6]:
        trace = by_key[record.sketch].schedule(record.point).trace  # TVM applies the point unchanged
        assert by_key[record.sketch].point(trace) == record.point
    with records.open(path) as store, MeasurePool(task.target) as pool:
        session = Session([task], strategy=make_strategy("random"), model=CostModel(), pool=pool, store=store, seed=0)
        budget = Budget(trials=0)
        session.run(budget)
        (state,) = session.states
        assert budget.spent_trials == 0
        assert {(r.sketch, r.point) for r in imported} == state.known.seen
        assert state.best is not None
        choice = choose(state, CostModel(), pool)
    assert choice.how is How.MEASURED
    assert choice.seconds == min(r.measurement.seconds for r in imported)
    assert choice.error is not None
    assert choice.error < 1e-5


def test_torn_and_damaged_lines_are_counted(tuners: Path, tmp_path: Path) -> None:
    text = (tuners / RECORDS).read_bytes()
    lines = text.splitlines(keepends=True)
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / WORKLOADS).write_bytes((tuners / WORKLOADS).read_bytes())
    (folder / RECORDS).write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    with pytest.raises(_tvm.TVM_ERRORS):
        ms.database.JSONDatabase(work_dir=str(folder))  # this is why we read the files ourselves
    with records.open() as store:
        undamaged = import_database(store, tuners)
    with records.open() as store:
        result = import_database(store, folder)
        assert result.passed_over["damaged lines"] == 1
        assert result.records >= undamaged.records - 1
    bad = ["null", "[]", "[0]", "[0, [[], [1], null, []]]", "[7, [[[],[]], [1.0], null, []]]", "{}", "\0", "[" * 9999]
    bad.append("[0, [[[],[]], [1.0], [1], []]]")  # no target
    (folder / RECORDS).write_text("\n".join(bad) + "\n")
    with records.open() as store:
        result = import_database(store, folder)
        assert result.records == store.count() == 0
        assert sum(result.passed_over.values()) == len(bad)
    (folder / WORKLOADS).write_text('["1", "AAAA"]\n')
    (folder / RECORDS).write_bytes(text)
    with records.open() as store:
        result = import_database(store, folder)
    assert result.passed_over == {"of a workload that TVM cannot read": len(lines)}


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError, KeyError])
def test_errors_of_felixlike_are_raised(
    tuners: Path, tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_kind(*_: Any, **__: Any) -> Any:
        raise kind("ours")

    with records.open() as store:
        assert import_database(store, tuners).records
        for name in ("make_task", "sketches"):
            with monkeypatch.context() as patch:
                patch.setattr(metaschedule_file, name, raise_kind)
                with pytest.raises(kind, match="ours"):
                    import_database(store, tuners)
                with pytest.raises(kind, match="ours"):
                    export_database(store, tmp_path / name)


def test_records_with_a_changed_byte_are_imported_or_skipped(tuners: Path, tmp_path: Path) -> None:
    rng, line = random.Random(0), (tuners / RECORDS).read_bytes().splitlines()[0]
    changed = []
    for _ in range(200):
        mutated = bytearray(line)
        mutated[rng.randrange(len(mutated))] = rng.choice(b'0123456789[],"nb\xff')
        changed.append(bytes(mutated).replace(b"\n", b" "))
    (tmp_path / WORKLOADS).write_bytes((tuners / WORKLOADS).read_bytes())
    (tmp_path / RECORDS).write_bytes(b"\n".join(changed) + b"\n")
    task = _task()
    with records.open() as store:
        result = import_database(store, tmp_path)
        assert result.records + result.known + sum(result.passed_over.values()) == 200
        by_key = {sketch.key: sketch for sketch in sketches(task)}
        for record in store.measurements():
            assert by_key[record.sketch].in_range(record.point)
            assert math.isfinite(record.measurement.seconds) or record.measurement.status is Status.RUN_ERROR


def test_other_targets_are_skipped_and_missing_folders_are_errors(tuners: Path, tmp_path: Path) -> None:
    target = _tvm.Target({"kind": "llvm", "num-cores": 64, "mcpu": "znver3"})
    with records.open() as store:
        result = import_database(store, tuners, target=target, device="another")
        assert result.records == 0
        assert set(result.passed_over) == {"of another target"}
        with pytest.raises(StoreError, match=r"nowhere: database_workload\.json "):
            import_database(store, tmp_path / "nowhere")


def test_every_sketch_reads_the_points_of_its_own_traces() -> None:
    for func in (workloads.matmul(12, 10, 18), workloads.conv2d(4, 6, 8), workloads.softmax(8, 12)):
        task = make_task(func, resolve_target("cpu"), name="x")
        for sketch in sketches(task):
            for point in sketch.sample(3, 0).tolist():
                trace = sketch.schedule(point).trace
                workload = ms.database.Workload(task.module)
                for form in (trace, trace.simplified(False)):
                    line = ms.database.TuningRecord(form, workload, None, task.target, None).as_json()
                    assert sketch.codec.point(line[0]) == tuple(point)
                others = [s for s in sketches(task) if s.key != sketch.key]
                assert all(other.codec.point(line[0]) is None for other in others)
