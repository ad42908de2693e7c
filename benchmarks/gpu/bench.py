"""Provide the parts with a target, a measuring pool, the time left, tuned models, and interleaved timing of several
sides.

A rehearsal executes everything up to the first line that needs a GPU. Searches use the simulated H100, models and
kernels are compiled for sm_90 (to machine code if NVRTC is installed), and PyTorch's sides are called once on the
CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Journal, Row

Call = Callable[[], object]


@dataclass
class Bench:
    """The state of a run.

    `folder` has the journal and the stores. `rehearsal` is true without a GPU. `end` is a time of time.monotonic.
    `points` is the number of points per sketch. `errors` are those of the current row's sides.
    """

    folder: Path
    rehearsal: bool
    end: float
    points: int = 2
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

    def pool(self, target: Any = None) -> Any:
        """Return a measuring pool. `target` replaces the bench's target."""
        from felixlike.measure import MeasurePool, SimulatedPool

        target = self.target if target is None else target
        return SimulatedPool(target) if self.rehearsal else MeasurePool(target)

    def tuned(self, model: Any, inputs: tuple[Any, ...], seconds: float) -> tuple[Call | None, Row]:
        """Tune a model for some seconds. Return a call with inputs on the GPU (None in a rehearsal) and a row about
        the tuning.
        """
        return self._rehearsed(model, inputs, seconds) if self.rehearsal else self._tuned(model, inputs, seconds)

    def _tuned(self, model: Any, inputs: tuple[Any, ...], seconds: float) -> tuple[Call, Row]:
        import felixlike as fx

        store = self.folder / "models.sqlite"
        optimized = fx.optimize(model, inputs, seconds=seconds, target="cuda", store=str(store), progress=False)
        gpu_inputs = tuple(tensor.cuda() for tensor in inputs)
        report = optimized.report
        row = {"trials": report.trials, "error": report.error, "tuning_seconds": report.total_seconds}
        return lambda: optimized(*gpu_inputs), row

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

    def timed(self, sides: Mapping[str, Callable[[], Call]], *, seconds_a_side: float = 2.0) -> Row:
        """Return seconds of a call of each side, interleaved, with quartiles.

        A side that cannot be made or called is omitted, and the row has its error. `sides` are functions that make
        calls whose results stay on the GPU.
        """
        from felixlike.measure.sides.timing import interleaved, timer

        self.errors = {}
        calls: dict[str, Call] = {}
        for name, make in sides.items():
            try:
                call = synchronised(make(), rehearsal=self.rehearsal)
                call()
                calls[name] = call
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {str(error)[:200]}"
        if self.rehearsal:
            return {"called": sorted(calls), "errors": self.errors}
        times = interleaved({name: timer(call) for name, call in calls.items()}, seconds_a_side=seconds_a_side)
        row: Row = {name: timing.seconds for name, timing in times.items()}
        row["quartiles"] = {name: [timing.low, timing.high] for name, timing in times.items()}
        return {**row, "errors": self.errors}


def synchronised(call: Call, *, rehearsal: bool) -> Call:
    """Return a call that ends when the GPU has finished."""
    import torch

    def whole() -> object:
        result = call()
        if not rehearsal:
            torch.cuda.synchronize()
        return result

    return whole


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

    sides = {"eager": side(model, tf32=False), "eager TF32": side(model, tf32=True)}
    if compiled:
        sides["torch.compile"] = side(torch.compile(model), tf32=False)
        sides["reduce-overhead"] = side(torch.compile(model, mode="reduce-overhead"), tf32=False)
    return sides
