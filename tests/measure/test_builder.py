"""A `Builder` alone, and a `BuilderPool` of a builder and a runner of the test."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.faulty import matmul, task_of, tiled
from support.operators import OPERATORS

from felixlike import _tvm
from felixlike.codegen import cuda_toolchain
from felixlike.errors import InvalidSchedule, WorkerFailed
from felixlike.frontend import Task, make_task
from felixlike.hardware import gpu_at_hand, resolve_target
from felixlike.measure import Measurement, Schedulable, Status
from felixlike.measure.check import reference
from felixlike.measure.interface import Results
from felixlike.measure.local import builder as builder_module
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.steps import Steps
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message
from felixlike.measure.pool import BuilderPool

SM_90 = resolve_target("sm_90")
TASK = task_of(matmul(), "matmul")


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    opened = Builder(TASK.target, workers=1)
    with closing(opened.processes):
        yield opened


class Refused:
    def module(self) -> Any:
        raise InvalidSchedule("no such loop", where="here", remedy="another point")


class EchoRunner:
    """A runner that returns the arguments of `stream` as the message of every measurement."""

    devices = frozenset(["a device of its own"])

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        for index, _ in enumerate(candidates):
            yield index, Measurement(Status.CRASHED, message=f"{task.name}, {verify}, {best}")


def test_leaving_a_claim_ends_its_trials(builder: Builder) -> None:
    with builder.claimed():
        trial = builder.begin(7, tiled(), 0)
        assert isinstance(trial, Trial)
        assert trial.index == 7
        assert builder.processes.under_way == {trial}
        with pytest.raises(WorkerFailed, match="another stream"):
            builder.claimed().__enter__()
        during = trial.closed
    assert (during, trial.closed) == (False, True)
    with builder.claimed():
        assert not builder.processes.under_way


def test_a_candidate_without_a_module_needs_no_process(builder: Builder) -> None:
    measurement = builder.begin(0, Refused(), 0)
    assert isinstance(measurement, Measurement)
    assert measurement.status is Status.INVALID
    assert "no such loop" in measurement.message
    assert not builder.processes.under_way


def test_any_runner_makes_a_pool_with_a_builder() -> None:
    with BuilderPool(Builder(TASK.target, workers=1), EchoRunner()) as pool:
        assert pool.devices == {"a device of its own"}
        measurements = pool.measure(TASK, [tiled(), Refused()], verify=False, best=2)
        assert [measurement.message for measurement in measurements] == ["matmul, False, 2.0"] * 2
        assert pool.check(TASK, tiled()).status is Status.OK  # checks run on this machine with every runner
        directory = pool._builder.processes.directory
        assert directory.exists()
    assert not directory.exists()


LARGE = make_task(OPERATORS["conv2d_3x3"](), SM_90, name="conv2d")
GPU = pytest.mark.skipif(not cuda_toolchain(), reason="CUDA code cannot be compiled here")


def computed_by(
    monkeypatch: pytest.MonkeyPatch, task: Task, gpu: tuple[str, str] | None, answers: dict[str, Status]
) -> list[str]:
    """Return the target kinds that a task's reference is run for, in order.

    answers: the status of a run by target kind."""
    monkeypatch.setattr(builder_module, "gpu_at_hand", lambda: gpu)
    kinds: list[str] = []

    def run_alone(_: Builder, module: Any, target: str, memory: int, request: Message) -> Steps[Message]:
        yield from ()
        kind = str(_tvm.Target(target).kind.name)
        kinds.append(kind)
        scheduled = "threadIdx.x" in module.script()
        assert scheduled == (kind == "cuda")
        for row in request["arguments"]:
            if row["save"] is not None:
                np.save(row["save"], np.zeros(row["shape"]))
        return {"status": answers[kind], "message": "", "strange": 0}

    monkeypatch.setattr(Builder, "_run_alone", run_alone)
    builder = Builder(SM_90, workers=1)
    reference_for = partial(builder.reference_for, task, verify=True)
    with closing(builder.processes), reference_for() as first, reference_for() as second:
        assert second is first  # one reference per task
    return kinds


@GPU
@pytest.mark.parametrize(
    ("gpu", "fails", "asked"),
    [
        (("NVIDIA H100", "sm_90"), Status.OK, ["cuda"]),
        (("NVIDIA H100", "sm_90"), Status.OUT_OF_MEMORY, ["cuda", "llvm"]),
        (("NVIDIA A100", "sm_80"), Status.OK, ["llvm"]),
        (None, Status.OK, ["llvm"]),
    ],
)
def test_references_are_computed_on_a_gpu_of_the_targets_architecture(
    monkeypatch: pytest.MonkeyPatch, gpu: tuple[str, str] | None, fails: Status, asked: list[str]
) -> None:
    assert computed_by(monkeypatch, LARGE, gpu, {"cuda": fails, "llvm": Status.OK}) == asked


@GPU
def test_small_references_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(matmul(), SM_90, name="matmul")
    assert computed_by(monkeypatch, task, ("NVIDIA H100", "sm_90"), {"llvm": Status.OK}) == ["llvm"]


@GPU
def test_the_cpu_computes_the_reference_if_the_gpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is reported but missing, so its process fails. The CPU then computes the correct outputs."""
    if gpu_at_hand() is not None:
        pytest.skip("there is one")
    monkeypatch.setattr(reference, "_SIZES", replace(reference._SIZES, on_gpu=0))
    monkeypatch.setattr(builder_module, "gpu_at_hand", lambda: ("NVIDIA H100", "sm_90"))
    kinds: list[str] = []
    build = Builder.build

    def recorded_build(self: Builder, *args: Any, target: str | None = None, **options: Any) -> Trial:
        kinds.append(str(_tvm.Target(target).kind.name))
        return build(self, *args, target=target, **options)

    monkeypatch.setattr(Builder, "build", recorded_build)
    builder = Builder(SM_90, workers=1)
    task = make_task(matmul(), SM_90, name="matmul")
    with closing(builder.processes), builder.reference_for(task, verify=True) as reference_data:
        a, b, c = (np.load(str(f)) for f in (*reference_data.files[:2], reference_data.answers[2]))
    assert kinds == ["cuda", "llvm"]
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-12, atol=1e-12)
