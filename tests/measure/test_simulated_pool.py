"""`SimulatedPool` predicts the measurements of a device that is not present."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from felixlike.measure.simulated import simulated_pool as simulated_module
from felixlike.measure.simulated.surrogate import DEVICES, features_of, row_of, surrogate_of
from felixlike.records import make_record
from felixlike.search import Candidate, Space, make_strategy
from felixlike.tuning import Budget, Session

NOISE_QUANTILE = 0.8653380
"""Quantile of the noise that is drawn for the untuned matrix product on the H100, in [0, 1]."""


def task_for(device: str, func: Any = None, *, constants: tuple[int, ...] = ()) -> Task:
    func = workloads.matmul() if func is None else func
    return make_task(func, resolve_target(device), name="matmul", constants=constants)


def sampled(task: Task, count: int, *, space: str = "default") -> list[Candidate]:
    sketch = max(Space(task, space).symbolic, key=lambda s: len(s.variables))
    return [Candidate(sketch, tuple(point), math.nan, "random") for point in sketch.sample(count, 0).tolist()]


def assert_same(got: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare measurements, whose spreads may be NaN, which differs from itself."""
    assert list(map(repr, got)) == list(map(repr, expected))


@dataclass(frozen=True)
class Refused:
    """A candidate that has no module."""

    def module(self) -> Any:
        raise InvalidSchedule("TVM refused it", where="test")


@dataclass(frozen=True)
class ModuleOnly:
    """A candidate that has only a module."""

    candidate: Candidate

    def module(self) -> Any:
        return self.candidate.module()


@pytest.mark.parametrize("device", ["simulated:cpu", "simulated:emerald-rapids", "simulated:h100"])
def test_times_differ_between_candidates_and_are_reproducible(device: str) -> None:
    task = task_for(device)
    candidates = sampled(task, 20)
    with (
        SimulatedPool(device) as pool,
        SimulatedPool(task.target) as same_seed,
        SimulatedPool(device, seed=1) as other_seed,
    ):
        measurements = pool.measure(task, candidates)
        assert_same(same_seed.measure(task, candidates[::-1])[::-1], measurements)
        assert_same(pool.measure(task, map(ModuleOnly, candidates)), measurements)
        other_measurements = other_seed.measure(task, candidates)
    seconds = [measurement.seconds for measurement in measurements]
    assert {measurement.status for measurement in measurements} == {Status.OK}
    assert len(set(seconds)) > 10
    assert all(1e-7 < s < 10 for s in seconds)
    assert all(m.repeats == (m.seconds,) and m.error is None for m in measurements)
    # Another seed draws other noise around the same times.
    assert seconds != [measurement.seconds for measurement in other_measurements]
    assert np.median(np.abs(np.log(seconds) - np.log([m.seconds for m in other_measurements]))) < 0.1


def test_noise_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for("simulated:h100")
    original = surrogate_of(SIMULATED["h100"])
    without_noise, with_noise = replace(original, noise=np.zeros(2)), replace(original, noise=np.array([0.0, 1.0]))
    seconds = []
    for surrogate in (without_noise, with_noise):
        monkeypatch.setattr(simulated_module, "surrogate_of", lambda _, replacement=surrogate: replacement)
        seconds.append(SimulatedPool("simulated:h100").measure(task, [Untuned(task)])[0].seconds)
    assert math.log(seconds[1] / seconds[0]) == pytest.approx(NOISE_QUANTILE, abs=1e-6)


def test_simulated_records_and_pools_are_marked_as_simulated() -> None:
    task = task_for("simulated:h100")
    with SimulatedPool("simulated:h100") as pool:
        (measurement,) = pool.measure(task, [Untuned(task)])
        assert pool.devices == {"simulated NVIDIA H100"}
    record = make_record(task, "none", (), measurement)
    assert record.device == "simulated NVIDIA H100"
    assert task.key != task_for("sm_90").key
    with pytest.raises(UnknownTarget, match=r"MeasurePool: .*simulated AMD EPYC"):
        MeasurePool("simulated:cpu")
    with pytest.raises(UnknownTarget, match=r"RpcPool: .*simulated AMD EPYC"):
        RpcPool("simulated:cpu", tracker="127.0.0.1:9", key="cpu")
    with pytest.raises(UnknownTarget, match=r"SimulatedPool: cpu .*simulated:cpu"):
        SimulatedPool("cpu")


def test_refused_candidates_are_invalid_and_others_keep_their_index() -> None:
    task = task_for("simulated:cpu")
    first, second = sampled(task, 2)
    with SimulatedPool("simulated:cpu") as pool:
        results = list(pool.stream(task, [first, Refused(), second]))
        expected = pool.measure(task, [first, second])
        assert pool.measure(task, []) == []
    assert [index for index, _ in results] == [0, 1, 2]
    assert results[1][1].status is Status.INVALID
    assert "TVM refused it" in results[1][1].message
    assert_same([results[0][1], results[2][1]], expected)


def test_candidates_that_would_take_too_long_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_for("simulated:cpu")
    candidates = sampled(task, 2)
    surrogate = surrogate_of(SIMULATED["zen5"])
    assert surrogate.most_build < 10
    assert surrogate_of(SIMULATED["h100"]).most_build == math.inf
    for impatient, built, ran in (
        (replace(surrogate, most_build=0.0), 10.0, 0.0),
        (replace(surrogate, most_call=0.0), 0.0, 10.0),
    ):
        monkeypatch.setattr(simulated_module, "surrogate_of", lambda _, replacement=impatient: replacement)
        for measurement in SimulatedPool("simulated:cpu").measure(task, candidates):
            assert (measurement.status, measurement.seconds) == (Status.TIMEOUT, math.inf)
            assert "10.0 s" in measurement.message
            assert measurement.run_seconds == ran
            assert measurement.build_seconds == built or built == 0.0 < measurement.build_seconds < 10.0


def padded() -> tuple[Task, list[Candidate]]:
    """Return candidates whose packing block also pads; TVM's feature extractor cannot read such a block."""
    task = task_for("simulated:cpu", workloads.matmul(197, 96, 53), constants=(1,))
    return task, sampled(task, 8, space="own")


def test_constants_that_are_packed_and_padded_have_features() -> None:
    task, candidates = padded()
    schedules = [candidate.sketch.schedule(candidate.point) for candidate in candidates]
    assert all("layout_rewrite_preproc" in schedule.mod.script() for schedule in schedules)
    rows = [row_of(features, task.flops, 0) for features in features_of(task, schedules) if features is not None]
    assert len(rows) == len(schedules)
    assert all(np.isfinite(row).all() for row in rows)


def test_candidates_without_features_are_build_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    task, candidates = padded()
    monkeypatch.setattr("felixlike.measure.simulated.surrogate.packing_blocks", lambda _: [])
    first, second = SimulatedPool("simulated:cpu").measure(task, [candidates[0], Untuned(task)])
    assert first.status is Status.BUILD_ERROR
    assert "feature extractor" in first.message
    assert second.status is Status.OK


def test_a_closed_pool_and_bad_input() -> None:
    task = task_for("simulated:cpu")
    pool = SimulatedPool("simulated:cpu")
    with pytest.raises(InvalidOption, match=r"SimulatedPool: .*\btask\b.*an int\."):
        pool.stream(3, [])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"\bcandidate\b.*an int\..*Untuned"):
        pool.measure(task, [3])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match=r"\bseed\b.* -1\."):
        SimulatedPool("simulated:cpu", seed=-1)
    pool.close()
    pool.close()
    with pytest.raises(WorkerFailed, match="the pool is closed"):
        pool.stream(task, [])


def test_outputs_are_checked_on_the_host_cpu() -> None:
    task = task_for("simulated:cpu")
    (candidate,) = sampled(task, 1)
    with SimulatedPool("simulated:cpu") as pool:
        checked = pool.check(task, candidate)
        assert checked.status is Status.OK
        assert checked.error is not None
        assert checked.error < 1e-5
        ((index, other),) = pool.checks([(task, candidate)])
        assert (index, getattr(other, "status", None)) == (0, Status.OK)
    with (
        SimulatedPool("simulated:h100") as pool,
        pytest.raises(UnknownTarget, match="compiled for simulated NVIDIA H100"),
    ):
        pool.check(task_for("simulated:h100"), candidate)


def test_a_search_for_a_simulated_gpu_is_reproducible(tmp_path: Path) -> None:
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
    assert bests(tmp_path / "one.sqlite") == first  # the store has all measurements, under the same device name


def test_every_device_has_a_surrogate() -> None:
    assert {name for names in DEVICES.values() for name in names} == set(SIMULATED)
    for device in SIMULATED.values():
        noise = surrogate_of(device).noise
        np.testing.assert_allclose(noise, -noise[::-1], atol=1e-6)
        assert (np.diff(noise) >= 0).all()
        assert np.abs(noise[len(noise) // 4]) < 0.05
