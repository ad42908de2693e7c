"""Choose among the best measured schedules of each task by their time inside the whole model.

Inputs: the states of a model's tasks, the model compiled with the fastest schedule of each, and a function that
compiles it with others. Output: the build whose calls take the least time. A candidate is measured alone, with the same
data in the caches each time. In the model, the kernels before it have left other data there, and its weights have been
replaced. Two schedules that are equally fast alone may differ there.

The model is compiled with another schedule of every task, and then with a third one. These are the second and third
best; if the first one that was measured, which the cost model predicted to be the fastest, is neither, it replaces the
third: where other processes disturb the timing, it may only have seemed slower. In each build, every kernel is timed
inside calls that alternate with calls of the first build. A task changes its schedule if another one was faster there,
and the model changes if its whole call is. What was found is kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._util import cache
from felixlike.frontend import Imported
from felixlike.hardware import placement, target_device
from felixlike.measure.packing import kernel_seconds
from felixlike.measure.sides.timing import interleaved, timer
from felixlike.runtime import Compiled
from felixlike.runtime.guarded_calls import damage_by_kernels
from felixlike.runtime.kernel_times import kernel_times
from felixlike.tuning.choice import Choice, How, at_hand
from felixlike.tuning.compiling import Build
from felixlike.tuning.predictions import code_version
from felixlike.tuning.state import TaskState

_KIND = "in_context"

_NOTE = "chosen by its time in the model; alone it is {:.1%} slower than the fastest one"


@dataclass(frozen=True, slots=True)
class Context:
    """What is timed in the model. `a_task` is measured for ResNet-18 and BERT on two cores, the others chosen by hand.

    Attributes:
        others: Maximum number of further schedules per task.
        within: How much slower than the fastest one these may be alone, as a factor.
        first: The same for the schedule that was measured first.
        share: Minimum share of a task in the model's time.
        gain: Minimum relative gain of a kernel for a change of its schedule.
        whole: Minimum relative gain of a whole call for a change of the model.
        seconds: Seconds of timing per build.
        a_task: Seconds to compile one task.
        budget: Maximum share of a run's time limit. A run that is shorter chooses by what was measured alone.
        constants: Maximum bytes of a model's constants, of which every build has a copy.
    """

    others: int = 2
    within: float = 1.1
    first: float = 2.0
    share: float = 0.01
    gain: float = 0.02
    whole: float = 0.005
    seconds: float = 0.5
    a_task: float = 0.1
    budget: float = 0.15
    constants: int = 2**28


CONTEXT = Context()


def seconds_needed(tasks: int) -> float:
    """Return the approximate seconds that `chosen_in_context` takes for a model with this number of tasks."""
    builds = CONTEXT.others + 1
    return builds * (CONTEXT.a_task * tasks + 2 * CONTEXT.seconds)


def seconds_reserved(limit: float | None, tasks: int) -> float:
    """Return the seconds of a run's limit that are kept for it; 0 if the limit is too short, or without one."""
    needed = seconds_needed(tasks)
    return needed if limit is not None and needed <= CONTEXT.budget * limit < math.inf else 0.0


def affordable(compiling: float, left: float) -> int:
    """Return how many further schedules of each task can be timed in the model.

    Args:
        compiling: Seconds that one build of the model took.
        left: Seconds that there are for it. The last build is that of the choice.
    """
    builds = left / (compiling + 2 * CONTEXT.seconds)
    return max(0, int(min(builds, CONTEXT.others + 1)) - 1)


def is_small(imported: Imported) -> bool:
    """Return whether copies of a model's constants fit beside it."""
    found: dict[int | None, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.ir.GenericConst):
            found[_tvm.identity(node)] = math.prod(map(int, node.value.shape)) * (
                (_tvm.bits(node.value.dtype) + 7) // 8
            )

    _tvm.relax.analysis.post_order_visit(imported.module["main"], visit)
    return sum(found.values()) <= CONTEXT.constants


class InContext:
    """The choice of schedules inside one model.

    Args:
        imported: The model.
        states: The state of each of its tasks.
        choices: The choice of each task by what was measured alone.
    """

    def __init__(self, imported: Imported, states: Sequence[TaskState], choices: Sequence[Choice]) -> None:
        self._imported = imported
        self._ranked = _ranked(states, choices)
        schedules = [
            (state.task.key, state.task.weight, *map(_key, choices))
            for state, choices in zip(states, self._ranked, strict=True)
        ]
        device, threads = target_device(imported.target), placement.threads()
        self._entry = cache.digest(repr((*code_version(), device, threads, schedules)))
        self._known = self._remembered()

    @property
    def undecided(self) -> bool:
        """Return whether there are several schedules of a task, of which none was chosen before."""
        return self._known is None and any(len(choices) > 1 for choices in self._ranked)

    def choices(self) -> list[Choice]:
        """Return the choice of each task: the one of an earlier run in the same place, or the fastest one alone."""
        return self._at(self._known or [0] * len(self._ranked))

    def improved(
        self,
        base: Build,
        *,
        compiled: Callable[[Mapping[str, Any]], Compiled],
        finish: Callable[[Sequence[Choice]], Build],
        others: int,
    ) -> Build:
        """Return the build whose calls take the least time, and remember its schedules.

        Args:
            base: The model compiled with `choices`.
            compiled: Compiles it with scheduled modules by the tasks' keys.
            finish: Compiles it with a choice for each task, and replaces schedules that fail.
            others: Maximum number of further schedules of each task that are timed.

        Returns:
            `base`, or a build whose calls are faster.
        """
        if list(base.choices) != self.choices():  # a schedule was replaced
            return base
        import torch

        best = base
        with torch.random.fork_rng(devices=[]):  # for models that draw random numbers
            places = self._fastest(base, compiled, others)
            if any(places) and self._is_faster(build := finish(self._at(places)), base):
                best = build
        cache.store(_KIND, self._entry, places if best is not base else [0] * len(places))
        return best

    def _remembered(self) -> list[int] | None:
        """Return the place of each task's schedule among its ranked ones that was stored, or None."""
        places: Any = cache.load(_KIND, self._entry)
        with contextlib.suppress(TypeError, ValueError):  # a damaged entry counts as absent
            if all(0 <= int(place) < len(ranked) for place, ranked in zip(places, self._ranked, strict=True)):
                return [int(place) for place in places]
        return None

    def _at(self, places: Sequence[int]) -> list[Choice]:
        """Return the choices at these places among the ranked ones, with a remark on those that are not the first."""
        return [
            replace(choices[place], note=_NOTE.format(choices[place].seconds / choices[0].seconds - 1))
            if place
            else choices[0]
            for choices, place in zip(self._ranked, places, strict=True)
        ]

    def _fastest(self, base: Build, compiled: Callable[[Mapping[str, Any]], Compiled], others: int) -> list[int]:
        """Return the place of each task's schedule that takes the least time inside the model."""
        places, best = [0] * len(self._ranked), [1 - CONTEXT.gain] * len(self._ranked)
        for rank in range(1, min(others + 1, max(map(len, self._ranked)))):
            with contextlib.suppress(Exception):  # of a schedule that cannot be made or compiled: it is not chosen
                for index, ratio in enumerate(self._ratios(rank, base, compiled)):
                    if ratio < best[index]:
                        places[index], best[index] = rank, ratio
        return places

    def _ratios(self, rank: int, base: Build, compiled: Callable[[Mapping[str, Any]], Compiled]) -> list[float]:
        """Return the time of each task with its schedule of this rank, relative to its time in the base.

        It is infinite without such a schedule, and nan for small functions that were compiled into a common kernel."""
        tasks, examples = self._imported.tasks, self._imported.examples
        modules = {
            task.key: ranked[rank].candidate.module() if rank < len(ranked) else module  # type: ignore[union-attr]
            for task, ranked, module in zip(tasks, self._ranked, base.modules, strict=True)
        }
        other = compiled({key: module for key, module in modules.items() if module is not None})
        other.threads = base.compiled.threads
        if damage_by_kernels(other, examples):
            return []
        before, after = kernel_times([base.compiled, other], examples, seconds=CONTEXT.seconds)
        ratios = []
        for task, ranked in zip(tasks, self._ranked, strict=True):
            names = self._imported.functions[task.key]
            seconds = [sum(kernel_seconds(name, times) for name in names) for times in (after, before)]
            ratios.append(seconds[0] / seconds[1] if rank < len(ranked) else math.inf)
        return ratios

    def _is_faster(self, build: Build, base: Build) -> bool:
        """Return whether a build's kernels write as they may, and a call of it takes less time than one of the base."""
        imported = self._imported
        if damage_by_kernels(build.compiled, imported.examples):
            return False
        args, kwargs = imported.signature.arguments(imported.examples)
        sides = {name: timer(partial(b.compiled, *args, **kwargs)) for name, b in (("base", base), ("other", build))}
        times = interleaved(sides, seconds_a_side=CONTEXT.seconds, slot=CONTEXT.seconds / 10)
        return times["other"].seconds < (1 - CONTEXT.whole) * times["base"].seconds


def _ranked(states: Sequence[TaskState], choices: Sequence[Choice]) -> list[tuple[Choice, ...]]:
    """Return the choice of each task, followed by further measured and verified schedules that are about as fast."""
    alone = [choice.seconds * state.task.weight for state, choice in zip(states, choices, strict=True)]
    total = sum(seconds for seconds in alone if not math.isnan(seconds))
    return [
        (choice, *_others(state, choice)) if seconds >= CONTEXT.share * total else (choice,)
        for state, choice, seconds in zip(states, choices, alone, strict=True)
    ]


def _others(state: TaskState, choice: Choice) -> list[Choice]:
    """Return further schedules of one task."""
    others = [other for other in at_hand(state) if other.how is How.MEASURED and _key(other) != _key(choice)]
    first = [other for other in others if _key(other) == next(iter(state.measured))]
    near = [other for other in others if other.seconds <= CONTEXT.within * choice.seconds][: CONTEXT.others]
    if not first or first[0] in near or first[0].seconds > CONTEXT.first * choice.seconds:
        return near
    return [*near[: CONTEXT.others - 1], *first]


def _key(choice: Choice) -> Any:
    """Return what identifies the schedule of a choice."""
    return choice.candidate and choice.candidate.key
