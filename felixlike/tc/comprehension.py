"""A tensor comprehension as a function of torch tensors.

In: a program, a target. Out: `Comprehension`, which compiles itself for the shapes it is called with, tunes itself, and
explains itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike import runtime
from felixlike._util import user_folders
from felixlike._util.torch_modes import default_modes
from felixlike.errors import InputMismatch, TCRangeError
from felixlike.hardware import kind_of
from felixlike.runtime import Compiled
from felixlike.runtime.torch_operator import is_traced
from felixlike.tc import compiled as kept
from felixlike.tc.arguments import Arguments
from felixlike.tc.call import Given
from felixlike.tc.instance import Instance, imported, instance
from felixlike.tc.nodes import extent
from felixlike.tc.options import Options
from felixlike.tc.program import Program

if TYPE_CHECKING:
    import torch

    from felixlike.report import Report

_SMALL = 1e5
"""Steps of all loops of a call below which plain loops are compiled: choosing schedules takes seconds."""


@dataclass(slots=True)
class _Kernel:
    """A program compiled for given sizes.  seconds: of a call, inf where it was not measured."""

    made: Instance
    compiled: Compiled
    seconds: float = math.inf


class Comprehension:
    """A tensor comprehension: call it with one torch tensor for each parameter, in order.

    It gives one tensor, or a tuple in the order of the signature. Outputs that are accumulated into without "!" are
    given by the caller as out={"C": c}; they are changed and returned, and so is any other output that is given. It is
    compiled at the first call for shapes, or loaded where an earlier process has compiled it.

    name: of the definition.  program: what it was taken to mean.  report: of the latest tuning, None before."""

    def __init__(self, program: Program, target: Any, options: Options) -> None:
        import torch

        self._is_compiling = torch.compiler.is_compiling
        self.name = program.name
        self.report: Report | None = None
        self.program, self._target, self._options = program, target, options
        self._kernels: dict[tuple[Any, ...], _Kernel] = {}
        self._latest: _Kernel | None = None
        self._lock = threading.RLock()
        self._outputs = len(program.outputs)
        self._given = tuple(output.name for output in program.given)
        self._arguments = Arguments.of(program)
        self.__name__ = program.name
        self.__doc__ = program.source.text

    def __repr__(self) -> str:
        from felixlike.tc.printing import signature_text

        return f"<tensor comprehension {signature_text(self.program)}>"

    def __copy__(self) -> Comprehension:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Comprehension:
        return self  # its code never changes; copies of models may share it

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.program, str(self._target), self._options)

    def __call__(self, *tensors: Any, out: Mapping[str, torch.Tensor] | None = None) -> Any:
        """The outputs.  Raises TCCallError and TCRangeError for what does not fit, or leaves a tensor."""
        if self._is_compiling():
            return self._through_operator(tensors, out)
        if out is None and self._latest is not None:
            try:
                return self._run(self._latest, tensors, None)
            except InputMismatch:
                pass  # other shapes, or wrong ones
        tensors, out = self._arguments.completed(tensors, out)
        if is_traced(tensors):
            return self._through_operator(tensors, out)
        kernel = self._kernel(tensors, out)
        results = self._run(kernel, (*tensors, *(out[name] for name in self._given)), out)
        self._latest = None if self._given else kernel
        return results

    def tune(
        self,
        *tensors: Any,
        out: Mapping[str, torch.Tensor] | None = None,
        rounds: int | None = None,
        trials: int | None = None,
        seconds: float | None = None,
        store: str | Path | None = None,
        strategy: Any = "gradient",
        seed: int = 0,
        progress: bool | str = False,
        tracker: str | None = None,
        key: str | None = None,
    ) -> Comprehension:
        """Search for faster code for inputs like these, and keep it for later calls, also those of later processes.

        All else is as in felixlike.optimize. Returns the comprehension itself; its `report` says what was done."""
        from felixlike import api

        tensors, out = self._arguments.completed(tensors, out, examples=True)
        given = self._arguments.signature(tensors, out)
        made = instance(self.program, given[: len(tensors)])
        examples = [*tensors, *(out[name] for name in self._given)]
        with default_modes():
            optimized = api.optimize(
                imported(made, self._target, examples=examples, fuse=self._options.fuses),
                None,
                rounds,
                target=self._target,
                strategy=self._strategy(strategy),
                trials=trials,
                seconds=seconds,
                store=store,
                seed=seed,
                progress=progress,
                tracker=tracker,
                key=key,
            )
        self.report = optimized.report
        found = math.fsum(task.weight * task.seconds for task in optimized.report.tasks)
        kernel = _Kernel(made, optimized._compiled, found if math.isfinite(found) and found > 0 else math.inf)
        name = self._key(tensors, out)
        with self._lock:
            known = self._kernels.get(name)
            if known is None or kernel.seconds <= known.seconds:
                self._kernels[name] = kernel
                self._latest = None
        note = {"seconds": None if math.isinf(kernel.seconds) else kernel.seconds}
        kept.store(self._cache_key(given), kernel.compiled, note)
        return self

    def explain(self, *tensors: Any) -> str:
        """Ranges, shapes and functions as text: for inputs like these, or in terms of sizes."""
        from felixlike.tc.explanation import explained, explained_for

        if not tensors and self.program.parameters:
            return explained(self.program)
        return explained_for(instance(self.program, self._arguments.of_inputs(tensors)), fuse=self._options.fuses)

    def _key(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([(tensor.shape, tensor.dtype) for tensor in tensors])

    def _cache_key(self, given: Sequence[Given]) -> str:
        return kept.key_of(self.program, given, self._target, str(self._options))

    def _kernel(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> _Kernel:
        """The code for inputs like these: known here, to an earlier process, or compiled now."""
        name = self._key(tensors, out)
        kernel = self._kernels.get(name)
        if kernel is not None:
            return kernel
        with self._lock, default_modes(), user_folders.held_back():
            if name not in self._kernels:
                self._kernels[name] = self._found_or_made(tensors, out)
            kernel = self._kernels[name]
        user_folders.warn()
        return kernel

    def _found_or_made(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> _Kernel:
        given = self._arguments.signature(tensors, out)
        made = instance(self.program, given[: len(tensors)])
        key = self._cache_key(given)
        found = kept.load(key)
        if found is None:
            with kept.locked(key):
                found = kept.load(key)
                if found is None:
                    code = self._made_now(made, [*tensors, *(out[name] for name in self._given)])
                    kept.store(key, code, {"seconds": None}, held=True)
                    return _Kernel(made, code)
        compiled, note = found
        seconds = note.get("seconds")
        return _Kernel(made, compiled, float(seconds) if isinstance(seconds, int | float) else math.inf)

    def _made_now(self, made: Instance, examples: Sequence[Any]) -> Compiled:
        """Compiled with the schedules that are predicted to be best; with none where there is little to do."""
        model = imported(made, self._target, examples=examples, fuse=self._options.fuses)
        steps = sum(math.prod(map(extent, n.intervals.values())) for group in made.groups for n in group.nodes)
        small = steps < _SMALL and not self._options.hints and kind_of(self._target).on_host
        if small or not model.inputs:
            return runtime.compile_model(model)
        from felixlike import api

        rounds = len(model.tasks) if self._options.hints else 0
        strategy = self._strategy("gradient")
        return api.optimize(model, None, rounds, target=self._target, strategy=strategy, progress=False)._compiled

    def _strategy(self, strategy: Any) -> Any:
        """A strategy that keeps to the hints, if there are any."""
        if not self._options.hints:
            return strategy
        from felixlike.search import make_strategy
        from felixlike.tc.hints import Hinted

        return Hinted(self._options, make_strategy(strategy))

    def _run(self, kernel: _Kernel, tensors: Sequence[Any], out: Mapping[str, Any] | None) -> Any:
        results = kernel.compiled(*tensors)
        if not kernel.made.checks and not out:
            return results
        if kernel.made.checks:
            self._check_accesses(kernel.made, results[self._outputs :])
            results = results[: self._outputs]
        elif self._outputs == 1:
            results = (results,)
        if out:
            results = self._into(out, results)
        return results[0] if self._outputs == 1 else tuple(results)

    def _into(self, out: Mapping[str, Any], outputs: Sequence[Any]) -> list[Any]:
        """Results put into the tensors that the caller gave for them."""
        import torch

        placed = []
        with torch.no_grad():
            for output, result in zip(self.program.outputs, outputs, strict=True):
                placed.append(out[output.name].copy_(result) if output.name in out else result)
        return placed

    def _check_accesses(self, made: Instance, found: Sequence[Any]) -> None:
        for check, failed in zip(made.bounds.checks, found, strict=True):
            if int(failed):
                subscript = check.read.subscripts[check.dimension]
                source = self.program.source
                low, high = check.bounds
                raise source.error(
                    TCRangeError,
                    subscript.span,
                    f"out of bounds access to `{check.read.tensor}`, dimension {check.dimension}: the values of"
                    f" `{source.shown(subscript.span)}` are not all within {low} to {high}, the precondition of the"
                    " access",
                    "check the tensor that holds them",
                )

    def _through_operator(self, tensors: Sequence[Any], out: Mapping[str, Any] | None) -> Any:
        """As one operator of PyTorch's, where that looks on."""
        from felixlike.tc import operator

        given = [(out or {})[name] for name in self._given]
        results = operator.run(self.program.source.text, self.name, [*tensors, *given])
        outputs = [results[place] for place in range(self._outputs)]
        if out:
            outputs = self._into(out, outputs)
        return outputs[0] if self._outputs == 1 else tuple(outputs)


def _unpickled(program: Program, target: str, options: Options) -> Comprehension:
    """In another process, which compiles it anew or finds what this one has kept."""
    from felixlike import _tvm
    from felixlike.hardware import resolve_target
    from felixlike.tc import operator

    operator.prepare()
    return Comprehension(program, resolve_target(_tvm.Target(target)), options)
