"""Tune a model: import it, split it into tasks, search schedules, compile the best ones and verify the result.

Input: a model, its shapes and a budget. Output: `Optimized`. Each step is a call into one package; see
docs/architecture.md.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike import runtime
from felixlike._util import option_checks, supported, user_folders
from felixlike._util.spent import Spent
from felixlike._util.torch_modes import default_modes
from felixlike.dynamic.joint import Instances, checked
from felixlike.dynamic.optimize import is_dynamic, optimize_dynamic
from felixlike.dynamic.planner import Planner, make_planner
from felixlike.dynamic.slices import optimize_fixed
from felixlike.errors import InvalidOption
from felixlike.frontend import Task, import_model
from felixlike.hardware import FLOAT32
from felixlike.report import Report
from felixlike.search import Strategy
from felixlike.symbolic import SpaceName
from felixlike.tuning.config import RunConfig, check_threads
from felixlike.tuning.verifying import tell

if TYPE_CHECKING:
    import torch

supported.check()


class Optimized:
    """A tuned model: a callable from torch tensors to torch tensors, with a report of the tuning run.

    A pickle contains what `save` writes, machine code included. Unpickle only data you trust. `copy.deepcopy` shares
    code and constants. Under torch.compile and torch.export a call is one operator, felixlike::run, without graph
    breaks.

    Attributes:
        report: The `Report` of the run. `print` shows one row per task, `report.save_html(path)` writes a page with
            plots, `report.plot()` returns a figure.
        inputs: Name, shape and dtype of each input.
        outputs: Name, shape and dtype of each output, nested like the result of a call.
        threads: Number of threads per call. None uses TVM_NUM_THREADS or OMP_NUM_THREADS, else one thread per core.
            It can be set at any time. Calls from several Python threads run concurrently, each on this many threads.
    """

    def __init__(self, compiled: runtime.Compiled, report: Report) -> None:
        self._compiled = compiled
        self._call = compiled.__call__
        self.report = report
        self.inputs = compiled.inputs
        self.outputs = compiled.structure.builder()(compiled.outputs)
        self.__signature__ = compiled.as_python()

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The model's own buffers that calls change, by name: counters, caches, running statistics.

        They start with the values that the original model had, and are saved and copied with this model. To reset one,
        write into it: `fast.state["cache"].zero_()`.
        """
        return dict(zip(self._compiled.mutations.buffers, self._compiled.mutations.state, strict=True))

    @property
    def threads(self) -> int | None:
        """Number of threads per call; None if the environment decides."""
        return self._compiled.threads or None

    @threads.setter
    def threads(self, count: int | None) -> None:
        self._compiled.threads = check_threads(count) or 0

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run the model.

        Outputs carry no gradients. If an input requires one, a NoGradientWarning is issued once.

        Args:
            tensors: The model's positional inputs, with the shapes and dtypes of `inputs`.
            named: The model's keyword inputs.

        Returns:
            The model's outputs, nested like those of the original model.

        Raises:
            InputMismatch: The number, names, shapes or dtypes of the inputs differ from `inputs`. SharedInputs: an
                input that the model changes in place shares memory with another input.
            ForkedProcess: The process was forked from one in which a model has run.
            WrongContext: Derivatives are requested, as by torch.func.grad, or PyTorch traces a model that has dynamic
                sizes or changes tensors in place.
        """
        return self._call(*tensors, **named)

    def __repr__(self) -> str:
        return f"<optimized {self.report.model}({', '.join(map(str, self.inputs))})>"

    def __copy__(self) -> Optimized:
        return Optimized(self._compiled, self.report)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimized:
        return Optimized(copy.deepcopy(self._compiled, memo), self.report)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (runtime.to_bytes(self._compiled, report=self.report.to_json()),)

    def save(self, path: str | Path) -> None:
        """Save the compiled model and its report to one file, which `load` reads without a record store.

        Args:
            path: The file to write. It is written whole or not at all.

        Raises:
            OutputNotWritable: The path cannot be written.
            CompilationFailed: No C compiler is found, or linking fails.
            InvalidModel: The class of the outputs cannot be named in a file.
        """
        runtime.save(self._compiled, path, report=self.report.to_json())

    def export_library(self, path: str | Path) -> None:
        """Export the compiled code as a shared library for TVM's runtime, in C++ or Python; see examples/.

        The library's function takes flat tensors in the order of `inputs`.

        Args:
            path: The file to write.

        Raises:
            OutputNotWritable: The path cannot be written.
            CompilationFailed: The model has one library per batch size, PyTorch runs some of its operators, no C
                compiler is found, or linking fails.
            InvalidModel: The class of the outputs cannot be named in a file.
        """
        runtime.export_library(self._compiled, path)

    def module(self) -> torch.nn.Module:
        """Return this model as an nn.Module without parameters, for use inside other modules such as nn.Sequential.

        Moving the module to another device or dtype raises FixedModel. train() and eval() have no effect.
        """
        from felixlike.runtime.nn_module import CompiledModule

        tensors = (*self.inputs, *self._compiled.outputs)
        return CompiledModule(self, name=self.report.model, tensors=tensors, device=self._compiled.device)


@default_modes(process=False)
def load(path: str | Path, *, threads: int | None = None, mmap: bool = False) -> Optimized:
    """Load a model that `Optimized.save` has written. The file holds machine code: load only files you trust.

    With `mmap`, the weights are mapped from the file: loading takes no time for them, and processes that load the same
    file share one copy. The weights are then not checked against their checksums. The file must stay as it is while the
    model exists: it may be deleted or replaced by another file, but not overwritten or truncated in place, which would
    change the outputs or end the process. Only weights of models for CPUs that have 1 MiB or more are mapped.

    Args:
        path: The saved file.
        mmap: Whether to map the weights instead of reading them.
        threads: Number of threads per call, as for `optimize`. The value at the time of saving is not used.

    Returns:
        The compiled model with the report of its run.

    Raises:
        InvalidArtefact: The file is damaged, or was made by an incompatible version or for another machine.
        InvalidOption: `threads` is not a whole number from 1 to 1024, or `mmap` is not a bool.
    """
    count = check_threads(threads)
    option_checks.of_kind(mmap, bool, "mmap", where="load", remedy="pass True or False")
    loaded = _optimized(*runtime.load(path, mmap=mmap))
    loaded.threads = count
    return loaded


@default_modes(process=False)
def _unpickled(content: bytes) -> Optimized:
    """Load a model from the bytes of a pickle."""
    return _optimized(*runtime.from_bytes(content))


def _optimized(compiled: runtime.Compiled, report: dict[str, Any]) -> Optimized:
    """Return a loaded model with its report."""
    return Optimized(compiled, Report.from_json(report))


def extract_tasks(
    model: Any, shapes: Any = None, target: Any = "cpu", *, example_inputs: Any = None
) -> tuple[Task, ...]:
    """Split a model into tuning tasks without tuning it.

    Args:
        model: As for `optimize`.
        shapes: As for `optimize`.
        target: As for `optimize`.
        example_inputs: Another name for `shapes`.

    Returns:
        The tasks, heaviest first.

    Raises:
        UnknownTarget: As for `optimize`.
        InvalidShape: As for `optimize`.
        InvalidModel: As for `optimize`.
    """
    return import_model(model, shapes, target, example_inputs=example_inputs).tasks


@default_modes()
@user_folders.held_back()  # delays StorageWarning until `tell`, which attaches the model
def optimize(
    model: Any,
    shapes: Any = None,
    rounds: int | None = None,
    *,
    target: Any = "cpu",
    strategy: str | Strategy = "gradient",
    space: str = SpaceName.BEST,
    trials: int | None = None,
    seconds: float | None = None,
    effort: str = "normal",
    store: str | Path | None = None,
    example_inputs: Any = None,
    seed: int = 0,
    weights: str | Path | None = None,
    progress: bool | str = True,
    tracker: str | None = None,
    key: str | None = None,
    threads: int | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    compare: bool = False,
    dynamic_shapes: Any = None,
    instances: Instances | None = None,
    planner: str | Planner | None = None,
) -> Optimized:
    """Tune a model and return a callable that runs faster.

    Interrupts are safe. The first Ctrl-C stops the search and keeps the best schedules found, the second skips the
    remaining verification, the third raises KeyboardInterrupt. Invalid arguments raise an error before any long work.

    Args: What to tune
        model: A torch.nn.Module, an ExportedProgram, the path of a .pt2 or .onnx file, an ONNX ModelProto, a Relax
            IRModule or a PrimFunc (docs/inputs.md).
        shapes: Example inputs as the model takes them, tuples of sizes, or a dict from input names to either. A size
            may be a `Dim`: the model then serves all sizes of it (docs/dynamic-shapes.md). If that size is the batch
            of a model with convolutions, the model is tuned for a few batch sizes, which share the limits. With any
            other `Dim`, `strategy`, `space` and `weights` affect only the functions of fixed sizes, and each timing of
            a kernel for dynamic sizes is a trial.
        example_inputs: Another name for `shapes`.
        dynamic_shapes: Which sizes of the example inputs are dynamic, as torch.export takes them: an entry for each
            input by position or by name, nested like the input, with a dict from dimensions to `Dim`s for each tensor.
            `torch.export.Dim`s are accepted, too.
        instances: Joint sizes for which programs are chosen if several sizes are dynamic, see `felixlike.instances`.
            None for all combinations of the sizes of each `Dim`. Calls may have any sizes in their ranges either way.
        planner: How kernels for `Dim`s are chosen: "timed" (default), "ftuner" (as published, without timings),
            "dietcode" (its search, on GPUs), or an object with options such as `felixlike.dynamic.FTuner(sia=(2, 1,
            1))` (docs/dynamic-shapes.md).
        precision: Precision of float32 products: "float32" (exact), on CPUs also "bfloat16" (docs/bfloat16.md), or on
            a GPU's tensor cores "tf32", "float16" or "bfloat16" (docs/gpu.md). Factors are rounded first: both of them,
            or only constant weights on CPUs without products of bfloat16 pairs. Sums are always float32. The report
            names the tasks that use it.
        tolerance: Largest error of the model against float64, relative to its largest output, that `precision` may
            cause. While the error for the example inputs is larger, tasks go back to float32, the worst first. If it is
            larger in float32, too, a FallbackWarning is issued. With None, no task goes back (docs/bfloat16.md).

    Args: How long
        rounds: Maximum number of rounds; one round measures up to 8 candidates of one task, or the strategy's
            `trials_per_round`. The run ends at the first limit reached. Without any limit, `effort` decides. Every task
            gets a verified schedule regardless of the limits.
        trials: Maximum number of measured candidates.
        seconds: Maximum time in seconds.
        effort: What a run without limits measures: "instant" nothing (schedules are chosen by prediction and verified),
            "quick" two rounds per task, "normal" up to eight, "thorough" 32.
        store: Path of a file that keeps every measurement. Limits are then totals over all runs of the model with this
            file: a run whose limits are used up returns at once, and larger limits resume the search.

    Args: Where
        target: "cpu", "cuda" or another target name, or a TVM target. With "simulated:cpu" a surrogate of the device
            predicts the times, and the result is compiled for this CPU (docs/simulated.md).
        threads: Number of threads per call of the result, from 1 to 1024; None for the environment's number, see
            `Optimized.threads`.
        tracker: "HOST:PORT" of a TVM RPC tracker whose servers measure; requires `key` (docs/rpc.md).
        key: The key of the tracker's servers. Their devices and this machine must be of the target's kind.

    Args: How
        strategy: A name of `felixlike.search.strategy_names()`, such as "gradient", or a strategy with options, such as
            `felixlike.search.Gradient(seeds=64)`.
        space: The design space: "best" (felixlike's rules, MetaSchedule's where none applies; both on GPUs), "own"
            (felixlike's rules), "default" (MetaSchedule's) or "all".
        weights: Path of cost-model weights; None for the shipped ones.
        seed: Random seed. It fixes the choice of candidates, given the same measurements.
        progress: True for a live line on a terminal, False for nothing, or "plain" for plain lines.
        compare: Also time the original in eager PyTorch: in turns with the tuned model, in processes of their own, on
            the example inputs and the same number of threads. It takes about 10 s. The report has both latencies.

    Returns:
        The tuned model and the report of the run.

    Raises:
        InvalidBudget: A limit is negative or not a number. This error and those up to ForkedProcess are raised early.
        InvalidOption: An option has an invalid value.
        UnknownTarget: The target's name is unknown, or its device is missing.
        InvalidShape: A shape is malformed.
        InvalidDim: A dynamic size is invalid, or an instance is out of the ranges of its `Dim`s.
        InvalidModel: The model cannot be imported; subclasses name the cause.
        StoreError: The store cannot be opened.
        InvalidWeights: The weights cannot be read.
        TrackerFailed: The tracker cannot be reached, or has no server for the key.
        WrongDevice: A server's device differs from the target.
        ForkedProcess: The process was forked from one that has run a compiled model.
        VerificationFailed: The tuned model computes something else. The error's `optimized` is the tuned model.
        WorkerFailed: Measuring failed before anything was tuned. Other errors of measuring are raised likewise.
        CompilationFailed: TVM could not compile the tuned model.

    Warns once the model is complete, with the model as the warning's `optimized`: TrainingModeWarning,
    NondeterministicModelWarning, UnverifiedWarning, SearchFailedWarning, InternalErrorWarning,
    FallbackWarning, StorageWarning.

    Example:
        >>> fast = fx.optimize(model, example_inputs, rounds=50, store="runs.sqlite")
        >>> y = fast(x)
        >>> fast.save("model.flx")
    """
    spent = Spent()
    with spent.running():
        config = RunConfig.checked(
            target=target,
            precision=precision,
            tolerance=tolerance,
            rounds=rounds,
            trials=trials,
            seconds=seconds,
            effort=effort,
            store=store,
            strategy=strategy,
            space=space,
            weights=weights,
            seed=seed,
            progress=progress,
            tracker=tracker,
            key=key,
            threads=threads,
            compare=compare,
        )
    joint = None if instances is None else checked(instances)
    dynamic_planner = None if planner is None else make_planner(planner)
    if dynamic_shapes is not None or is_dynamic(model, shapes, example_inputs):
        result = optimize_dynamic(model, shapes, example_inputs, config, dynamic_shapes, joint, dynamic_planner, spent)
    elif joint is not None or planner is not None:
        option = "planner" if joint is None else "instances"
        raise InvalidOption("no size is a Dim", where=option, remedy="leave it out, or give Dims in `shapes`")
    else:
        result = optimize_fixed(model, shapes, example_inputs, config, spent)
    optimized = Optimized(result.compiled, result.report)
    optimized.threads = config.threads
    reduced = result.report.precision != FLOAT32.name and any(t.precision != FLOAT32.name for t in result.report.tasks)
    tell(result.verification, result.report.model, optimized, result.warnings, reduced=reduced)
    return optimized
