"""A tensor comprehension as a function of torch tensors.

Input: a program, a target. Output: `Comprehension`, which compiles itself for the shapes of its inputs, can be tuned,
and can explain how its text is interpreted.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike import runtime
from felixlike._util import user_folders, wording
from felixlike._util.torch_modes import default_modes
from felixlike.errors import InputMismatch, InvalidOption, NarrowedRangeWarning, TCRangeError, callers_level
from felixlike.hardware import FLOAT32, kind_of, with_precision
from felixlike.runtime import Compiled
from felixlike.runtime.torch_operator import is_traced
from felixlike.tc import compiled as code_cache
from felixlike.tc.arguments import Arguments
from felixlike.tc.call import Given
from felixlike.tc.fusion import with_fusion
from felixlike.tc.instance import Instance, imported, instance
from felixlike.tc.nodes import extent
from felixlike.tc.options import Options
from felixlike.tc.program import Program

if TYPE_CHECKING:
    import torch

    from felixlike.report import Report

_SMALL = 1e5
"""Loop iterations per call below which plain loops are compiled without a schedule search, which takes seconds. Chosen
by hand.
"""


@dataclass(slots=True)
class _Kernel:
    """A program compiled for concrete sizes.

    Attributes:
        made: The program with its sizes.
        compiled: The compiled code.
        seconds: Measured time of a call in seconds, inf if it was not measured.
        rounds: Whether it rounds factors of products.
    """

    made: Instance
    compiled: Compiled
    seconds: float = math.inf
    rounds: bool = False


class Comprehension:
    """A tensor comprehension: call it with one torch tensor for each parameter, in order.

    A call returns one tensor, or a tuple in the order of the signature. Outputs that are accumulated into without "!"
    must be passed as out={"C": c}. Every output passed in `out` is written in place and returned. The code is compiled
    at the first call for new shapes, or loaded if an earlier process has compiled it.

    Attributes:
        name: Name of the definition.
        program: The checked program.
        report: The `Report` of the latest tuning run, None before the first.
    """

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
        return self  # compiled code is immutable, so copies of a model share it

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.program, str(self._target), self._options)

    def __call__(self, *tensors: Any, out: Mapping[str, torch.Tensor] | None = None) -> Any:
        """Compute the outputs.

        Args:
            tensors: One torch tensor for each parameter. A Python number is accepted for a parameter without
                dimensions.
            out: Output tensors by name, written in place. Required for outputs that are accumulated into without "!".

        Returns:
            One tensor, or a tuple of tensors in the order of the signature.

        Raises:
            TCCallError: The number, shapes or dtypes of the tensors differ from the definition.
            TCRangeError: No ranges can be inferred for these sizes, or an access is outside its tensor.

        Warns:
            NarrowedRangeWarning: In the first call for its shapes, a test around an access always holds, since the
                access limits the range of an index.
        """
        if self._is_compiling():
            return self._through_operator(tensors, out)
        if out is None and self._latest is not None:
            try:
                return self._run(self._latest, tensors, None)
            except InputMismatch:
                pass  # other shapes, or invalid ones
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
        effort: str = "normal",
        strategy: Any = "gradient",
        space: str = "best",
        precision: str = "float32",
        tolerance: float | None = None,
        starting_options: Options | Sequence[Options] | None = None,
        seed: int = 0,
        progress: bool | str = False,
        tracker: str | None = None,
        key: str | None = None,
    ) -> Comprehension:
        """Search for faster code for inputs of these shapes and keep it for later calls, in later processes too.

        The other arguments are those of `felixlike.optimize`.

        Args:
            tensors: One torch tensor for each parameter. They are also the inputs used for verification.
            out: Output tensors by name. Outputs that are accumulated into may be left out; tensors of ones are used.
            precision: Precision of float32 products. Code that rounds their factors is used by this object until it is
                tuned in float32 again, and is not kept for other processes.
            starting_options: Mapping options, or several, whose nearest schedules are measured first: up to 8 a task.
                Unlike the options of `define`, they do not restrict the search.

        Returns:
            This comprehension. Its `report` describes the run.

        Raises:
            TCCallError: The tensors do not match the definition.
            TCRangeError: No ranges can be inferred for these sizes, or an access is outside its tensor.
            InvalidOption: `starting_options` contradict the options of the definition or request what the target lacks.

        Example:
            mm.tune(a, b, trials=64, starting_options=fx.tc.make_naive_mapping_options())
        """
        from felixlike import api

        starts = self._starts(starting_options)
        tensors, out = self._arguments.completed(tensors, out, examples=True)
        signature = self._arguments.signature(tensors, out)
        made = self._made(signature[: len(tensors)])
        examples = [*tensors, *(out[shapes] for shapes in self._given)]
        target = with_precision(self._target, precision)
        with default_modes():
            optimized = api.optimize(
                imported(made, target, examples=examples),
                None,
                rounds,
                target=self._target,
                strategy=self._strategy(strategy, starts),
                space=space,
                trials=trials,
                seconds=seconds,
                effort=effort,
                store=store,
                seed=seed,
                progress=progress,
                tracker=tracker,
                key=key,
                precision=precision,
                tolerance=tolerance,
            )
        self.report = optimized.report
        seconds_per_call = math.fsum(task.weight * task.seconds for task in optimized.report.tasks)
        kernel = _Kernel(
            made,
            optimized._compiled,
            seconds_per_call if math.isfinite(seconds_per_call) and seconds_per_call > 0 else math.inf,
            any(task.precision != FLOAT32.name for task in optimized.report.tasks),
        )
        shapes = self._key(tensors, out)
        with self._lock:
            previous = self._kernels.get(shapes)
            is_exact_again = previous is not None and previous.rounds and precision == FLOAT32.name
            if previous is None or is_exact_again or kernel.seconds <= previous.seconds:
                self._kernels[shapes] = kernel
                self._latest = None
        if not kernel.rounds:
            metadata = {"seconds": None if math.isinf(kernel.seconds) else kernel.seconds}
            code_cache.store(self._cache_key(signature), kernel.compiled, metadata)
        return self

    def explain(self, *tensors: Any) -> str:
        """Describe inferred ranges, shapes and functions as text.

        Args:
            tensors: One tensor or shape tuple for each parameter. Without them, ranges are given in terms of the sizes'
                names.

        Returns:
            The text. With concrete sizes it includes the TVM script of the functions.

        Raises:
            TCCallError: The tensors do not match the definition.
            TCRangeError: No ranges can be inferred for these sizes, or an access is outside its tensor.
        """
        from felixlike.tc.explanation import explained, explained_for

        if not tensors and self.program.parameters:
            return explained(self.program)
        return explained_for(self._made(self._arguments.of_shapes(tensors)))

    def schedule_tree(self, *tensors: Any) -> str:
        """Return the schedule tree that isl computes, fused and tiled as the options say. Nothing is compiled.

        Args:
            tensors: One tensor or shape tuple for each parameter.

        Returns:
            The tree in isl's YAML: domain, bands with their coincident (parallel) members, sequences, filters.

        Raises:
            MissingDependency: islpy is not installed.
            TCCallError: The tensors do not match the definition.
            TCRangeError: No ranges can be inferred for these sizes, or an access is outside its tensor.
            TCError: isl finds no schedule within its limit of operations.
        """
        from felixlike.tc.polyhedral import schedule_tree

        made = instance(self.program, self._arguments.of_shapes(tensors))
        options = self._options
        fusion = options.fusion or "Max"
        return schedule_tree(self.program, made.sizes, made.ranges, made.bounds, fusion, options.fused, options.tiles)

    def to_c(self, *tensors: Any) -> str:
        """Return readable C for reference: the loops of the schedule tree around plain statements. Nothing is compiled.

        Args:
            tensors: One tensor or shape tuple for each parameter.

        Returns:
            A function of C11. Its arguments are the parameters, scalars by value, then the outputs, as contiguous
            arrays. An access that is checked in every call is asserted to be within its tensor.

        Raises:
            MissingDependency: islpy is not installed.
            TCCallError: The tensors do not match the definition.
            TCRangeError: No ranges can be inferred for these sizes, or an access is outside its tensor.
            TCError: A function is not in C, a statement reads elements of the tensor that it writes other than its own,
                or isl finds no schedule within its limit of operations.

        Example:
            print(mm.to_c((64, 32), (32, 16)))
        """
        from felixlike.tc.c_code import c_code

        made, options = instance(self.program, self._arguments.of_shapes(tensors)), self._options
        return c_code(made, options.fusion or "Max", options.fused, options.tiles)

    def _made(self, given: Sequence[Given]) -> Instance:
        """Return the program for inputs of these shapes, with the functions that the options ask for."""
        return with_fusion(instance(self.program, given), self._options)

    def _key(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return shapes and dtypes of the inputs, the key of code in memory."""
        return tuple([(tensor.shape, tensor.dtype) for tensor in tensors])

    def _cache_key(self, given: Sequence[Given]) -> str:
        return code_cache.key_of(self.program, given, self._target, str(self._options))

    def _kernel(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> _Kernel:
        """Return the code for inputs of these shapes: from this object, from the cache on disk, or compiled now."""
        shapes = self._key(tensors, out)
        kernel = self._kernels.get(shapes)
        if kernel is not None:
            return kernel
        notes: tuple[str, ...] = ()
        with self._lock, default_modes(), user_folders.held_back():
            if shapes not in self._kernels:
                self._kernels[shapes] = self._load_or_compile(tensors, out)
                notes = self._kernels[shapes].made.bounds.narrowed
            kernel = self._kernels[shapes]
        user_folders.warn()
        for note in notes:
            warnings.warn(NarrowedRangeWarning(f"{self.name}, {note}"), stacklevel=callers_level())
        return kernel

    def _load_or_compile(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> _Kernel:
        """Load the code from the cache on disk, or compile and store it."""
        signature = self._arguments.signature(tensors, out)
        made = self._made(signature[: len(tensors)])
        key = self._cache_key(signature)
        entry = code_cache.load(key)
        if entry is None:
            with code_cache.locked(key):
                entry = code_cache.load(key)
                if entry is None:
                    code = self._compile(made, [*tensors, *(out[name] for name in self._given)])
                    code_cache.store(key, code, {"seconds": None}, held=True)
                    return _Kernel(made, code)
        compiled, metadata = entry
        seconds = metadata.get("seconds")
        return _Kernel(made, compiled, float(seconds) if isinstance(seconds, int | float) else math.inf)

    def _compile(self, made: Instance, examples: Sequence[Any]) -> Compiled:
        """Compile with the schedules predicted to be best; small programs are compiled without schedules."""
        model = imported(made, self._target, examples=examples)
        steps = sum(math.prod(map(extent, n.intervals.values())) for group in made.groups for n in group.nodes)
        small = steps < _SMALL and not self._options.hints and kind_of(self._target).on_host
        if small or not model.inputs:
            return runtime.compile_model(model)
        from felixlike import api

        rounds = len(model.tasks) if self._options.hints else 0
        strategy = self._strategy("gradient")
        return api.optimize(model, None, rounds, target=self._target, strategy=strategy, progress=False)._compiled

    def _starts(self, starts: Options | Sequence[Options] | None) -> tuple[Options, ...]:
        """Return options to start from as a tuple. Raise InvalidOption if they are no options or not possible."""
        every = () if starts is None else (starts,) if isinstance(starts, Options) else starts
        completed = []
        for start in every:
            if not isinstance(start, Options):
                raise InvalidOption(
                    f"expected felixlike.tc.Options, got {wording.kind_of(start)}",
                    where="starting_options",
                    remedy="create them with felixlike.tc.Options() or a preset",
                )
            start.check_target(on_host=kind_of(self._target).on_host)
            completed.append(self._options.started_from(start))
        return tuple(completed)

    def _strategy(self, strategy: Any, starts: tuple[Options, ...] = ()) -> Any:
        """Wrap a strategy so that it follows the hints and starts from options, if there are any."""
        from felixlike.search import make_strategy
        from felixlike.tc.hints import Hinted, Seeded

        if self._options.hints:
            strategy = Hinted(self._options, make_strategy(strategy))
        return Seeded(starts, make_strategy(strategy)) if starts else strategy

    def _run(self, kernel: _Kernel, tensors: Sequence[Any], out: Mapping[str, Any] | None) -> Any:
        """Run compiled code, check accesses and copy results into `out`."""
        if out:
            self._arguments.check_writable(out)
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
        """Copy results into the tensors of `out`."""
        import torch

        placed = []
        with torch.no_grad():
            for output, result in zip(self.program.outputs, outputs, strict=True):
                placed.append(out[output.name].copy_(result) if output.name in out else result)
        return placed

    def _check_accesses(self, made: Instance, flags: Sequence[Any]) -> None:
        """Raise TCRangeError for the first access whose flag is not 0."""
        for check, failed in zip(made.bounds.checks, flags, strict=True):
            if int(failed):
                subscript = check.read.subscripts[check.dimension]
                source = self.program.source
                low, high = check.bounds
                raise source.error(
                    TCRangeError,
                    subscript.span,
                    f"out of bounds access to `{check.read.tensor}`, dimension {check.dimension}: some values of"
                    f" `{source.shown(subscript.span)}` are outside {low} to {high}, which violates the precondition of"
                    " the access",
                    "check the tensor that contains the subscripts",
                )

    def _through_operator(self, tensors: Sequence[Any], out: Mapping[str, Any] | None) -> Any:
        """Call the comprehension as one PyTorch operator, for tracing and transforms."""
        from felixlike.tc import operator

        out_tensors = [(out or {})[name] for name in self._given]
        results = operator.run(self.program.source.text, self.name, [*tensors, *out_tensors])
        outputs = [results[place] for place in range(self._outputs)]
        if out:
            outputs = self._into(out, outputs)
        return outputs[0] if self._outputs == 1 else tuple(outputs)


def _unpickled(program: Program, target: str, options: Options) -> Comprehension:
    """Rebuild a comprehension from a pickle; its code is loaded from the cache or compiled again."""
    from felixlike import _tvm
    from felixlike.hardware import resolve_target
    from felixlike.tc import operator

    operator.prepare()
    return Comprehension(program, resolve_target(_tvm.Target(target)), options)
