"""Schedule a task with TVM at a point: replay the sketch's trace with the point's decisions, then postprocess.

Inputs: a task, a trace, its variables and postprocessors. Output: TVM schedules, or InvalidSchedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Trace
from felixlike.errors import InvalidSchedule
from felixlike.frontend.task import Task
from felixlike.spaces import Postprocessor
from felixlike.symbolic.program.variables import Variable
from felixlike.symbolic.replay.trace import point_of, with_point


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Make the TVM schedules of a sketch.

    Attributes:
        task: The task.
        trace: The sketch's trace.
        variables: The trace's variables, one per number of a point.
        postprocessors: The postprocessors, applied in this order.
        label: The sketch's description in errors.
    """

    task: Task
    trace: Trace
    variables: tuple[Variable, ...]
    postprocessors: tuple[Postprocessor, ...]
    label: str

    def schedule(self, point: tuple[int, ...]) -> Any:
        """Return the postprocessed TVM schedule of a point.

        Raises:
            InvalidSchedule: If TVM refuses the point, or replaces it by another one.
        """
        schedule = self._new_schedule(1)
        try:
            with_point(self.trace, self.variables, point).apply_to_schedule(schedule, remove_postproc=True)
            replayed = point_of(schedule.trace, self.variables)
            schedule.enter_postproc()
            accepted = all(p.apply(schedule) for p in self.postprocessors)
        except _tvm.TVM_ERRORS as error:
            if not _tvm.refusal(error):
                raise
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise InvalidSchedule(f"TVM refused the point {point}: {reason[:160]}", where=self.label) from error
        if replayed != point:
            raise InvalidSchedule(f"TVM replaced the point {point} by {replayed}", where=self.label)
        if not accepted:
            raise InvalidSchedule(f"a postprocessor refused the point {point}", where=self.label)
        return schedule

    def accepts(self, point: tuple[int, ...]) -> bool:
        """Return whether TVM accepts a point without changing it."""
        try:
            self.schedule(point)
        except InvalidSchedule:
            return False
        return True

    def as_drawn(self) -> Any:
        """Return an unpostprocessed TVM schedule with the trace's own decisions; TVM's searches begin with it."""
        self.trace.apply_to_schedule(schedule := self._new_schedule(1), remove_postproc=True)
        return schedule

    def draw(self, seed: int) -> tuple[int, ...]:
        """Return a point that TVM draws, whether postprocessors accept it or not.

        Args:
            seed: TVM's seed, at least 1.
        """
        schedule = self._new_schedule(seed)
        _tvm.Trace(self.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        return point_of(schedule.trace, self.variables)

    def _new_schedule(self, seed: int) -> Any:
        """Return an empty schedule of the task's function."""
        return _tvm.Schedule(self.task.module, seed=seed, debug_mask="none", error_render_level="none")
