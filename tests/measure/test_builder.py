"""A builder on its own, and a pool of it with another place than this machine or servers."""

from collections.abc import Iterable, Iterator
from contextlib import closing
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
from felixlike.measure.local import builder as workshops
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


class Elsewhere:
    """A place that says of every candidate what it was asked."""

    devices = frozenset(["a device of its own"])

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        for index, _ in enumerate(candidates):
            yield index, Measurement(Status.CRASHED, message=f"{task.name}, {verify}, {best}")


def test_a_claim_ends_what_it_began(builder: Builder) -> None:
    with builder.claimed():
        trial = builder.begin(7, tiled(), 0)
        assert isinstance(trial, Trial)
        assert trial.index == 7
        assert builder.processes.under_way == {trial}
        with pytest.raises(WorkerFailed, match="another stream of this pool is still open"):
            builder.claimed().__enter__()
        during = trial.closed
    assert (during, trial.closed) == (False, True)
    with builder.claimed():
        assert not builder.processes.under_way


def test_a_candidate_without_a_module_needs_no_process(builder: Builder) -> None:
    found = builder.begin(0, Refused(), 0)
    assert isinstance(found, Measurement)
    assert found.status is Status.INVALID
    assert "no such loop" in found.message
    assert not builder.processes.under_way


def test_any_place_makes_a_pool_with_a_workshop() -> None:
    with BuilderPool(Builder(TASK.target, workers=1), Elsewhere()) as pool:
        assert pool.devices == {"a device of its own"}
        found = pool.measure(TASK, [tiled(), Refused()], verify=False, best=2)
        assert [measurement.message for measurement in found] == ["matmul, False, 2.0"] * 2
        assert pool.check(TASK, tiled()).status is Status.OK  # here, whatever the place
        directory = pool._builder.processes.directory
        assert directory.exists()
    assert not directory.exists()


LARGE = make_task(OPERATORS["conv2d_3x3"](), SM_90, name="conv2d")
GPU = pytest.mark.skipif(not cuda_toolchain(), reason="CUDA code cannot be compiled here")


def computed_by(
    monkeypatch: pytest.MonkeyPatch, task: Task, gpu: tuple[str, str] | None, answers: dict[str, Status]
) -> list[str]:
    """The kinds of targets that a task's reference is run for, where each kind answers so."""
    monkeypatch.setattr(workshops, "gpu_at_hand", lambda: gpu)
    asked: list[str] = []

    def alone(_: Builder, module: Any, target: str, memory: int, request: Message) -> Steps[Message]:
        yield from ()
        kind = str(_tvm.Target(target).kind.name)
        asked.append(kind)
        scheduled = "threadIdx.x" in module.script()
        assert scheduled == (kind == "cuda")
        for row in request["arguments"]:
            if row["save"] is not None:
                np.save(row["save"], np.zeros(row["shape"]))
        return {"status": answers[kind], "message": "", "strange": 0}

    monkeypatch.setattr(Builder, "_run_alone", alone)
    builder = Builder(SM_90, workers=1)
    reference_for = partial(builder.reference_for, task, verify=True)
    with closing(builder.processes), reference_for() as first, reference_for() as again:
        assert again is first  # once a task
    return asked


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
def test_references_are_computed_on_the_gpu_where_it_can(
    monkeypatch: pytest.MonkeyPatch, gpu: tuple[str, str] | None, fails: Status, asked: list[str]
) -> None:
    assert computed_by(monkeypatch, LARGE, gpu, {"cuda": fails, "llvm": Status.OK}) == asked


@GPU
def test_small_references_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(matmul(), SM_90, name="matmul")
    assert computed_by(monkeypatch, task, ("NVIDIA H100", "sm_90"), {"llvm": Status.OK}) == ["llvm"]


@GPU
def test_a_gpu_that_fails_in_earnest_leaves_the_reference_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said to be there, it is not: the process that should use it fails, and the answers are right."""
    if gpu_at_hand() is not None:
        pytest.skip("there is one")
    monkeypatch.setattr(reference, "_WORTH", 0)
    monkeypatch.setattr(workshops, "gpu_at_hand", lambda: ("NVIDIA H100", "sm_90"))
    built: list[str] = []
    build = Builder.build

    def watched(self: Builder, *given: Any, target: str | None = None, **extra: Any) -> Trial:
        built.append(str(_tvm.Target(target).kind.name))
        return build(self, *given, target=target, **extra)

    monkeypatch.setattr(Builder, "build", watched)
    builder = Builder(SM_90, workers=1)
    task = make_task(matmul(), SM_90, name="matmul")
    with closing(builder.processes), builder.reference_for(task, verify=True) as found:
        a, b, c = (np.load(str(f)) for f in (*found.files[:2], found.answers[2]))
    assert built == ["cuda", "llvm"]
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-12, atol=1e-12)
