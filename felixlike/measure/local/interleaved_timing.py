"""Time the good candidates of a batch again, interleaved, so that disturbances affect all of them alike.

The input is candidates that have been timed once and wait in their processes. The output is their answers with more
repeats.
"""

from collections.abc import Callable, Sequence

from felixlike.measure.evaluator import calls_of_a_batch, seconds_of
from felixlike.measure.limits import Timing
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message


def interleave(
    timed: Sequence[tuple[Trial, Message]],
    timing: Timing,
    seconds: float,
    run: Callable[[Trial, Message, float], Message | None],
) -> list[tuple[Trial, Message]]:
    """Time the trials near the fastest one again, in `timing.turns` rounds.

    Args:
        timed: Paused trials, each with the answer to its run.
        timing: Number of rounds, and which trials are near the fastest one.
        seconds: Time limit of a trial's turn, s.
        run: Sends a request to a trial and returns its answer within `seconds`, or None at the deadline, which ends the
            rounds.

    Returns:
        The same trials with their answers, which have more repeats or a failure. A trial whose fork server dies keeps
        its repeats.
    """
    answers = {trial.index: (trial, answer) for trial, answer in timed}
    active = [trial.index for trial, _ in _near(timed, timing) if not trial.closed]
    if len(active) < 2:
        return list(answers.values())
    calls = {i: calls_of_a_batch(answers[i][1]["repeats"], timing) for i in active}
    for _ in range(timing.turns):
        for index in tuple(active):
            trial, answer = answers[index]
            trial.resume()
            more = run(trial, {"calls": calls[index]}, seconds)
            trial.pause()
            if more is None:
                return list(answers.values())
            if more["status"] is Status.OK:
                repeats = (*answer["repeats"], *more["repeats"])
                answers[index] = trial, {**answer, "repeats": repeats, "elapsed": answer["elapsed"] + more["elapsed"]}
                continue
            active.remove(index)
            if not trial.lost:
                answers[index] = trial, more
    return list(answers.values())


def without_turn(timed: Sequence[tuple[Trial, Message]], timing: Timing, room: int) -> list[Trial]:
    """Return the trials that will not be timed again, so their processes can end.

    Args:
        timed: Trials of the batch so far with their answers.
        timing: Which trials are near the fastest one.
        room: Number of trials that may wait, so that their buffers do not fill the memory; the fastest ones do.
    """
    waiting = [trial for trial, _ in _near(timed, timing)[:room]] if timing.turns else []
    return [trial for trial, _ in timed if not any(trial is other for other in waiting)]


def _near(timed: Sequence[tuple[Trial, Message]], timing: Timing) -> list[tuple[Trial, Message]]:
    """Return the trials near the fastest one, fastest first, without calls longer than `timing.max_seconds`."""
    lowest = {trial.index: seconds_of(answer["repeats"], timing) for trial, answer in timed if answer.get("repeats")}
    if not lowest:
        return []
    most = min(timing.close * min(lowest.values()), timing.max_seconds)
    near = [pair for pair in timed if lowest.get(pair[0].index, most + 1) <= most]
    return sorted(near, key=lambda pair: lowest[pair[0].index])
