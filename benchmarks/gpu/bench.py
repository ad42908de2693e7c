"""Provide the parts with a target, a measuring pool, the time left, tuned models, and interleaved timing of several
sides.

A rehearsal executes everything up to the first line that needs a GPU. Searches use the simulated H100, models and
kernels are compiled for sm_90 (to machine code if NVRTC is installed), and PyTorch's sides are called once on the
CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Journal, Row
from benchmarks.gpu.turns import Turns

Call = Callable[[], object]

_WARM_UP = 3
"""Calls of a side before it is timed; chosen by hand."""

_GRAPHS = "reduce-overhead"
"""torch.compile's mode that starts CUDA graphs itself, which cannot be recorded."""

_RECORDED, _REPLAYS = 20, 12
"""Calls in a CUDA graph, and replays of it, that time a side on the GPU; chosen by hand."""

_TURN_SECONDS = 0.5
"""Longest seconds for which a side is timed in a turn; chosen by hand."""


@dataclass
class Bench:
    """The state of a run.

    `folder` has the journal and the stores. `rehearsal` is true without a GPU. `end` is a time of time.monotonic.
    `points` is the number of points per sketch. `turns` are None if rows are computed one after another. `errors` are
    those of the current row's sides.
    """

    folder: Path
    rehearsal: bool
    end: float
    points: int = 2
    turns: Turns | None = None
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def journal(self) -> Journal:
        """Return the journal of the folder."""
        return Journal(self.folder / "journal.jsonl")

    @property
    def left(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.end - time.monotonic())

    @property
    def device(self) -> str:
        """Return PyTorch's name of the device of the sides."""
        return "cpu" if self.rehearsal else "cuda"

    @cached_property
    def target(self) -> Any:
        """Return the compilation target. Raises UnknownTarget without a GPU, except in a rehearsal."""
        from felixlike.hardware import device_name, resolve_target

        target = resolve_target("simulated:h100" if self.rehearsal else "cuda")
        if not self.rehearsal:
            device_name(target)
        return target

    def side_seconds(self, seconds: float) -> float:
        """Return the seconds for which each side of a row is timed. The others wait if rows have turns."""
        return min(2.0 if self.turns is None else _TURN_SECONDS, seconds * 0.04)

    def turn(self) -> AbstractContextManager[None]:
        """Return a block in which no other row uses the GPU."""
        return nullcontext() if self.turns is None else self.turns.turn()

    def pool(self, target: Any = None) -> Any:
        """Return a measuring pool. `target` replaces the bench's target."""
        from felixlike.measure import MeasurePool, SimulatedPool

        target = self.target if target is None else target
        return SimulatedPool(target) if self.rehearsal else MeasurePool(target)

    def tuned(self, model: Any, inputs: tuple[Any, ...], seconds: float) -> tuple[Call | None, Row]:
        """Tune a model for some seconds. Return a call with inputs on the GPU (None in a rehearsal) and a row about
        the tuning.
        """
        if self.rehearsal:
            return self._rehearsed(model, inputs, seconds)
        call, report = self.optimized(model, inputs, seconds=seconds)
        return call, {"trials": report.trials, "error": report.error, "tuning_seconds": report.total_seconds}

    def optimized(self, model: Any, inputs: tuple[Any, ...], **options: Any) -> tuple[Call, Any]:
        """Return a call of the optimized model with inputs on the GPU, and its report. `options` are of `optimize`."""
        import felixlike as fx

        store = str(self.folder / "models.sqlite")
        optimized = fx.optimize(model, inputs, target=self.target, store=store, progress=False, **options)
        gpu_inputs = tuple(tensor.cuda() for tensor in inputs)
        return lambda: optimized(*gpu_inputs), optimized.report

    def _rehearsed(self, model: Any, inputs: tuple[Any, ...], seconds: float) -> tuple[None, Row]:
        from felixlike import codegen, records
        from felixlike.costmodel import load
        from felixlike.frontend import import_model
        from felixlike.hardware import kind_of
        from felixlike.runtime.compile_model import lowered_model
        from felixlike.search import make_strategy
        from felixlike.symbolic import SpaceName
        from felixlike.tuning import Budget, Session

        imported = import_model(model, inputs, self.target)
        with records.open() as store, self.pool() as pool:
            model_of_costs = load(kind_of(self.target).device)
            strategy = make_strategy("random" if len(imported.tasks) > 1 else "gradient")
            session = Session(
                list(imported.tasks),
                strategy=strategy,
                model=model_of_costs,
                pool=pool,
                store=store,
                space=SpaceName.DEFAULT,  # the simulated device supports only this space
            )
            session.run(Budget(seconds=seconds, trials=4 * len(imported.tasks)))
            trials = store.count()
        best = {state.task.key: state.best for state in session.states if state.best is not None}
        schedules = {key: winner[1].sketch.schedule(winner[1].point) for key, winner in best.items()}
        _, executable = lowered_model(imported, schedules)
        row: Row = {"trials": trials, "simulated_seconds": sum(s for s, _ in best.values())}
        if codegen.cuda_toolchain():
            arch = str(self.target.attrs["arch"])
            binary = codegen.compile_source(codegen.cuda_source(executable), arch)
            row["kernels"] = [kernel.told() for kernel in codegen.kernels_of(binary, arch)]
        return None, row

    def timed(
        self, sides: Mapping[str, Callable[[], Call]], *, seconds_a_side: float = 2.0, recorded: bool = True
    ) -> Row:
        """Return seconds of a call of each side, interleaved, with quartiles, and those on the GPU if `recorded`.

        A side that cannot be made or called is omitted, and the row has its error. `sides` are functions that make
        calls whose results stay on the GPU.
        """
        from felixlike.measure.sides.timing import interleaved, timer

        self.errors = {}
        calls: dict[str, Call] = {}
        for name, make in sides.items():
            try:
                call = make()
                for _ in range(1 if self.rehearsal else _WARM_UP):  # torch.compile records its graphs in later calls
                    synchronised(call, rehearsal=self.rehearsal)()
                calls[name] = call
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {str(error)[:200]}"
        if self.rehearsal:
            return {"called": sorted(calls), "errors": self.errors}
        with self.turn():
            timers = {name: timer(synchronised(call, rehearsal=False)) for name, call in calls.items()}
            times = interleaved(timers, seconds_a_side=seconds_a_side, slot=min(0.1, seconds_a_side / 3))
            busy = {name: self._busy(name, call) for name, call in calls.items() if recorded and name != _GRAPHS}
        row: Row = {name: timing.seconds for name, timing in times.items()}
        row["quartiles"] = {name: [timing.low, timing.high] for name, timing in times.items()}
        return {
            **row,
            "on the GPU": {name: seconds for name, seconds in busy.items() if seconds},
            "errors": self.errors,
        }

    def _busy(self, name: str, call: Call) -> float | None:
        """Return the seconds of a call on the GPU, from replays of a CUDA graph of several calls; None if its calls
        cannot be recorded, as those that start CUDA graphs themselves.
        """
        try:
            return gpu_seconds(call)
        except Exception as error:
            self.errors[f"{name}, recorded"] = f"{type(error).__name__}: {str(error)[:200]}"
            return None


def synchronised(call: Call, *, rehearsal: bool) -> Call:
    """Return a call that ends when the GPU has finished."""
    import torch

    def whole() -> object:
        result = call()
        if not rehearsal:
            torch.cuda.synchronize()
        return result

    return whole


def gpu_seconds(call: Call) -> float:
    """Return the median seconds of a call on the GPU, without the time to start its kernels."""
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(_RECORDED):
            call()
    times: list[float] = []
    for _ in range(_REPLAYS):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        started.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(started.elapsed_time(ended) / 1e3 / _RECORDED)
    return statistics.median(times[1:])


def torch_sides(model: Any, inputs: tuple[Any, ...], *, device: str, compiled: bool) -> dict[str, Callable[[], Call]]:
    """Return PyTorch's sides: eager in float32 and with TF32 (cuBLAS and cuDNN), compiled, and compiled with CUDA
    graphs.

    A rehearsal does not compile (`compiled`), which would need a C++ compiler.
    """
    import torch

    model = model.to(device)
    device_inputs = tuple(tensor.to(device) for tensor in inputs)

    def side(run: Any, *, tf32: bool) -> Callable[[], Call]:
        def call() -> object:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
            with torch.inference_mode():
                return run(*device_inputs)

        return lambda: call

    torch.backends.cudnn.benchmark = True  # cuDNN times its algorithms and takes the fastest
    sides = {"eager": side(model, tf32=False), "eager TF32": side(model, tf32=True)}
    if compiled:
        sides["torch.compile"] = side(torch.compile(model), tf32=False)
        sides[_GRAPHS] = side(torch.compile(model, mode=_GRAPHS), tf32=False)
    return sides
