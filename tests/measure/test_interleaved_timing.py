from dataclasses import dataclass, field
from typing import Any

from felixlike.measure.limits import Timing
from felixlike.measure.local.interleaved_timing import interleave, without_turn
from felixlike.measure.measurement import Status

TIMING = Timing(batch_seconds=1e-3, turns=4, close=1.3)


@dataclass
class Waiting:
    """A trial that has been timed.  dies: the turn in which its process ends."""

    index: int
    seconds: float
    log: list[tuple[int, str]]
    dies: int = 99
    lost: bool = False
    closed: bool = False
    asked: list[int] = field(default_factory=list)

    def pause(self) -> None:
        self.log.append((self.index, "pause"))

    def resume(self) -> None:
        self.log.append((self.index, "resume"))

    def run(self, request: dict[str, Any], _: float) -> dict[str, Any]:
        self.asked.append(request["calls"])
        if len(self.asked) > self.dies:
            return {"status": Status.CRASHED, "message": "gone", "elapsed": 0.0}
        return {"status": Status.OK, "repeats": [self.seconds] * 2, "elapsed": 0.5}

    @property
    def answer(self) -> dict[str, Any]:
        return {"status": Status.OK, "repeats": (self.seconds,), "elapsed": 1.0}


def run(trial: Any, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = trial.run(request, seconds)
    return found


def turns(*trials: Waiting) -> dict[int, dict[str, Any]]:
    given: Any = [(trial, trial.answer) for trial in trials]
    return {trial.index: answer for trial, answer in interleave(given, TIMING, 1.0, run)}


def test_good_candidates_are_timed_again_one_after_the_other_and_wait_paused() -> None:
    log: list[tuple[int, str]] = []
    found = turns(Waiting(0, 1e-4, log), Waiting(1, 1.2e-4, log), Waiting(2, 2e-4, log))
    assert [i for i, what in log if what == "resume"] == [0, 1] * 4
    assert log[1::2] == [(i, "pause") for i, _ in log[::2]]
    assert [len(found[i]["repeats"]) for i in range(3)] == [9, 9, 1]
    assert found[0]["elapsed"] == 3.0


def test_as_many_calls_as_fill_a_batch() -> None:
    first = Waiting(0, 1e-4, [])
    turns(first, Waiting(1, 1e-4, []))
    assert first.asked == [10] * 4


def test_one_good_candidate_needs_no_turns() -> None:
    log: list[tuple[int, str]] = []
    assert len(turns(Waiting(0, 1e-4, log), Waiting(1, 2e-4, log))[0]["repeats"]) == 1
    assert not log


def test_a_candidate_that_dies_has_failed_unless_its_server_died() -> None:
    found = turns(Waiting(0, 1e-4, [], dies=2), Waiting(1, 1e-4, []), Waiting(2, 1e-4, [], dies=1, lost=True))
    assert found[0]["status"] is Status.CRASHED
    assert "repeats" not in found[0]
    assert len(found[1]["repeats"]) == 9
    assert len(found[2]["repeats"]) == 3


def test_failures_are_passed_on() -> None:
    wrong = {"status": Status.WRONG, "error": 1.0, "message": "", "elapsed": 1.0}
    given: Any = [(Waiting(0, 1.0, []), wrong)]
    assert interleave(given, TIMING, 1.0, run) == given


def test_processes_that_will_take_no_turn_need_not_wait() -> None:
    trials = [Waiting(i, seconds, []) for i, seconds in enumerate((1e-4, 1.2e-4, 1.1e-4, 3e-4))]
    given: Any = [(trial, trial.answer) for trial in trials]
    assert [trial.index for trial in without_turn(given, TIMING, 8)] == [3]
    assert [trial.index for trial in without_turn(given, TIMING, 2)] == [1, 3]
    assert len(without_turn(given, Timing(turns=0), 8)) == 4


def test_closed_processes_take_no_turn() -> None:
    closed = Waiting(1, 1e-4, [], closed=True)
    turns(Waiting(0, 1e-4, []), closed, Waiting(2, 1e-4, []))
    assert not closed.asked
