from dataclasses import dataclass, field
from typing import Any

from felixlike.measure.limits import Timing
from felixlike.measure.local.interleaved_timing import interleave, without_turn
from felixlike.measure.measurement import Status

TIMING = Timing(batch_seconds=1e-3, turns=4, close=1.3)


@dataclass
class Waiting:
    """A trial that has been timed and waits for interleaved timing.  dies: the turn in which its process ends."""

    index: int
    seconds: float
    log: list[tuple[int, str]]
    dies: int = 99
    lost: bool = False
    closed: bool = False
    calls: list[int] = field(default_factory=list)

    def pause(self) -> None:
        self.log.append((self.index, "pause"))

    def resume(self) -> None:
        self.log.append((self.index, "resume"))

    def run(self, request: dict[str, Any], _: float) -> dict[str, Any]:
        self.calls.append(request["calls"])
        if len(self.calls) > self.dies:
            return {"status": Status.CRASHED, "message": "gone", "elapsed": 0.0}
        return {"status": Status.OK, "repeats": [self.seconds] * 2, "elapsed": 0.5}

    @property
    def answer(self) -> dict[str, Any]:
        return {"status": Status.OK, "repeats": (self.seconds,), "elapsed": 1.0}


def run(trial: Any, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    answer: dict[str, Any] = trial.run(request, seconds)
    return answer


def interleaved(*trials: Waiting) -> dict[int, dict[str, Any]]:
    answered: Any = [(trial, trial.answer) for trial in trials]
    return {trial.index: answer for trial, answer in interleave(answered, TIMING, 1.0, run)}


def test_good_candidates_are_timed_in_turns_and_paused_between() -> None:
    log: list[tuple[int, str]] = []
    answers = interleaved(Waiting(0, 1e-4, log), Waiting(1, 1.2e-4, log), Waiting(2, 2e-4, log))
    assert [i for i, action in log if action == "resume"] == [0, 1] * 4
    assert log[1::2] == [(i, "pause") for i, _ in log[::2]]
    assert [len(answers[i]["repeats"]) for i in range(3)] == [9, 9, 1]
    assert answers[0]["elapsed"] == 3.0


def test_a_turn_has_as_many_calls_as_a_batch() -> None:
    first = Waiting(0, 1e-4, [])
    interleaved(first, Waiting(1, 1e-4, []))
    assert first.calls == [10] * 4


def test_a_single_good_candidate_is_not_timed_again() -> None:
    log: list[tuple[int, str]] = []
    assert len(interleaved(Waiting(0, 1e-4, log), Waiting(1, 2e-4, log))[0]["repeats"]) == 1
    assert not log


def test_a_candidate_that_dies_fails_unless_its_server_died() -> None:
    answers = interleaved(Waiting(0, 1e-4, [], dies=2), Waiting(1, 1e-4, []), Waiting(2, 1e-4, [], dies=1, lost=True))
    assert answers[0]["status"] is Status.CRASHED
    assert "repeats" not in answers[0]
    assert len(answers[1]["repeats"]) == 9
    assert len(answers[2]["repeats"]) == 3


def test_failures_are_returned_unchanged() -> None:
    wrong = {"status": Status.WRONG, "error": 1.0, "message": "", "elapsed": 1.0}
    answered: Any = [(Waiting(0, 1.0, []), wrong)]
    assert interleave(answered, TIMING, 1.0, run) == answered


def test_without_turn_returns_slow_and_surplus_candidates() -> None:
    trials = [Waiting(i, seconds, []) for i, seconds in enumerate((1e-4, 1.2e-4, 1.1e-4, 3e-4))]
    answered: Any = [(trial, trial.answer) for trial in trials]
    assert [trial.index for trial in without_turn(answered, TIMING, 8)] == [3]
    assert [trial.index for trial in without_turn(answered, TIMING, 2)] == [1, 3]
    assert len(without_turn(answered, Timing(turns=0), 8)) == 4


def test_closed_processes_are_not_timed_again() -> None:
    closed = Waiting(1, 1e-4, [], closed=True)
    interleaved(Waiting(0, 1e-4, []), closed, Waiting(2, 1e-4, []))
    assert not closed.calls
