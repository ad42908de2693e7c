"""Compare the good candidates of a few that wait: time them again in turns, so that all meet the same disturbances.

In: candidates that have been timed once, in processes that still hold them. Out: their answers with more repeats.
"""

from collections.abc import Callable, Sequence

from felixlike.measure.evaluator import calls_of_a_batch, lower_quartile
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
    """The same trials with their answers; those near the best one's have more repeats, or have failed.

    timed: paused trials, each with the answer to its run.  seconds: that a turn may take.  run: has a trial answer
    within some seconds, or returns None if the deadline comes first, which ends the turns.  One whose server dies keeps
    the repeats that it has."""
    found = {trial.index: (trial, answer) for trial, answer in timed}
    near = [trial.index for trial, _ in _near(timed, timing) if not trial.closed]
    if len(near) < 2:
        return list(found.values())
    calls = {i: calls_of_a_batch(found[i][1]["repeats"], timing) for i in near}
    for _ in range(timing.turns):
        for index in tuple(near):
            trial, answer = found[index]
            trial.resume()
            more = run(trial, {"calls": calls[index]}, seconds)
            trial.pause()
            if more is None:
                return list(found.values())
            if more["status"] is Status.OK:
                repeats = (*answer["repeats"], *more["repeats"])
                found[index] = trial, {**answer, "repeats": repeats, "elapsed": answer["elapsed"] + more["elapsed"]}
                continue
            near.remove(index)
            if not trial.lost:
                found[index] = trial, more
    return list(found.values())


def without_turn(timed: Sequence[tuple[Trial, Message]], timing: Timing, room: int) -> list[Trial]:
    """The trials that will take no turn, whatever the others of the batch are like: their processes need not wait.

    room: how many may wait, so that their buffers do not fill the memory; the fastest do."""
    waiting = [trial for trial, _ in _near(timed, timing)[:room]] if timing.turns else []
    return [trial for trial, _ in timed if not any(trial is other for other in waiting)]


def _near(timed: Sequence[tuple[Trial, Message]], timing: Timing) -> list[tuple[Trial, Message]]:
    """Those near the best one, fastest first; calls that take long need no turns."""
    lowest = {trial.index: lower_quartile(answer["repeats"]) for trial, answer in timed if answer.get("repeats")}
    if not lowest:
        return []
    most = min(timing.close * min(lowest.values()), timing.max_seconds)
    near = [pair for pair in timed if lowest.get(pair[0].index, most + 1) <= most]
    return sorted(near, key=lambda pair: lowest[pair[0].index])
