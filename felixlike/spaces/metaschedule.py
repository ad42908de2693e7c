"""Create MetaSchedule's contexts, space generators, rules and postprocessors from plain functions."""

from __future__ import annotations

import logging
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Module, Schedule
from felixlike.hardware.probe import usable_cores

_INTRINSICS = "tvm.s_tir.tensor_intrin"


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Create TuneContexts without importing TVM's tensor intrinsics, which takes 20 s.

    TuneContext imports `tvm.s_tir.tensor_intrin`, whose ~500 TVMScript functions each call inspect.stack(). The plain
    "llvm" and "cuda" rules use no intrinsic, so an empty module replaces the import. It is removed again afterwards, so
    other code in this process still gets the real module.
    """
    if _INTRINSICS in sys.modules:
        yield
        return
    stand_in = types.ModuleType(_INTRINSICS)
    sys.modules[_INTRINSICS] = stand_in
    _tvm.s_tir.tensor_intrin = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_INTRINSICS) is stand_in:
            del sys.modules[_INTRINSICS]
        if getattr(_tvm.s_tir, "tensor_intrin", None) is stand_in:
            del _tvm.s_tir.tensor_intrin


def tune_context(module: Module, target: Any, *, seed: int = 1, space: Any = None) -> Any:
    """Create a MetaSchedule context for the module of one PrimFunc.

    `space` is a space generator. None selects the plain rules of the target kind (llvm or cuda). They are named
    explicitly because TVM otherwise selects those with tensor intrinsics without a message.
    """
    rules = str(target.kind.name)
    with without_tensor_intrinsics():
        return _tvm.ms.TuneContext(
            mod=module,
            target=target,
            space_generator=space or _tvm.PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules),
            search_strategy="replay-trace",
            task_name="main",
            rand_state=seed,
            num_threads=1,
        )


def store_features(module: Module, target: Any, schedules: Sequence[Schedule]) -> list[npt.NDArray[np.float64]]:
    """Return TVM's PerStoreFeature of schedules of a module: float64[stores, 164] each, most columns log2(1 +
    feature).
    """
    extractor = _tvm.ms.feature_extractor.PerStoreFeature()
    candidates = [_tvm.ms.MeasureCandidate(schedule, []) for schedule in schedules]
    return [features.numpy() for features in extractor.extract_from(tune_context(module, target), candidates)]


def evolution(
    module: Module, target: Any, postprocessors: Sequence[Any], *, population: int, generations: int, seed: int
) -> Any:
    """Create a context whose search is TVM's evolutionary search, with TVM's mutators for the target kind.

    `postprocessors` have the attributes `runner` and `own`. Own ones are Python functions, so only one thread calls
    them.
    """
    mutators = str(target.kind.name)
    holder = _tvm.PostOrderApply(sch_rules=[], postprocs=[p.runner for p in postprocessors], mutator_probs=mutators)
    search = _tvm.ms.search_strategy.EvolutionarySearch(
        population_size=population, genetic_num_iters=generations, init_min_unmeasured=min(50, population // 2)
    )
    with without_tensor_intrinsics():
        return _tvm.ms.TuneContext(
            mod=module,
            target=target,
            space_generator=holder,
            search_strategy=search,
            task_name="main",
            rand_state=seed,
            num_threads=1 if any(p.own for p in postprocessors) else usable_cores(),
            logger=_quiet(),
        )


@cache
def _quiet() -> logging.Logger:
    """Return a logger that suppresses TVM's messages about its search."""
    logger = logging.getLogger("felixlike.metaschedule")
    logger.setLevel(logging.CRITICAL)
    return logger


_rules_lock = threading.Lock()


@contextmanager
def no_rule_is_unknown(module: Module, target: Any) -> Iterator[None]:
    """Generate a design space without TVM's warnings on stderr about block annotations whose rule is not registered.

    topi's pooling has such annotations. If ApplyCustomRule finds no rule, it prints a warning and removes the
    annotation (src/s_tir/meta_schedule/schedule_rule/apply_custom_rule.cc). A temporary rule that only removes the
    annotation is registered for each of them. Registered rules are not changed.
    """
    annotated = {str(block.annotations[_ANNOTATION]) for block in _blocks(module) if _ANNOTATION in block.annotations}
    with _rules_lock, ExitStack() as stack:
        for rule in sorted(annotated - {"None"}):
            names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]
            if names and all(_tvm.tvm_ffi.get_global_func(name, allow_missing=True) is None for name in names):
                _tvm.tvm_ffi.register_global_func(names[0], _remove_annotation)
                stack.callback(_tvm.tvm_ffi.registry.remove_global_func, names[0])
        yield


_ANNOTATION = "schedule_rule"
"""The block annotation that names a custom rule."""


def _remove_annotation(schedule: Schedule, block: BlockRef) -> list[Any]:
    """Remove the annotation from a block."""
    schedule.unannotate(block, _ANNOTATION)
    return [schedule]


def _blocks(module: Module) -> list[Any]:
    """Return all blocks of a module's functions."""
    functions = [function for function in module.functions.values() if isinstance(function, _tvm.PrimFunc)]
    return [block for function in functions for block in _tvm.found(function.body, _tvm.s_tir.SBlock)]


def generator(rules: Sequence[Any], postprocessors: Sequence[Any]) -> Any:
    """Create a space generator with exactly these schedule rules and postprocessors.

    Do not pass MetaSchedule's RewriteParallelVectorizeUnroll: it refuses parallel loops.
    """
    return _tvm.PostOrderApply(sch_rules=list(rules), postprocs=list(postprocessors), mutator_probs={})


@cache
def _adapters() -> tuple[Any, Any]:
    """Create the classes behind `schedule_rule` and `postprocessor` on first use: their bases are TVM's."""

    @_tvm.derived_object
    class Rule(_tvm.ms.schedule_rule.PyScheduleRule):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, schedule: Schedule, block: BlockRef) -> list[Any]:
            return self.function(schedule.copy(), block) or [schedule]

        def clone(self) -> Any:
            return Rule(self.function)

    @_tvm.derived_object
    class Postprocessor(_tvm.ms.postproc.PyPostproc):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, schedule: Schedule) -> bool:
            return bool(self.function(schedule))

        def clone(self) -> Any:
            return Postprocessor(self.function)

    return Rule, Postprocessor


def schedule_rule(function: Any) -> Any:
    """Create a MetaSchedule rule from a function (schedule, block) → schedules. An empty list means that it does not
    apply.
    """
    return _adapters()[0](function)


def postprocessor(function: Any) -> Any:
    """Create a MetaSchedule postprocessor from a function schedule → bool, which returns whether the schedule is
    accepted.
    """
    return _adapters()[1](function)
