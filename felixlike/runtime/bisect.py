"""Which of a model's schedules keeps it from being compiled?

In: schedules that work alone, and fail together or in the whole model. Out: one of them. Found by halving, since
compiling a large model takes as long as measuring many candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def culprit(schedules: Mapping[str, Any], compiled: Callable[[Mapping[str, Any]], Any]) -> str:
    """The key of a schedule without which what stands before it compiles, and with which it does not.

    compiled: compiles the model with some of the schedules, or raises; known to do without any, and not with all."""
    keys = list(schedules)
    works, fails = 0, len(keys)
    while fails - works > 1:
        middle = (works + fails) // 2
        try:
            compiled({key: schedules[key] for key in keys[:middle]})
        except Exception:  # whatever TVM, or a pass of ours, raises
            fails = middle
        else:
            works = middle
    return keys[fails - 1]
