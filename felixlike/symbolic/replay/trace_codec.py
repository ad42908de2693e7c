"""Convert MetaSchedule's traces in JSON to points of a sketch.

Inputs: the sketch's trace and variables. Output: `TraceCodec`.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from felixlike._tvm.typing import Trace
from felixlike.symbolic.program.variables import Variable, groups
from felixlike.symbolic.replay.trace import point_of_json, texts, trace_json


class TraceCodec:
    """Read the points of a sketch from traces.

    Args:
        trace: The sketch's trace.
        variables: Its variables.
    """

    def __init__(self, trace: Trace, variables: tuple[Variable, ...]) -> None:
        self._trace, self._variables = trace, variables

    def point(self, trace: Any) -> tuple[int, ...] | None:
        """Return the point of a trace in MetaSchedule's JSON, as its databases store it; None for other traces.

        MetaSchedule omits instructions whose results are unused, and postprocessors' instructions may follow.
        """
        for instructions, sampling_steps in self._forms:
            following = trace[0][len(instructions) : len(instructions) + 1]
            if texts(trace[0][: len(instructions)]) == instructions and all(
                step[0] == "EnterPostproc" for step in following
            ):
                decisions = {int(index): decision for index, decision in trace[1]}
                return point_of_json(instructions, decisions, sampling_steps, self._variables)
        return None

    @cached_property
    def _forms(self) -> list[tuple[list[Any], list[int]]]:
        """Return the instructions with and without unused ones, as texts, and the positions of those that sample."""
        forms = []
        for trace in (self._trace, self._trace.simplified(True)):
            instructions = texts(json.loads(trace_json(trace))[0])
            sampling_steps = [i for i, instruction in enumerate(instructions) if instruction[0].startswith("Sample")]
            if len(sampling_steps) == len(list(groups(self._variables))):
                forms.append((instructions, sampling_steps))
        return forms
