"""Define the sides of comparisons: saved models, untuned TVM, PyTorch eager, torch.compile and ONNX Runtime.

Input: a picklable function that creates a module and its inputs. Outputs: functions that create a call of it
(`processes.Make`), each run in its own process. PyTorch eager has two sides, one per memory layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util import scratch
from felixlike.measure.sides.processes import Make

if TYPE_CHECKING:
    from felixlike.bench.networks import Model

Call = Callable[[], object]
"""A call of a model on its example inputs."""

EAGER, CHANNELS_LAST = "PyTorch eager", "eager, channels last"
"""Names of the sides of PyTorch in eager mode."""

COMPILED, ONNX, UNTUNED = "torch.compile", "ONNX Runtime", "TVM untuned"
"""Names of the other sides."""


def baselines(make: Callable[[], Model], names: Sequence[str] = (EAGER, COMPILED, ONNX, UNTUNED)) -> dict[str, Make]:
    """Return the functions that create the baselines' calls, by name.

    Args:
        make: Function that creates a module and its inputs.
        names: Names of sides.
    """
    kinds = {EAGER: eager, CHANNELS_LAST: channels_last, COMPILED: compiled, ONNX: onnxruntime, UNTUNED: untuned}
    return {name: partial(kinds[name], make) for name in names}


def saved(path: Path, make: Callable[[], Model]) -> Call:
    """Create the call of a model that felixlike has saved, on the inputs of the original."""
    import felixlike as fx

    model, (_, inputs) = fx.load(path), make()
    return lambda: model(*inputs)


def untuned(make: Callable[[], Model]) -> Call:
    """Create the call of TVM's code without tuning."""
    from felixlike.frontend import import_model
    from felixlike.runtime import compile_model

    model, inputs = make()
    plain = compile_model(import_model(model, inputs))
    return lambda: plain(*inputs)


def eager(make: Callable[[], Model]) -> Call:
    """Create the call of PyTorch in eager mode."""
    return inference(*make())


def channels_last(make: Callable[[], Model]) -> Call:
    """Create the call of PyTorch in eager mode with channels-last layout.

    Inputs and weights of 4 dimensions (images) and 5 dimensions (clips) are converted.
    """
    import torch

    model, inputs = make()
    formats: dict[int, Any] = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in (*model.parameters(), *inputs):
        if tensor.dim() in formats:
            tensor.data = tensor.data.contiguous(memory_format=formats[tensor.dim()])
    return inference(model, inputs)


def compiled(make: Callable[[], Model]) -> Call:
    """Create the call of torch.compile, which compiles in the first call."""
    import torch

    model, inputs = make()
    return inference(torch.compile(model), inputs)


def onnxruntime(make: Callable[[], Model]) -> Call:
    """Create the call of ONNX Runtime with all its optimisations and one thread per core."""
    import onnxruntime as ort
    import torch

    from felixlike.hardware import placement
    from felixlike.hardware.probe import usable_processors

    model, inputs = make()
    cores = usable_processors()[: placement.threads()]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = len(cores)
    if len(cores) > 1:  # OpenMP bound this thread to the first core; ONNX Runtime counts processors from 1
        others = ";".join(",".join(str(processor + 1) for processor in sorted(core)) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    with scratch.temporary("onnx") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(folder / "model.onnx")
        torch.onnx.export(model, inputs, path, dynamo=False)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {spec.name: tensor.numpy() for spec, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def inference(function: Callable[..., object], inputs: Any) -> Call:
    """Create a call without gradients."""
    import torch

    def run() -> object:
        with torch.inference_mode():
            return function(*inputs)

    return run
