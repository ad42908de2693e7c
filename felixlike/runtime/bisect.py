"""Find a schedule that prevents a model from being compiled, by bisection.

Input: schedules that compile alone, but fail together or in the whole model. Output: one that causes the failure.
Bisection is used because compiling a large model takes as long as measuring many candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def culprit(schedules: Mapping[str, Any], compiled: Callable[[Mapping[str, Any]], Any]) -> str:
    """Return the key of a schedule such that the schedules before it compile, and fail once it is added.

    Args:
        schedules: The schedules by task key.
        compiled: Compiles the model with some of the schedules, or raises. It must succeed without any and fail with
            all of them.
    """
    keys = list(schedules)
    works, fails = 0, len(keys)
    while fails - works > 1:
        middle = (works + fails) // 2
        try:
            compiled({key: schedules[key] for key in keys[:middle]})
        except Exception:  # TVM or one of felixlike's passes may raise anything
            fails = middle
        else:
            works = middle
    return keys[fails - 1]
