"""A pool that answers as a device which is not there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import workloads

from felixlike import records
from felixlike.costmodel import CostModel
from felixlike.errors import InvalidOption, InvalidSchedule, UnknownTarget, WorkerFailed
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import SIMULATED, resolve_target
from felixlike.measure import MeasurePool, RpcPool, SimulatedPool, Status, Untuned
from felixlike.measure.simulated import simulated_pool as room
from felixlike.measure.simulated.surrogate import DEVICES, features_of, row_of, surrogate_of
from felixlike.records import make_record
from felixlike.search import Candidate, Space, make_strategy
from felixlike.tuning import Budget, Session

PLACE = 0.8653380
"""Where the noise of the untuned product on the H100 is drawn from, between least and most."""


def task_for(device: str, func: Any = None, *, constants: tuple[int, ...] = ()) -> Task:
    func = workloads.matmul() if func is None else func
    return make_task(func, resolve_target(device), name="matmul", constants=constants)


def drawn(task: Task, count: int, *, space: str = "default") -> list[Candidate]:
    sketch = max(Space(task, space).understood, key=lambda s: len(s.variables))
    return [Candidate(sketch, tuple(point), math.nan, "random") for point in sketch.sample(count, 0).tolist()]


@dataclass(frozen=True)
class Refused:
    """A candidate that has no module."""

    def module(self) -> Any:
        raise InvalidSchedule("TVM refused it", where="test")


@dataclass(frozen=True)
class Alike:
    """A candidate of which nothing but its module is known."""

    candidate: Candidate

    def module(self) -> Any:
        return self.candidate.module()


@pytest.mark.parametrize("device", ["simulated:cpu", "simulated:emerald-rapids", "simulated:h100"])
def test_candidates_have_times_that_differ_and_come_again(device: str) -> None:
    task = task_for(device)
    candidates = drawn(task, 20)
    with SimulatedPool(device) as pool, SimulatedPool(task.target) as same, SimulatedPool(device, seed=1) as other:
        found = pool.measure(task, candidates)
        assert same.measure(task, candidates[::-1])[::-1] == found
        assert pool.measure(task, map(Alike, candidates)) == found
        again = other.measure(task, candidates)
    seconds = [measurement.seconds for measurement in found]
    assert {measurement.status for measurement in found} == {Status.OK}
    assert len(set(seconds)) > 10
    assert all(1e-7 < s < 10 for s in seconds)
    assert all(m.repeats == (m.seconds,) and m.error is None for m in found)
    # Another seed draws other noise around the same times.
    assert seconds != [measurement.seconds for measurement in again]
    assert np.median(np.abs(np.log(seconds) - np.log([m.seconds for m in again]))) < 0.1


def test_noise_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for("simulated:h100")
    whole = surrogate_of(SIMULATED["h100"])
    exact, drawn_from = replace(whole, noise=np.zeros(2)), replace(whole, noise=np.array([0.0, 1.0]))
    seconds = []
    for surrogate in (exact, drawn_from):
        monkeypatch.setattr(room, "surrogate_of", lambda _, found=surrogate: found)
        seconds.append(SimulatedPool("simulated:h100").measure(task, [Untuned(task)])[0].seconds)
    assert math.log(seconds[1] / seconds[0]) == pytest.approx(PLACE, abs=1e-6)


def test_records_and_pools_never_pass_for_those_of_a_real_device() -> None:
    task = task_for("simulated:h100")
    with SimulatedPool("simulated:h100") as pool:
        (measurement,) = pool.measure(task, [Untuned(task)])
        assert pool.devices == {"simulated NVIDIA H100"}
    record = make_record(task, "none", (), measurement)
    assert record.device == "simulated NVIDIA H100"
    assert task.key != task_for("sm_90").key
    with pytest.raises(UnknownTarget, match="is simulated: it has no processor to measure on"):
        MeasurePool("simulated:cpu")
    with pytest.raises(UnknownTarget, match=r"RpcPool: .* is simulated"):
        RpcPool("simulated:cpu", tracker="127.0.0.1:9", key="cpu")
    with pytest.raises(UnknownTarget, match=r"cpu is a real device\. use one of simulated:cpu"):
        SimulatedPool("cpu")


def test_what_tvm_refuses_is_invalid_and_the_others_keep_their_places() -> None:
    task = task_for("simulated:cpu")
    first, second = drawn(task, 2)
    with SimulatedPool("simulated:cpu") as pool:
        found = list(pool.stream(task, [first, Refused(), second]))
        alone = pool.measure(task, [first, second])
        assert pool.measure(task, []) == []
    assert [place for place, _ in found] == [0, 1, 2]
    assert found[1][1].status is Status.INVALID
    assert "TVM refused it" in found[1][1].message
    assert [found[0][1], found[2][1]] == alone


def test_candidates_that_would_take_too_long_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for("simulated:cpu")
    candidates = drawn(task, 2)
    whole = surrogate_of(SIMULATED["zen5"])
    assert whole.most_build < 10
    assert surrogate_of(SIMULATED["h100"]).most_build == math.inf
    for impatient, built, ran in (
        (replace(whole, most_build=0.0), 10.0, 0.0),
        (replace(whole, most_call=0.0), 0.0, 10.0),
    ):
        monkeypatch.setattr(room, "surrogate_of", lambda _, found=impatient: found)
        for found in SimulatedPool("simulated:cpu").measure(task, candidates):
            assert (found.status, found.seconds) == (Status.TIMEOUT, math.inf)
            assert found.message == "simulated: stopped after 10.0 s"
            assert found.run_seconds == ran
            assert found.build_seconds == built or built == 0.0 < found.build_seconds < 10.0


def padded() -> tuple[Task, list[Candidate]]:
    """Candidates that pack and pad a constant in one, which TVM's extractor does not read."""
    task = task_for("simulated:cpu", workloads.matmul(197, 96, 53), constants=(1,))
    return task, drawn(task, 8, space="own")


def test_constants_that_are_packed_and_padded_are_read_too() -> None:
    task, candidates = padded()
    schedules = [candidate.sketch.schedule(candidate.point) for candidate in candidates]
    assert all("layout_rewrite_preproc" in schedule.mod.script() for schedule in schedules)
    rows = [row_of(found, task.flops, 0) for found in features_of(task, schedules) if found is not None]
    assert len(rows) == len(schedules)
    assert all(np.isfinite(row).all() for row in rows)


def test_what_tvm_cannot_describe_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    task, candidates = padded()
    monkeypatch.setattr("felixlike.measure.simulated.surrogate._readable", lambda schedule: schedule)
    first, second = SimulatedPool("simulated:cpu").measure(task, [candidates[0], Untuned(task)])
    assert first.status is Status.BUILD_ERROR
    assert "feature extractor cannot read it" in first.message
    assert second.status is Status.OK


def test_a_closed_pool_and_bad_input() -> None:
    task = task_for("simulated:cpu")
    pool = SimulatedPool("simulated:cpu")
    with pytest.raises(InvalidOption, match="task is an int"):
        pool.stream(3, [])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="is no candidate"):
        pool.measure(task, [3])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="seed is -1"):
        SimulatedPool("simulated:cpu", seed=-1)
    pool.close()
    pool.close()
    with pytest.raises(WorkerFailed, match="the pool is closed"):
        pool.stream(task, [])


def test_answers_are_checked_by_the_cpu_that_there_is() -> None:
    task = task_for("simulated:cpu")
    (candidate,) = drawn(task, 1)
    with SimulatedPool("simulated:cpu") as pool:
        checked = pool.check(task, candidate)
        assert checked.status is Status.OK
        assert checked.error is not None
        assert checked.error < 1e-5
        ((place, other),) = pool.checks([(task, candidate)])
        assert (place, getattr(other, "status", None)) == (0, Status.OK)
    with SimulatedPool("simulated:h100") as pool, pytest.raises(UnknownTarget, match="nothing that is compiled for it"):
        pool.check(task_for("simulated:h100"), candidate)


def test_a_search_for_a_gpu_needs_none(tmp_path: Path) -> None:
    def bests(path: Path) -> list[float]:
        task = task_for("simulated:h100")
        with SimulatedPool("simulated:h100") as pool, records.open(path) as store:
            session = Session([task], strategy=make_strategy("random"), model=CostModel(), pool=pool, store=store)
            session.run(Budget(rounds=None, trials=24))
            (summary,) = store.summary()
            assert (summary.device, summary.measurements) == ("simulated NVIDIA H100", 24)
        return [seconds for seconds, _ in session.states[0].known.best]

    first = bests(tmp_path / "one.sqlite")
    assert len(first) > 12
    assert bests(tmp_path / "two.sqlite") == first
    assert bests(tmp_path / "one.sqlite") == first  # all is known already, under the same device


def test_every_device_has_a_surrogate() -> None:
    assert {name for names in DEVICES.values() for name in names} == set(SIMULATED)
    for device in SIMULATED.values():
        noise = surrogate_of(device).noise
        np.testing.assert_allclose(noise, -noise[::-1], atol=1e-6)
        assert (np.diff(noise) >= 0).all()
        assert np.abs(noise[len(noise) // 4]) < 0.05
