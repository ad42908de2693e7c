"""The whole story on a page: model → tasks → rounds of search → the best schedules in one compiled callable.

In: a model, its shapes, a budget. Out: `Optimized`. Every step is a call into one room; see docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike import costmodel, hardware, records, runtime
from felixlike._util import option_checks, user_folders
from felixlike._util.deadline import Deadline
from felixlike._util.interrupts import joined
from felixlike._util.torch_modes import default_modes
from felixlike.dynamic.optimize import is_dynamic, optimize_dynamic
from felixlike.errors import InvalidOption
from felixlike.frontend import Task, import_model
from felixlike.hardware import device_name, kind_of, require_real, require_runnable, resolve_target, simulated
from felixlike.hardware.placement import pin_threads
from felixlike.measure import MeasurePool, Pool, RpcPool, SimulatedPool
from felixlike.measure.rpc.tracker import check_servers
from felixlike.report import Report, RunLog, make_progress
from felixlike.search import Strategy, make_strategy
from felixlike.symbolic import SpaceName, check_space
from felixlike.tuning import Budget, Event, Session, one_thread
from felixlike.tuning.finish import About, Finish, closing, tell, versions

if TYPE_CHECKING:
    import torch


_MOST_THREADS = 1024
"""Of a call, whatever somebody asks for."""


class Optimized:
    """A tuned model: a callable from torch tensors to torch tensors, with a report of how it came about.

    report: what was done to every task; prints itself, `report.save_html(path)` writes a page with pictures,
    `report.plot()` draws.  inputs: names, shapes and dtypes it takes.  outputs: the same of what it
    gives, nested as its result is.  threads: how many a call runs on; None for what TVM_NUM_THREADS or OMP_NUM_THREADS
    say, else one for each core. May be set at any time. Calls of several threads run side by side, each with so many.

    It can be pickled, and so be sent to other processes: as what `save` writes, machine code included, so unpickle only
    what you trust. copy.deepcopy shares code and constants. Under
    torch.compile and torch.export a call is one operator, felixlike::run, so no graph breaks."""

    def __init__(self, compiled: runtime.Compiled, report: Report) -> None:
        self._compiled = compiled
        self._call = compiled.__call__
        self.report = report
        self.inputs = compiled.inputs
        self.outputs = compiled.structure.builder()(compiled.outputs)
        self.__signature__ = compiled.as_python()

    @property
    def threads(self) -> int | None:
        """How many threads a call runs on; None for what the environment says."""
        return self._compiled.threads or None

    @threads.setter
    def threads(self, count: int | None) -> None:
        self._compiled.threads = _threads(count)

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """The model's outputs, nested as the model nests them. Raises InputMismatch for wrong inputs.

        Outputs carry no gradients: if an input needs one, a NoGradientWarning warning says so once."""
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
        """Write one file that `load` reads back, without any tuning store. Raises OutputNotWritable."""
        runtime.save(self._compiled, path, report=self.report.to_json())

    def export_library(self, path: str | Path) -> None:
        """Write the compiled code as a shared library that TVM's runtime loads by itself, from C++ or Python: see
        examples/. Inputs are flat tensors in the order of `inputs`. Raises OutputNotWritable, CompilationFailed."""
        runtime.export_library(self._compiled, path)

    def module(self) -> torch.nn.Module:
        """The same as an nn.Module without parameters, to be a part of others: in nn.Sequential, say.

        Moving it to another device or type raises FixedModel; train() and eval() change nothing."""
        from felixlike.runtime.nn_module import CompiledModule

        tensors = (*self.inputs, *self._compiled.outputs)
        return CompiledModule(self, name=self.report.model, tensors=tensors, device=self._compiled.device)


@default_modes()
def load(path: str | Path, *, threads: int | None = None) -> Optimized:
    """A saved model. It holds machine code: load only files you trust. threads: as of `optimize`, whatever the model
    was saved with. Raises InvalidArtefact, InvalidOption."""
    count = _threads(threads)
    loaded = _optimized(*runtime.load(path))
    loaded.threads = count or None
    return loaded


def _threads(count: int | None) -> int:
    """A number of threads as compiled models have it, 0 for None. Raises InvalidOption."""
    return 0 if count is None else option_checks.whole(count, "threads", least=1, most=_MOST_THREADS, otherwise="None")


def _unpickled(content: bytes) -> Optimized:
    return _optimized(*runtime.from_bytes(content))


def _optimized(compiled: runtime.Compiled, report: dict[str, Any]) -> Optimized:
    return Optimized(compiled, Report.from_json(report))


def extract_tasks(
    model: Any, shapes: Any = None, target: Any = "cpu", *, example_inputs: Any = None
) -> tuple[Task, ...]:
    """The tasks of a model, heaviest first. Raises as `optimize` does for bad models, shapes and targets."""
    return import_model(model, shapes, target, example_inputs=example_inputs).tasks


@default_modes()
@user_folders.held_back()  # until `tell`, which has the model
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
    store: str | Path | None = None,
    example_inputs: Any = None,
    seed: int = 0,
    weights: str | Path | None = None,
    progress: bool | str = True,
    tracker: str | None = None,
    key: str | None = None,
    threads: int | None = None,
    precision: str = "float32",
) -> Optimized:
    """Tune a model and return a callable that runs faster.

    model: a torch.nn.Module, an ExportedProgram, the path of a .pt2 or .onnx file, a Relax IRModule or a PrimFunc.
    shapes: example inputs, as the model takes them, tuples of sizes, or either by input name; example_inputs is another
    name for it. A size may be a Dim: the model then serves all sizes of it (docs/dynamic-shapes.md). Where that is the
    batch of a model with convolutions, it is optimized for a few sizes, which share the limits; elsewhere limits,
    strategy, space, store and weights mean nothing, but that with rounds=0 or trials=0 nothing is timed.
    rounds, trials, seconds: limits, whichever runs out first; a round measures up to 16 candidates of one task. Without
    any limit there are 4 rounds a task. Whatever the budget, every task gets a verified schedule. store: a file that
    keeps every measurement; limits then are totals over all runs of the model with it, so a later run returns at once,
    and goes on from there with larger limits.
    strategy: a name, "gradient", "evolutionary", "adatune", "lfbo", "genetic", "random" or a registered one, or a
    strategy with options: felixlike.search.Gradient(seeds=64).
    space: whose sketches are searched: "best" (our rules, MetaSchedule's where none applies; on GPUs both),
    "own", "default" (MetaSchedule's) or "all". weights: of the cost model, None for those shipped. seed: fixes the
    choice of candidates, given the same measurements. progress: True, False or "plain". Ctrl-C ends the search early
    and returns the best so far; once more, while that is made, leaves out what is still to be checked; a third time
    raises KeyboardInterrupt.
    target: "cpu", "cuda" and their like, or a TVM target; with "simulated:cpu" the search asks a surrogate of such a
    device, and what it finds is compiled for this CPU (docs/simulated.md).
    precision: what products of float32 numbers may be computed in: "float32", exactly, or on a GPU's tensor cores
    "tf32", "float16" or "bfloat16", which round them first (docs/gpu.md); sums are of float32 always. The report says
    which tasks it came to.
    threads: how many the result's calls run on, None for what the environment says (Optimized.threads).
    tracker, key: measure on the servers of TVM's tracker at HOST:PORT under this key, which must be of the target's
    kind, as this machine is; see docs/rpc.md. Raises InvalidBudget, InvalidOption, UnknownTarget, InvalidShape,
    InvalidModel and its kinds, StoreError, InvalidWeights, TrackerFailed, WrongDevice, ForkedProcess before any long
    work; VerificationFailed, with the model as its `optimized`, if that computes something else; WorkerFailed and the
    like only while nothing is tuned, CompilationFailed. Warns, once the model is there and with it as `optimized`, of
    what was not as it should be: TrainingModeWarning, InputUnchangedWarning, NondeterministicModelWarning,
    UnverifiedWarning, SearchFailedWarning, InternalErrorWarning, FallbackWarning, StorageWarning."""
    started = time.monotonic()
    budget = Budget(rounds, trials, seconds, started=started)
    search, reporter = make_strategy(strategy), make_progress(progress)
    seed, space, count = option_checks.seed(seed), check_space(space), _threads(threads)
    target = hardware.with_precision(resolve_target(target), precision)
    require_runnable(target)
    device = device_name(target)  # raises where the GPU it needs is missing
    kind = kind_of(target)
    if kind.on_host:
        pin_threads()  # raises where the calling thread could not run the result
    if is_dynamic(model, shapes, example_inputs):
        limits = {"rounds": rounds, "trials": trials, "seconds": seconds}
        same = {
            "target": target,
            "strategy": strategy,
            "space": space,
            "store": store,
            "seed": seed,
            "weights": weights,
        }
        dynamic = _dynamic(model, shapes, example_inputs, limits, **same, progress=progress, tracker=tracker, key=key)
        dynamic.threads = count or None
        return dynamic
    deadline = Deadline()
    pool_of = _pool_of(target, tracker, key, deadline)
    predictor = costmodel.load(kind.device, weights, seed=seed)
    problems: list[str] = []
    with (
        joined() as interrupts,
        closing(records.open(store), problems) as opened,
        closing(reporter, problems),
        closing(RunLog(store), problems) as log,
        contextlib.ExitStack() as opening,
    ):
        pool = opening.enter_context(closing(pool_of(target), problems))  # its processes start while the model is read
        reporter.say("importing the model")
        imported = import_model(model, shapes, target, example_inputs=example_inputs)
        budget.with_default(len(imported.tasks))
        about = {"model": imported.name, "target": str(target), "device": device, "seed": seed, "versions": versions()}
        log.write(
            "start",
            **about,
            tracker=tracker,
            budget={"rounds": budget.rounds, "trials": budget.trials, "seconds": budget.seconds},
            tasks={task.key: task.name for task in imported.tasks},
            calls={task.key: task.weight for task in imported.tasks},
        )

        def observe(event: Event) -> None:
            for told in (reporter.event, log.event):
                with contextlib.suppress(Exception):  # no run ends for what is said of it
                    told(event)
            interrupts.check()

        with opening.pop_all(), one_thread():
            session = Session(
                imported.tasks,
                strategy=search,
                model=predictor,
                pool=pool,
                store=opened,
                seed=seed,
                space=space,
                observe=observe,
                deadline=deadline,
            )
            spent = session.spent
            finish = Finish(imported, session, budget, interrupts=interrupts, problems=problems)
            finish.search()
            tuned = budget.elapsed()
            devices = ", ".join(sorted(pool.devices))
            again = "; Ctrl-C again leaves out what is still to be checked" if interrupts.ended else ""
            reporter.say(f"choosing and compiling the best schedules{again}")
            with spent.on("choosing"):
                finish.choose(predictor, pool, seed=seed)
        with spent.on("compiling"):
            compiled = finish.compile()
        with spent.on("comparing"):
            finish.verify(compiled, run := About(device=devices, seed=seed, started=started, tuned=tuned))
        report = finish.report(run, log)
        optimized = Optimized(compiled, report)
        optimized.threads = count or None
    finish.tell(optimized)
    return optimized


def _dynamic(model: Any, shapes: Any, example_inputs: Any, limits: Mapping[str, Any], **same: Any) -> Optimized:
    """`optimize` of a model some of whose sizes a call decides, with these limits and options."""
    target = require_real(same["target"], where="dynamic shapes")  # they are measured here
    hardware.require_float32(target)

    def fixed(part: Any, given: Any, own: Mapping[str, Any]) -> tuple[runtime.Compiled, Report]:
        found = optimize(part, given, **own, **same)
        return found._compiled, found.report

    compiled, stated, found, warned = optimize_dynamic(
        model, shapes, example_inputs, target, fixed, limits, seed=same["seed"]
    )
    optimized = Optimized(compiled, stated)
    tell(found, stated.model, optimized, warned)
    return optimized


def _pool_of(
    target: Any, tracker: str | None, key: str | None, deadline: Deadline
) -> Callable[[Any], AbstractContextManager[Pool]]:
    """How to open a pool for a target: here, on a tracker's servers, or without measuring."""
    if tracker is None and key is None:
        return partial(MeasurePool if simulated(target) is None else SimulatedPool, deadline=deadline)
    require_real(target, where="tracker")
    if tracker is None or key is None:
        missing, given = ("tracker", "key") if tracker is None else ("key", "tracker")
        raise InvalidOption(f"there is a {given} but no {missing}", where=missing, remedy="give both or neither")
    check_servers(tracker, key)  # now, before the model is imported
    return partial(RpcPool, tracker=tracker, key=key, deadline=deadline)
