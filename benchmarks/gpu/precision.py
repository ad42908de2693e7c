"""Measure layers on tensor cores: felixlike with `precision=` against cuBLAS and cuDNN, with the error of each.

Input: a Bench and a row's name, which has the layer and the precision. Outputs: seconds of all sides, their errors
against float64 relative to the largest value, and the tasks that use tensor cores. PyTorch's sides are TF32
(allow_tf32) and autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench, Call
from benchmarks.gpu.journal import Row

LAYERS = (
    *("dense+bias+relu", "batch matmul", "matmul"),
    *("conv2d 3×3", "conv2d 1×1", "conv3d 3×3×3", "conv2d transpose 4×4 s2"),
)
"""The subgraphs that are contractions with sizes for tensor cores."""

PRECISIONS = ("tf32", "float16", "bfloat16")
_POOL = 256
"""Number of points per sketch among which a rehearsal chooses."""


def names() -> list[str]:
    """Return the names of the rows."""
    return [f"{layer}, {precision}" for layer in LAYERS for precision in PRECISIONS[:2]]


def layer_on_tensor_cores(bench: Bench, name: str, seconds: float) -> Row:
    """Compare one layer in one precision."""
    from benchmarks.subgraphs import LAYERS as EVERY

    layer, _, precision = name.partition(", ")
    model, inputs = EVERY[layer]()
    exact = _exact(model, inputs)
    sides = _torch_sides(model, inputs, bench.device)
    if bench.rehearsal:
        row = _rehearsed(bench, model, inputs, precision)
    else:
        call, report = bench.optimized(model, inputs, seconds=seconds * 0.7, precision=precision)
        sides["tuned"] = lambda: call
        row = {"trials": report.trials, "tuning_seconds": report.total_seconds}
        row["on tensor cores"] = [task.name for task in report.tasks if task.precision == precision]
    return {**row, **bench.timed(sides, seconds_a_side=bench.side_seconds(seconds)), "off": _errors(sides, exact)}


def _rehearsed(bench: Bench, model: Any, inputs: Any, precision: str) -> Row:
    """Compile the tensor core schedule with the best prediction for sm_90, since simulated devices do not support
    tensor cores.
    """
    from felixlike import codegen
    from felixlike.frontend import import_model
    from felixlike.hardware import resolve_target, with_precision
    from felixlike.runtime.compile_model import lowered_model

    target = with_precision(resolve_target("sm_90"), precision)
    imported = import_model(model, inputs, target)
    chosen = {task.key: schedule for task in imported.tasks if (schedule := _predicted(task)) is not None}
    _, executable = lowered_model(imported, chosen)
    source = codegen.cuda_source(executable)
    row: Row = {"on tensor cores": [t.name for t in imported.tasks if t.key in chosen]}
    if codegen.cuda_toolchain():
        binary = codegen.compile_source(source, "sm_90")
        row["kernels"] = [kernel.told() for kernel in codegen.kernels_of(binary, "sm_90")]
    return row


def _predicted(task: Any) -> Any | None:
    """Return the scheduled task, or None if it has no sketch for tensor cores."""
    from felixlike.costmodel import load
    from felixlike.features import formulas
    from felixlike.hardware import FLOAT32, kind_of
    from felixlike.symbolic import sketches

    model = load(kind_of(task.target).device)
    best: tuple[float, Any] = (-math.inf, None)
    for sketch in sketches(task, space="own"):
        if sketch.precision == FLOAT32.name or not sketch.is_symbolic:
            continue
        points = np.unique(sketch.sample(_POOL, 0), axis=0)
        scores = model.predict(formulas(sketch).evaluate(points), task.key)
        first = int(np.argmax(scores))
        if float(scores[first]) > best[0]:
            best = float(scores[first]), (sketch, points[first].tolist())
    return None if best[1] is None else best[1][0].schedule(best[1][1])


def _torch_sides(model: Any, inputs: Any, device: str) -> dict[str, Callable[[], Call]]:
    """Return PyTorch eager in float32, in TF32 and, by autocast, in float16."""
    import torch

    model = model.to(device)
    device_inputs = tuple(tensor.to(device) for tensor in inputs)

    def side(*, tf32: bool, half: bool) -> Callable[[], Call]:
        def call() -> object:
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
            with torch.inference_mode(), torch.autocast(device, torch.float16, enabled=half):
                return model(*device_inputs)

        return lambda: call

    return {
        "eager": side(tf32=False, half=False),
        "eager TF32": side(tf32=True, half=False),
        "autocast float16": side(tf32=False, half=True),
    }


def _exact(model: Any, inputs: Any) -> Any:
    import copy

    import torch

    with torch.inference_mode():
        return copy.deepcopy(model).cpu().double()(*(tensor.double() for tensor in inputs))


def _errors(sides: Mapping[str, Callable[[], Call]], exact: Any) -> dict[str, float]:
    """Return the largest differences from float64 relative to the largest value, for sides that can be called."""
    errors = {}
    for name, make in sides.items():
        try:
            got: Any = make()()
            errors[name] = float((got.cpu().double() - exact).abs().max() / exact.abs().max())
        except Exception:  # `Bench.timed` has recorded the error
            continue
    return errors
