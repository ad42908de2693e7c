"""Cache the verified schedules that earlier runs without measurements have selected, in the user's cache folder.

Input: a task and its choice. Output: the same choice in a later run, without sketches, formulas or a check, and the
machine code that its check has compiled. An entry applies to the same task, target, machine, seed, design space,
cost-model weights and code versions, whatever the values of the model's weights. A damaged entry, or one that TVM
rejects, counts as absent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
from functools import cached_property
from importlib import metadata
from typing import Any

from felixlike._util import cache
from felixlike.codegen import KernelObject
from felixlike.costmodel import CostModel
from felixlike.hardware import target_device
from felixlike.search import Candidate
from felixlike.symbolic import kept_sketch, sketch_data
from felixlike.tuning.state import CachedChoice, TaskState

_KIND = "predicted"


class Predictions:
    """The cache entries of runs with the same model and seed.

    Args:
        model: The cost model before it learns from measurements.
        seed: The run's seed.
        objects: Machine code of checked kernels by the names of their tasks. It is kept with their choices, and that of
            cached choices is added.
    """

    def __init__(self, model: CostModel, *, seed: int, objects: dict[str, KernelObject] | None = None) -> None:
        self._model, self._seed = model, seed
        self._objects: dict[str, KernelObject] = {} if objects is None else objects

    def find(self, state: TaskState) -> CachedChoice | None:
        """Return the cached choice of a task, ready to be compiled; None if there is none."""
        entry = cache.load(_KIND, self._key(state))
        if entry is None:
            return None
        try:
            kept = _read(state, entry)
            kept.candidate.module()
        except Exception:  # a damaged entry may raise anything and counts as absent
            return None
        name = state.task.name
        if (code := _read_code(entry.get("code"), name)) is not None:
            self._objects[name] = code
        return kept

    def keep(self, state: TaskState, candidate: Candidate, error: float | None) -> None:
        """Store the choice of a task."""
        if state.faults or candidate.key in state.known.seen:
            return  # faults may not recur; measured candidates are in a store
        sketches = state.space.sketches
        entry = {
            **sketch_data(candidate.sketch),
            "point": list(candidate.point),
            "score": None if math.isnan(candidate.score) else candidate.score,
            "error": error,
            "sketches": len(sketches),
            "sampled": state.sampled,
            "code": _code_data(self._objects.get(state.task.name), state.task.name),
        }
        cache.store(_KIND, self._key(state), entry)

    def _key(self, state: TaskState) -> str:
        """Return the cache key of a task."""
        task = state.task
        return cache.digest(repr((self._common, task.key, target_device(task.target), state.space_name)))

    @cached_property
    def _common(self) -> tuple[Any, ...]:
        """Return the parts of the key that all tasks share."""
        return *code_version(), self._model.version(), self._seed


def code_version() -> tuple[Any, ...]:
    """Return what distinguishes versions of the code that makes schedules: ours and TVM's."""
    return cache.sources(), [metadata.version(package) for package in ("apache-tvm", "apache-tvm-ffi")]


def _read(state: TaskState, entry: Any) -> CachedChoice:
    """Parse an entry. A damaged one may raise anything."""
    sketch = kept_sketch(state.task, entry)
    point = tuple(int(number) for number in entry["point"])
    score, error = entry["score"], entry["error"]
    return CachedChoice(
        Candidate(sketch, point, math.nan if score is None else float(score), "predicted"),
        None if error is None else float(error),
        int(entry["sketches"]),
        {str(index): str(reason) for index, reason in entry["sampled"].items()},
    )


def _code_data(known: KernelObject | None, name: str) -> dict[str, str] | None:
    """Return machine code as plain data. Its symbols contain the name of the task."""
    if known is None:
        return None
    code = base64.b64encode(known.code).decode()
    return {"name": name, "module": known.module, "code": code, "digest": _digest(known)}


def _read_code(data: Any, name: str) -> KernelObject | None:
    """Return the machine code in an entry; None without any, for a task of another name, or if it is damaged."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        known = KernelObject(data["module"], base64.b64decode(data["code"], validate=True))
        if data["name"] == name and data["digest"] == _digest(known):
            return known
    return None


def _digest(known: KernelObject) -> str:
    """Return the hash of a kernel's module and machine code."""
    return hashlib.sha256(known.module.encode() + known.code).hexdigest()
