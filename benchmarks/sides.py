"""What a tuned model is compared with: PyTorch eager, torch.compile, ONNX Runtime, TVM without tuning."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from felixlike.deploy import compile_model
from felixlike.frontend import import_model
from felixlike.hardware.probe import usable_cores
from felixlike.measure.confine import use_all_cores


def baselines(model: torch.nn.Module, inputs: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
    """Name → a call. torch.compile and ONNX Runtime are left out, with a word, where they do not work here."""
    untuned = compile_model(import_model(model, inputs))
    sides: dict[str, Callable[[], object]] = {"PyTorch eager": _torch(model, inputs)}
    compiled = _compiled(model, inputs)
    if compiled is not None:
        sides["torch.compile"] = compiled
    exported = _onnxruntime(model, inputs)
    if exported is not None:
        sides["ONNX Runtime"] = exported
    sides["TVM untuned"] = lambda: untuned(*inputs)
    return sides


def _torch(model: Any, inputs: tuple[Any, ...]) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return run


def _compiled(model: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[[], object] | None:
    run = _torch(torch.compile(model), inputs)
    try:
        run()
    except Exception as error:
        print(f"torch.compile does not work here: {type(error).__name__}", flush=True)
        torch._dynamo.reset()
        return None
    return run


def _onnxruntime(model: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[[], object] | None:
    """The model in ONNX Runtime, with all its optimisations, on all cores."""
    try:
        import onnxruntime
    except ImportError:
        print("ONNX Runtime is not installed: pip install 'felixlike[bench]'", flush=True)
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = usable_cores()
    use_all_cores(usable_cores())  # its threads inherit the affinity of this one, which OpenMP may have bound to a core
    with tempfile.TemporaryDirectory(prefix="felixlike-onnx-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, inputs, path, dynamo=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {spec.name: tensor.numpy() for spec, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)
