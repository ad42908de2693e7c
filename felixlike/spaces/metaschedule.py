"""MetaSchedule's contexts, space generators, rules and postprocessors, made of plain functions."""

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
    """Let a TuneContext be made without importing TVM's tensor intrinsics, which takes 20 s.

    TuneContext imports `tvm.s_tir.tensor_intrin`, whose ~500 TVMScript functions each walk inspect.stack(). The plain
    "llvm" and "cuda" rules never look an intrinsic up, so an empty module stands in for the import, and is
    taken away again: others in this process still get the real one."""
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
    """A MetaSchedule context for one PrimFunc's module.

    space: a space generator; None gives the plain rules of the target's kind (llvm or cuda). They are named explicitly
    because TVM otherwise picks those with tensor intrinsics, silently."""
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
    """TVM's PerStoreFeature of schedules of a module: float64[stores, 164] each, most columns log2(1 + feature)."""
    extractor = _tvm.ms.feature_extractor.PerStoreFeature()
    candidates = [_tvm.ms.MeasureCandidate(schedule, []) for schedule in schedules]
    return [found.numpy() for found in extractor.extract_from(tune_context(module, target), candidates)]


def evolution(
    module: Module, target: Any, postprocessors: Sequence[Any], *, population: int, generations: int, seed: int
) -> Any:
    """A context whose search is TVM's evolution of traces, with TVM's mutators for the target's kind.

    postprocessors: `runner`s of what schedules undergo, and whether each is `own`: ours are Python, so that one thread
    calls them."""
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
    """What TVM says of its search is no news to users."""
    logger = logging.getLogger("felixlike.metaschedule")
    logger.setLevel(logging.CRITICAL)
    return logger


_asking_for_rules = threading.Lock()


@contextmanager
def no_rule_is_unknown(module: Module, target: Any) -> Iterator[None]:
    """Let a design space be generated without TVM's words on stderr about rules that blocks ask for and nobody has.

    topi's pooling asks for such rules. Where ApplyCustomRule finds none it prints a warning and takes the note off the
    block (src/s_tir/meta_schedule/schedule_rule/apply_custom_rule.cc); a rule that does just this stands in for each,
    and is taken away again. Rules that are there stay what they are."""
    wanted = {str(block.annotations[_NOTE]) for block in _blocks(module) if _NOTE in block.annotations}
    with _asking_for_rules, ExitStack() as stack:
        for rule in sorted(wanted - {"None"}):
            names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]
            if names and all(_tvm.tvm_ffi.get_global_func(name, allow_missing=True) is None for name in names):
                _tvm.tvm_ffi.register_global_func(names[0], _take_note_off)
                stack.callback(_tvm.tvm_ffi.registry.remove_global_func, names[0])
        yield


_NOTE = "schedule_rule"


def _take_note_off(schedule: Schedule, block: BlockRef) -> list[Any]:
    schedule.unannotate(block, _NOTE)
    return [schedule]


def _blocks(module: Module) -> list[Any]:
    functions = [function for function in module.functions.values() if isinstance(function, _tvm.PrimFunc)]
    return [block for function in functions for block in _tvm.found(function.body, _tvm.s_tir.SBlock)]


def generator(rules: Sequence[Any], postprocessors: Sequence[Any]) -> Any:
    """A space generator of our own schedule rules and just these postprocessors.

    MetaSchedule's RewriteParallelVectorizeUnroll had better not be among them: it refuses loops that are parallel."""
    return _tvm.PostOrderApply(sch_rules=list(rules), postprocs=list(postprocessors), mutator_probs={})


@cache
def _adapters() -> tuple[Any, Any]:
    """The classes behind `schedule_rule` and `postprocessor`, made when they are needed: their bases are TVM's."""

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
    """MetaSchedule's rule for a function (schedule, block) → schedules; none means that it does not apply."""
    return _adapters()[0](function)


def postprocessor(function: Any) -> Any:
    """MetaSchedule's postprocessor for a function schedule → bool, whether the schedule is accepted."""
    return _adapters()[1](function)
