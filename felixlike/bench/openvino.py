"""Compile graphs with OpenVINO for the least latency of one call, and read back what it uses.

Input: a graph of OpenVINO. Output: a request that computes it with one thread per core of this comparison, and the
precision and number of threads of a request.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from felixlike.bench.precisions import precisions
from felixlike.hardware import placement
from felixlike.hardware.probe import usable_processors

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
"""The hint for products in float32. Without it OpenVINO computes in bfloat16 on CPUs that can."""

BFLOAT16 = {"INFERENCE_PRECISION_HINT": "bf16"}
"""The hint for products in bfloat16. CPUs without instructions for them compute in float32, which is read back."""

_LATENCY = {"PERFORMANCE_HINT": "LATENCY"}


def imported() -> Any:
    """Import and return the package. It reports nothing to its maker.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # converting would report usage to its maker
    if sys.platform == "linux":  # its threads inherit the processors of this one, which OpenMP has bound to the first
        os.sched_setaffinity(0, frozenset[int]().union(*usable_processors()))
    import openvino

    return openvino


def compiled(graph: Any, **hints: str) -> Any:
    """Compile a graph for the CPU, for the least latency of one call. Return a request that infers.

    Args:
        graph: An `openvino.Model`.
        **hints: Further properties of the compiled graph, as `FLOAT32`.
    """
    threads = {"INFERENCE_NUM_THREADS": placement.threads()}
    return imported().Core().compile_model(graph, "CPU", {**_LATENCY, **hints, **threads}).create_infer_request()


def stated(hints: dict[str, str]) -> str:
    """Return the properties that `compiled` sets, as text."""
    return ", ".join(f"{name}={value}" for name, value in {**_LATENCY, **hints}.items())


def read_back(request: Any) -> tuple[str, int]:
    """Return the precision and the number of threads of a request of `compiled`."""
    compiled_graph = request.get_compiled_model()
    lowest = compiled_graph.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    threads: int = compiled_graph.get_property("INFERENCE_NUM_THREADS")
    return _precision(compiled_graph.get_runtime_model(), lowest), threads


def _precision(graph: Any, lowest: str) -> str:
    """Return the precisions of the operators of the graph that is run: floating-point ones, and all of products.

    Operators that OpenVINO has fused into one ("Subgraph") tell the precision of their outputs alone. Products inside
    may have the `lowest` one of the compiled graph.
    """
    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "i8": "int8", "u8": "int8"}
    used = set()
    for operator in graph.get_ordered_ops():
        about = operator.get_rt_info()
        kind, precision = (about[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if kind not in _MOVES and (precision[0] in "fb" or kind in _PRODUCTS):
            used |= {precision, lowest} if kind == _FUSED else {precision}
    return precisions(names.get(name, name) for name in used)


_MOVES = ("Const", "Input", "Output", "Reorder", "Convert", "MemoryInput", "MemoryOutput")
"""Kinds of operators that compute nothing."""

_FUSED = "Subgraph"
"""The kind of operators that OpenVINO has fused into one."""

_PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
"""Kinds of operators that may multiply integers in place of floats."""
