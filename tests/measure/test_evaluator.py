from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan

import pytest

from benchmarks.measuring import replay
from felixlike.measure import EVALUATORS, Timing
from felixlike.measure.evaluator import better, cumulative_variation, evaluate, seconds_of, variation
from felixlike.measure.measurement import Status
from felixlike.measure.outcome import measurement

TIMING = Timing(batch_seconds=1e-3, spread=0.1, min_batches=3, max_batches=20, max_seconds=0.2, slow_factor=3.0)


@dataclass
class Clock:
    """A fake timer. A call takes `seconds(batch)` seconds; batches are numbered from 0."""

    seconds: Callable[[int], float]
    numbers: list[int] = field(default_factory=list)

    def __call__(self, number: int) -> float:
        self.numbers.append(number)
        return self.seconds(len(self.numbers) - 1)


def test_a_steady_candidate_is_timed_in_few_batches_that_fill_a_millisecond() -> None:
    clock = Clock(lambda _: 1e-5)
    assert evaluate(clock, TIMING) == (1e-5,) * 3
    assert clock.numbers == [1, 100, 100, 100]


def test_a_long_call_is_a_batch_by_itself() -> None:
    clock = Clock(lambda _: 0.01)
    assert evaluate(clock, TIMING) == (0.01,) * 3
    assert clock.numbers == [1, 1, 1]


def test_an_unsteady_candidate_is_timed_to_the_limit() -> None:
    clock = Clock(lambda batch: 1e-5 * (1 + batch % 2))
    assert len(evaluate(clock, TIMING)) == 20


def test_noise_in_the_first_batches_costs_more_batches() -> None:
    clock = Clock(lambda batch: 2e-3 if batch == 0 else 1e-3)
    repeats = evaluate(clock, TIMING)
    assert 3 < len(repeats) < 30
    assert len(repeats) == 20 or variation(repeats) < 0.1


def test_total_time_is_limited() -> None:
    assert len(evaluate(Clock(lambda _: 0.15), TIMING)) == 2
    assert len(evaluate(Clock(lambda _: 5.0), TIMING)) == 1


def test_a_candidate_far_behind_the_best_is_not_timed_further() -> None:
    assert len(evaluate(Clock(lambda _: 0.031), TIMING, best=0.010)) == 1
    assert len(evaluate(Clock(lambda _: 0.029), TIMING, best=0.010)) == 3
    fast = Clock(lambda _: 1e-5)
    assert evaluate(fast, TIMING, best=1e-6) == (1e-5,) * 8
    assert fast.numbers == [1, *[100] * 8]  # one call alone is too short to compare with the best


def test_disturbed_first_batches_do_not_end_the_timing() -> None:
    disturbed = Clock(lambda batch: 0.006 if batch < 3 else 0.0013)
    assert len(evaluate(disturbed, TIMING, best=0.0015)) > 4


def test_calls_shorter_than_the_clock_resolution_take_0_s() -> None:
    assert evaluate(Clock(lambda _: 0.0), Timing(max_batches=3)) == (0.0, 0.0, 0.0)


def test_variation_is_the_relative_standard_deviation() -> None:
    assert isnan(variation([1.0]))
    assert variation([1.0, 1.0]) == 0.0
    assert variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)


def test_the_cumulative_variation_is_that_of_the_performance_so_far() -> None:
    assert isnan(cumulative_variation([1.0]))
    assert cumulative_variation([2.0, 2.0, 2.0]) == pytest.approx(0.0)
    performances = [1 / 1.0, 2 / 4.0, 3 / 6.0]  # of 1, 2 and 3 batches
    assert cumulative_variation([1.0, 3.0, 2.0]) == pytest.approx(variation(performances))
    assert cumulative_variation([0.0, 0.0]) >= 0.0  # shorter than the clock's resolution


def test_adatunes_evaluator_stops_by_the_cumulative_performance() -> None:
    adaptive = EVALUATORS["adaptive"]
    steady = Clock(lambda _: 1e-4)
    assert evaluate(steady, adaptive) == (1e-4,) * 2
    assert steady.numbers == [1, 50, 50]
    unsteady = evaluate(Clock(lambda batch: 1e-4 * (1 + batch % 2)), adaptive)
    assert 2 < len(unsteady) < 10
    assert cumulative_variation(unsteady) < 0.1 < cumulative_variation(unsteady[:-1])
    batches = Timing(batch_calls=50, min_batches=2, max_batches=10, slow_factor=1e9)
    assert len(evaluate(Clock(lambda batch: 1e-4 * (1 + batch % 2)), batches)) == 10  # the batches go on to differ


def test_the_deterministic_evaluator_makes_all_calls() -> None:
    clock = Clock(lambda _: 1e-4)
    assert len(evaluate(clock, EVALUATORS["deterministic"], best=1e-6)) == 10
    assert sum(clock.numbers[1:]) == 500
    assert len(evaluate(Clock(lambda _: 0.021), EVALUATORS["deterministic"])) == 5  # the limit of 5 s


def test_the_statistic_of_the_batches_is_an_option() -> None:
    repeats = (1.0, 2.0, 3.0, 6.0)
    mean = Timing(statistic="mean")
    assert seconds_of(repeats, Timing()) == 1.75
    assert seconds_of(repeats, mean) == 3.0
    answer = {"status": Status.OK, "repeats": repeats}
    assert measurement(answer, build_seconds=0.0, run_seconds=0.0).seconds == 1.75
    assert measurement(answer, build_seconds=0.0, run_seconds=0.0, timing=mean).seconds == 3.0
    assert better(2.5, repeats, Timing()) == 1.75
    assert better(2.5, repeats, mean) == 2.5


@pytest.mark.parametrize("seconds", [1e-5, 1.5e-3])
def test_replaying_a_recorded_measurement_gives_the_same_repeats(seconds: float) -> None:
    times = [seconds * (1.3 if batch == 1 else 1.0) for batch in range(50)]
    recorded = evaluate(
        Clock(times.__getitem__), Timing(batch_seconds=1e-3, spread=1e-9, max_batches=40, max_seconds=9)
    )
    assert len(recorded) == 40
    replayed = replay(recorded, TIMING)
    assert 3 < len(replayed) < 20
    assert replayed == evaluate(Clock(times.__getitem__), TIMING)
    assert len(replay(recorded, TIMING, best=seconds / 9)) == 8
