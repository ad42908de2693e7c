"""What can be compared: a saved model, untuned TVM, PyTorch eager in two layouts, torch.compile, ONNX Runtime.

In: a function that makes a module and its inputs, which can be pickled. Out: functions that make a call of it
(`processes.Make`), each run in a process of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util import scratch
from felixlike.bench.processes import Make

if TYPE_CHECKING:
    from felixlike.bench.networks import Model

Call = Callable[[], object]

EAGER, CHANNELS_LAST = "PyTorch eager", "eager, channels last"
COMPILED, ONNX, UNTUNED = "torch.compile", "ONNX Runtime", "TVM untuned"


def baselines(make: Callable[[], Model], names: Sequence[str] = (EAGER, COMPILED, ONNX, UNTUNED)) -> dict[str, Make]:
    """By name what a tuned model is compared with."""
    kinds = {EAGER: eager, CHANNELS_LAST: channels_last, COMPILED: compiled, ONNX: onnxruntime, UNTUNED: untuned}
    return {name: partial(kinds[name], make) for name in names}


def saved(path: Path, make: Callable[[], Model]) -> Call:
    """A model that felixlike has saved, on the inputs of the original."""
    import felixlike as fx

    model, (_, inputs) = fx.load(path), make()
    return lambda: model(*inputs)


def untuned(make: Callable[[], Model]) -> Call:
    """TVM's own schedules, or none."""
    from felixlike.frontend import import_model
    from felixlike.runtime import compile_model

    model, inputs = make()
    plain = compile_model(import_model(model, inputs))
    return lambda: plain(*inputs)


def eager(make: Callable[[], Model]) -> Call:
    """PyTorch as it is."""
    return inference(*make())


def channels_last(make: Callable[[], Model]) -> Call:
    """PyTorch as it is, on images (or clips) and weights whose channels lie next to each other."""
    import torch

    model, inputs = make()
    kinds: dict[int, Any] = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in (*model.parameters(), *inputs):
        if tensor.dim() in kinds:
            tensor.data = tensor.data.contiguous(memory_format=kinds[tensor.dim()])
    return inference(model, inputs)


def compiled(make: Callable[[], Model]) -> Call:
    """torch.compile, which compiles in the first call."""
    import torch

    model, inputs = make()
    return inference(torch.compile(model), inputs)


def onnxruntime(make: Callable[[], Model]) -> Call:
    """The model in ONNX Runtime, with all its optimisations, a thread on each core."""
    import onnxruntime as ort
    import torch

    from felixlike.hardware import placement
    from felixlike.hardware.probe import usable_processors

    model, inputs = make()
    cores = usable_processors()[: placement.threads()]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = len(cores)
    if len(cores) > 1:  # OpenMP has bound this thread to the first core; processors are counted from 1
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
    """A call without gradients."""
    import torch

    def run() -> object:
        with torch.inference_mode():
            return function(*inputs)

    return run
