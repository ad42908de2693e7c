"""Pause Python's automatic garbage collection in steps that make many objects and keep most of them.

A collection looks at every object of PyTorch, TVM and the user, which takes 0.1 s and more. Imports of modules, exports
and compilations make enough objects to start several, which find nothing. Steps that may leave large tensors in
reference cycles, such as evaluating a model, are not paused.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_steps = 0
"""Number of steps that are running, in all threads."""
_set_aside = 0
"""Number of steps that have set objects aside, in all threads; 0 if the caller had done so before."""
_was_enabled = False
"""Whether collection was enabled before the first of them."""


@contextmanager
def collecting_later() -> Iterator[None]:
    """Pause automatic garbage collection during a step; also a decorator.

    Collection is enabled again when no thread is in such a step, unless it was disabled before.
    """
    global _steps, _was_enabled
    with _lock:
        if not _steps:
            _was_enabled = gc.isenabled()
            gc.disable()
        _steps += 1
    try:
        yield
    finally:
        with _lock:
            _steps -= 1
            if not _steps and _was_enabled:
                gc.enable()


@contextmanager
def set_aside() -> Iterator[None]:
    """Leave all objects that exist now out of automatic collections during a step.

    For steps that last longer, in which collections must go on. Afterwards the objects take part again. Nothing is
    changed if the caller has set objects aside (`gc.freeze`).
    """
    global _set_aside
    with _lock:
        ours = bool(_set_aside) or not gc.get_freeze_count()
        if ours:
            gc.freeze()
            _set_aside += 1
    try:
        yield
    finally:
        with _lock:
            if ours:
                _set_aside -= 1
                if not _set_aside:
                    gc.unfreeze()
