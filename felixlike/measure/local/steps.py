"""Work that waits for processes, written as generators: done alone, or several together with one process each.

In: generators that yield a trial to wait for and are sent its answer. Out: what they return.
"""

import contextlib
import selectors
from collections.abc import Generator, Iterable
from typing import TypeVar

from felixlike.measure.local.trial import Trial
from felixlike.measure.messages import Message

_T = TypeVar("_T")

Steps = Generator[tuple[Trial, float], Message, _T]
"""Yields a trial and the seconds that its answer may take, is sent the answer. Closed early, it ends what it began."""


def complete(steps: Steps[_T]) -> _T:
    """What the steps return, each waited for in turn."""
    with contextlib.closing(steps):
        try:
            trial, seconds = next(steps)
            while True:
                trial, seconds = steps.send(trial.wait(seconds))
        except StopIteration as end:
            found: _T = end.value
            return found


def together(jobs: Iterable[tuple[int, Steps[_T]]], *, most: int) -> Generator[tuple[int, _T], None, None]:
    """Each job's place and what it returns, as soon as it is done; `most` of them wait for a process at a time.

    jobs: asked for when one can begin, so that whoever makes them does so while the processes work."""
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
    """Have `answers` wait for a trial's answer, which may take that long."""
    selector.register(trial.channel, selectors.EVENT_READ, (trial, seconds))


def answers(selector: selectors.BaseSelector) -> list[tuple[Trial, Message]]:
    """Wait until a trial that is watched has answered or is overdue; those that are, with their answers.

    Answers are read before anyone is called late: whoever asks may have been away for longer than the limit."""
    under_way: list[tuple[Trial, float]] = [key.data for key in selector.get_map().values()]
    if not under_way:
        return []
    patience = min(seconds - trial.elapsed for trial, seconds in under_way)
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
