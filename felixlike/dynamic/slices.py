"""Tune a model with a fixed batch, and compute the batch in slices if that is faster.

Each kernel of a model computes the whole batch. If the tensors between kernels exceed the last-level cache, the kernels
wait for memory. For a slice of the batch, they stay in the cache, but more and shorter kernels are called, and each
slice reads all weights. So slices are tried for models with small weights and large tensors between kernels, such as
MobileNets. A slice is tuned, and compared with the whole batch with predicted schedules.

Samples must be independent of each other, which is proved for the model's kernels and tested on random samples.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike._util.interrupts import Interrupts, joined
from felixlike._util.spent import Spent, on
from felixlike.dynamic.batch import Batch, in_parts, is_independent
from felixlike.dynamic.dims import Dim
from felixlike.errors import FallbackWarning
from felixlike.frontend import Imported, import_model
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.relax import leaves
from felixlike.frontend.independent_samples import batch_size, has_independent_samples
from felixlike.hardware import Device, target_device
from felixlike.runtime import Verdict
from felixlike.tuning.config import RunConfig
from felixlike.tuning.reporting import call_fields, spent_fields, verification_fields, verification_note
from felixlike.tuning.run import Result, timed, tune
from felixlike.tuning.verifying import UNVERIFIED, before_comparing, error_of_precisions, hand_over, verified


@dataclass(frozen=True, slots=True)
class _Limits:
    """When slices are tried. All values are chosen by hand.

    Attributes:
        batch: Minimum batch size.
        seconds: Minimum time limit of the run. Compiling a MobileNet for a whole batch takes about 20 s.
        passes: Bytes moved for each byte of a tensor that exceeds the cache: an ordinary store loads the line first.
        gain: Minimum time of moving these tensors, relative to that of the arithmetic.
        faster: Maximum time of all slices, relative to that of the whole batch, for slices to be used.
    """

    batch: int = 4
    seconds: float = 45.0
    passes: int = 3
    gain: float = 0.5
    faster: float = 0.95


_LIMITS = _Limits()


def optimize_fixed(model: Any, shapes: Any, example_inputs: Any, config: RunConfig, spent: Spent) -> Result:
    """Tune a model with fixed sizes, in slices of its batch if these are faster.

    Args:
        model: As for `felixlike.optimize`.
        shapes: As for `felixlike.optimize`, without `Dim`s.
        example_inputs: Another name for `shapes`.
        config: The run's options. The measurements for the choice between slices and the whole are not trials.
        spent: The clock of the run.

    Returns:
        The compiled model, its report and what there is to tell about it. A model in slices is a `Chunked`.

    Raises:
        FelixlikeError: As for `felixlike.tuning.run.tune`.
    """
    if _may_slice(model, config) and max(_first_sizes((shapes, example_inputs)), default=1) >= _LIMITS.batch:
        with spent.running(), on("importing"):
            imported = import_model(
                model, shapes, config.target, example_inputs=example_inputs, wide_tensors=config.wide_tensors
            )
            batch = _batch(model, imported)
        imported = replace(imported, module=None)  # frees the weights
        if batch is not None:
            with joined() as interrupts:
                result = _in_slices(batch, imported, config, spent, interrupts)
            if result is not None:
                return result
    return tune(model, shapes, example_inputs, config, spent)


def _may_slice(model: Any, config: RunConfig) -> bool:
    """Return whether a run may use slices: a PyTorch module with small weights is measured on this machine's CPU."""
    import torch

    has_time = config.seconds is None or config.seconds >= _LIMITS.seconds
    if not (config.is_here and has_time and config.measures and isinstance(model, torch.nn.Module)):
        return False
    if any(map(torch.nn.parameter.is_lazy, _weights(model))):  # their sizes are not known
        return False
    return _bytes_of_weights(model) < target_device(config.target).l3_bytes


def _first_sizes(given: Any) -> Iterator[int]:
    """Yield the first size of each tensor, or of its sizes, in nested inputs."""
    if isinstance(given, Mapping):
        given = list(given.values())
    sizes = getattr(given, "shape", given)
    if isinstance(sizes, Sequence) and sizes and isinstance(sizes[0], int):
        yield sizes[0]
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _first_sizes(part)


def _weights(model: Any) -> list[Any]:
    """Return a module's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]


def _bytes_of_weights(model: Any) -> int:
    """Return the bytes of a module's parameters and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _weights(model))


def _batch(model: Any, imported: Imported) -> Batch | None:
    """Return the batch and the slice of a model; None if slices would not be faster or could be wrong."""
    batch = batch_size(imported.module) or 1
    cut = tuple(spec.shape[:1] == (batch,) for spec in imported.inputs)
    shared = len(set(imported.roots)) < len(imported.roots) or min(imported.roots, default=len(cut)) < len(cut)
    if batch < _LIMITS.batch or not any(cut) or imported.mutations or shared:
        return None
    size = _slice(imported, batch, _bytes_of_weights(model), target_device(imported.target))
    if size is None or not has_independent_samples(imported.module, batch):
        return None
    source = Source(
        imported.name, None, imported.signature, imported.structure, imported.examples, original=imported.original
    )
    found = Batch(model, source, Dim("batch", [batch]), cut, (size, batch))
    return found if is_independent(found) else None


def _slice(imported: Imported, batch: int, weights: int, device: Device) -> int | None:
    """Return the largest slice whose tensors fit into the cache beside the weights.

    None if there is none, or if moving the tensors of the whole batch takes little of the estimated time.
    """
    sizes = [
        math.prod(map(int, kind.shape.values)) * _tvm.bits(kind.dtype) // 8
        for block in imported.module["main"].body.blocks
        for binding in block.bindings
        for kind in leaves(binding.var.ty)
        if kind.shape is not None and [int(size) for size in kind.shape.values[:1]] == [batch]
    ]
    moved = _LIMITS.passes * sum(size for size in sizes if size > device.l3_bytes // 2)
    flops = sum(task.weight * task.flops for task in imported.tasks)
    if moved / device.memory_bandwidth < _LIMITS.gain * flops / device.flops:
        return None
    sample = max(sizes) // batch
    fitting = [n for n in range(1, batch) if batch % n == 0 and weights + 2 * n * sample <= device.l3_bytes]
    return max(fitting, default=None)


def _in_slices(
    batch: Batch, imported: Imported, config: RunConfig, spent: Spent, interrupts: Interrupts
) -> Result | None:
    """Tune a model in slices.

    Return None if the whole is to be tuned instead: slices are not right, or not faster, and there is no time limit. If
    they are not faster and there is one, or if the run is interrupted, the whole with predicted schedules is returned.
    """
    size, whole = batch.sizes
    predicted = replace(config, rounds=None, trials=0, seconds=None, store=None, compare=False)
    parts: dict[int, Result] = {}
    with _unsaved():
        for n, part_config in ((whole, predicted), (size, replace(config, compare=False))):
            parts[n] = part = tune(*batch.fixed(n), None, part_config, spent)
            if part.verification.verdict is not Verdict.RIGHT:
                return None
            if interrupts.ended or interrupts.hurried:
                return parts[whole]
    with spent.running(), on("timing"):
        compiled = in_parts(batch, {n: part.compiled for n, part in parts.items()}, measure=True)
    seconds = compiled.seconds
    if seconds[size] * (whole // size) > _LIMITS.faster * seconds[whole]:
        return None if config.seconds is None or config.compare else parts[whole]
    compiled.threads = config.threads or 0
    words = f"{part.report.stopped}; the batch of {whole} is computed in slices of {size}"
    tasks = tuple(replace(task, weight=task.weight * (whole // size)) for task in part.report.tasks)
    report = replace(part.report, stopped=words, tasks=tasks)
    hand_over(compiled, lambda: replace(report, note=verification_note(UNVERIFIED)))
    problems = list[str]()
    with spent.running():
        with on("verifying"):
            products = error_of_precisions(config.target, {task.precision for task in report.tasks})
            verification = verified(imported, compiled, products, interrupts)
        if config.tolerance is not None and verification.error > config.tolerance:
            return None
        with on("timing"):
            times = timed(imported, compiled, config, verification, interrupts, problems.append)
    finished = replace(
        report,
        **verification_fields(verification),
        total_seconds=time.monotonic() - config.started,
        note=" ".join(filter(None, (imported.note, verification_note(verification), times.words))),
        **call_fields(times),
        **spent_fields(spent),
    )
    failed = (FallbackWarning(f"{imported.name}: {problem}.") for problem in problems)
    return Result(compiled, finished, verification, (*part.warnings, *failed))


@contextlib.contextmanager
def _unsaved() -> Iterator[None]:
    """Keep the models of a block from being saved before they are compared: they are parts of one."""
    token = before_comparing.set(None)
    try:
        yield
    finally:
        before_comparing.reset(token)
