"""Time whole calls of a tuned model, alone or beside the original in eager PyTorch.

Inputs: an imported model and the compiled one. Output: `CallTimes`. Beside eager PyTorch, each model runs in a process
of its own: thread pools of TVM and PyTorch in one process slow each other down, up to a hundredfold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from felixlike import runtime
from felixlike._util import scratch
from felixlike.errors import InvalidOption
from felixlike.frontend import Imported
from felixlike.hardware import kind_of, placement
from felixlike.measure.sides.timing import Timed, consecutive, summary
from felixlike.runtime import Compiled
from felixlike.tuning.config import RunConfig

_SECONDS, _FEWEST, _MOST = 0.1, 3, 1000
"""Seconds of timing a model alone, and the limits on its calls. Chosen by hand."""

_SLOW = 1.0
"""Seconds of a call from which on a model is timed once. Chosen by hand."""

_REST = 0.02
"""Seconds to wait for PyTorch's threads to sleep: OpenMP's wait actively for some milliseconds. Chosen by hand."""

_SECONDS_A_SIDE = 2.0
"""Seconds of timing per side beside eager PyTorch. Chosen by hand."""

EAGER, TUNED = "eager PyTorch", "the tuned model"


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Latencies of whole calls.

    Attributes:
        tuned: The tuned model's; None if not timed.
        eager: The original's in eager PyTorch; None if not timed.
        words: Why a comparison was not made, as a sentence; else empty.
    """

    tuned: Timed | None = None
    eager: Timed | None = None
    words: str = ""


def require_eager(model: Any, config: RunConfig) -> None:
    """Raise InvalidOption if `compare` is set and the model cannot be run in eager PyTorch on this machine's CPU."""
    if not config.compare:
        return
    if not kind_of(config.target).on_host:
        raise InvalidOption(
            "eager PyTorch is timed on the CPU only",
            where="compare",
            remedy="leave out `compare`, or optimize for a CPU",
        )
    if not _is_pytorch(model.original if isinstance(model, Imported) else model):
        raise InvalidOption(
            "the model has no original in PyTorch to compare with",
            where="compare",
            remedy="leave out `compare`, or pass an nn.Module, an ExportedProgram or a .pt2 file",
        )


def _is_pytorch(model: Any) -> bool:
    """Return whether a model is PyTorch's. Other files and classes are refused when they are read."""
    import torch

    if isinstance(model, str | Path):
        return Path(model).suffix == ".pt2"
    return isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def call_times(imported: Imported, compiled: Compiled, config: RunConfig) -> CallTimes:
    """Time calls on the example inputs, beside eager PyTorch if the options say so.

    Alone, only models that are tuned for this machine's CPU are timed. Those that change their inputs or buffers in
    place are never timed.

    Args:
        imported: The model.
        compiled: The compiled model. It has been verified, since a wrong kernel could damage this process.
        config: The run's options.
    """
    if compiled.mutations:
        words = "The model was not timed, since calls change its inputs or buffers." if config.compare else ""
        return CallTimes(words=words)
    if config.compare:
        return _beside_eager(imported, compiled, config.threads)
    return CallTimes(_alone(imported, compiled)) if config.is_here else CallTimes()


def _alone(imported: Imported, compiled: Compiled) -> Timed:
    """Time calls in this process. Models that draw random numbers leave the caller's generator as it was."""
    import torch

    args, kwargs = imported.signature.arguments(imported.examples)
    run = partial(compiled, *args, **kwargs)
    time.sleep(_REST)
    with torch.random.fork_rng(devices=[]):
        run()  # after the original, whose data is in the caches
        latencies = consecutive(run, 1)
        if latencies[0] <= _SLOW:
            calls = min(_MOST, max(_FEWEST, int(_SECONDS / max(latencies[0], 1e-7))))
            latencies += consecutive(run, calls - 1)
        return summary(latencies)


def _beside_eager(imported: Imported, compiled: Compiled, threads: int | None) -> CallTimes:
    """Time calls of both models in turns, each in a process of its own, on equal inputs and numbers of threads."""
    from felixlike.measure.sides.modules import sendable
    from felixlike.measure.sides.processes import Sides

    count = threads or placement.threads()
    args, kwargs = imported.signature.arguments(imported.examples)
    with scratch.temporary("compare") as folder, Sides() as sides:
        path = folder / "model.flx"
        runtime.save(compiled, path, report={})
        makes = {
            EAGER: partial(_eager, sendable(imported.original), args, kwargs, count),
            TUNED: partial(_saved, path, args, kwargs, count),
        }
        times = sides.compare(makes, seconds_a_side=_SECONDS_A_SIDE, say=str)
    failures = "; ".join(f"{name}: {why}" for name, why in sides.failures.items())
    words = f"The model was not compared with eager PyTorch: {failures}." if failures else ""
    return CallTimes(times.get(TUNED), times.get(EAGER), words)


def _eager(
    make: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: int
) -> Callable[[], object]:
    """Create the call of the original in eager PyTorch, in eval mode without gradients."""
    import torch

    torch.set_num_threads(threads)
    model = make().cpu()
    if not isinstance(model, torch.fx.GraphModule):  # an exported program keeps its mode
        model.eval()

    def call() -> object:
        with torch.inference_mode():
            return model(*args, **kwargs)

    return call


def _saved(path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], threads: int) -> Callable[[], object]:
    """Create the call of a saved model."""
    compiled, _ = runtime.load(path)
    compiled.threads = threads
    return partial(compiled, *args, **kwargs)
