"""Run generators that wait for processes, one alone or several concurrently.

The input is generators that yield a trial to wait for and receive its answer. The output is their return values.
"""

import contextlib
import selectors
from collections.abc import Generator, Iterable
from typing import TypeVar

from felixlike._util import spent
from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message

_T = TypeVar("_T")

Steps = Generator[tuple[Trial, float], Message, _T]
"""Yields a trial and the time limit of its answer, s, and receives the answer. Closing it early ends its processes."""


def complete(steps: Steps[_T]) -> _T:
    """Run steps to their end and return their value."""
    with contextlib.closing(steps):
        try:
            trial, seconds = next(steps)
            while True:
                trial, seconds = steps.send(trial.wait(seconds))
        except StopIteration as end:
            value: _T = end.value
            return value


def together(jobs: Iterable[tuple[int, Steps[_T]]], *, most: int) -> Generator[tuple[int, _T], None, None]:
    """Run jobs concurrently and yield each job's index and value as soon as it is done.

    Args:
        jobs: Pairs of an index and steps. A job is read when it can start, so the iterable may create jobs while
            processes run.
        most: Largest number of jobs that wait for a process at a time.
    """
    source = iter(jobs)
    under_way: dict[Trial, tuple[int, Steps[_T]]] = {}
    with selectors.DefaultSelector() as selector:
        try:
            more = True
            while more or under_way:
                advanced: list[tuple[int, Steps[_T], Message | None]] = []
                while more and len(under_way) + len(advanced) < most:
                    job = next(source, None)
                    more = job is not None
                    if job is not None:
                        advanced.append((*job, None))
                if not advanced:
                    advanced = [(*under_way.pop(trial), answer) for trial, answer in answers(selector)]
                while advanced:
                    place, steps, answer = advanced.pop(0)
                    try:
                        trial, seconds = next(steps) if answer is None else steps.send(answer)
                    except StopIteration as end:
                        yield place, end.value
                        continue
                    watch(selector, trial, seconds)
                    under_way[trial] = place, steps
        finally:
            for _, steps in under_way.values():
                steps.close()


def watch(selector: selectors.BaseSelector, trial: Trial, seconds: float) -> None:
    """Register a trial with `answers`, or change its limit; its answer may take `seconds`."""
    known = trial.channel in selector.get_map()
    (selector.modify if known else selector.register)(trial.channel, selectors.EVENT_READ, (trial, seconds))


def answers(selector: selectors.BaseSelector) -> list[tuple[Trial, Message]]:
    """Wait until a watched trial has answered or exceeds its limit; return all such trials with their answers.

    Answers are read before limits are checked, since the caller may have been busy for longer than a limit."""
    under_way: list[tuple[Trial, float]] = [key.data for key in selector.get_map().values()]
    if not under_way:
        return []
    patience = min(seconds - trial.elapsed for trial, seconds in under_way)
    steps = {trial.step for trial, _ in under_way}
    with spent.on(next(step for step in (spent.TIMING, spent.BUILDING, spent.CHECKING) if step in steps)):
        ready = {key.data[0] for key, _ in selector.select(max(0.0, patience))}
    finished = []
    for trial, seconds in under_way:
        if trial in ready:
            selector.unregister(trial.channel)
            finished.append((trial, trial.answer()))
        elif trial.elapsed >= seconds:
            selector.unregister(trial.channel)
            finished.append((trial, trial.expire()))
    return finished
