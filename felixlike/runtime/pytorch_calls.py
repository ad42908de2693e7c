"""Run the regions of a compiled model that consist of PyTorch's own operators.

Inputs: a region as JSON text (`frontend/importers/pytorch_regions.py`), its input tensors and sizes, and the tensors
that the results are copied to. The text is data: it names functional operators of torch.ops.aten, nothing else is
called.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import getitem
from typing import Any, NamedTuple

from felixlike import _tvm
from felixlike._util.torch_compat import forward_of, schema_of
from felixlike._util.torch_modes import default_modes_of_thread, in_default_modes, once
from felixlike.errors import InvalidArtefact
from felixlike.frontend.importers.pytorch_regions import PACKED, is_functional
from felixlike.runtime.serial_copy import on_this_thread

_REGIONS = 1024
"""Maximum number of regions that are kept read. Chosen by hand."""


class _Region(NamedTuple):
    """A region that was read.

    Attributes:
        inputs: Number of inputs.
        compute: Returns the results that are copied, for the inputs. It drops each result after its last use.
    """

    inputs: int
    compute: Callable[..., tuple[Any, ...]]


@once
def register() -> None:
    """Make the function that runs regions known to TVM, and the class of errors of linear algebra."""
    import torch

    _tvm.tvm_ffi.register_global_func(PACKED, _run, override=True)
    error: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    _tvm.tvm_ffi.register_error(error.__name__, error)


def _run(text: str, *values: Any) -> None:
    """Run a region: `values` has its inputs, then the tensors for its outputs.

    It runs on the calling thread, as OpenMP's threads would disturb TVM's (`serial_copy.py`). Settings of the whole
    process, such as the default dtype, are not changed, since other threads use them meanwhile.
    """
    import torch
    from torch.utils.dlpack import from_dlpack

    region = _read(text)
    modes = nullcontext() if in_default_modes() else default_modes_of_thread()  # which takes six microseconds
    with modes, torch.no_grad(), on_this_thread():
        # A capsule spares PyTorch's conversion its questions about devices.
        tensors = [from_dlpack(v.__dlpack__()) if isinstance(v, _tvm.runtime.Tensor) else v for v in values]
        results = region.compute(*tensors[: region.inputs])
        for target, value in zip(tensors[region.inputs :], results, strict=True):
            if value.shape != target.shape or value.dtype != target.dtype:
                raise RuntimeError(
                    f"PyTorch returned {value.dtype}{list(value.shape)}, expected {target.dtype}{list(target.shape)},"
                    f" with the default dtype {torch.get_default_dtype()}"
                )
            target.copy_(value)


@functools.lru_cache(maxsize=_REGIONS)
def _read(text: str) -> _Region:
    """Read a region.  Raises InvalidArtefact if it is not valid."""
    import torch

    try:
        data, graph = json.loads(text), torch.fx.Graph()
        results = [graph.placeholder(f"input_{number}") for number in range(int(data["inputs"]))]
        count = len(results)
        for name, arguments, named in data["operators"]:
            operator = _operator(name)
            if unknown := set(named).difference(argument.name for argument in schema_of(operator).arguments):
                raise ValueError(f"aten.{name} has no arguments {sorted(unknown)}")
            by_name = {key: _value(item, graph, results) for key, item in named.items()}
            results.append(graph.call_function(operator, tuple(_value(a, graph, results) for a in arguments), by_name))
        graph.output(tuple(_value(output, graph, results) for output in data["outputs"]))
        return _Region(count, forward_of(torch.fx.GraphModule({}, graph)))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InvalidArtefact(
            f"a call of PyTorch cannot be read: {error}", where="model", remedy="optimize the model again"
        ) from None


def _operator(name: str) -> Callable[..., Any]:
    """Return an operator of PyTorch.  Raises ValueError unless it is functional."""
    import torch

    packet, _, overload = name.partition(".")
    operator: Any = getattr(getattr(torch.ops.aten, packet), overload)
    if not is_functional(operator):
        raise ValueError(f"aten.{name} is not a functional operator")
    function: Callable[..., Any] = operator
    return function


def _value(data: Any, graph: Any, results: Sequence[Any]) -> Any:
    """Return an argument of an operator in a graph, by its JSON data.  Raises ValueError for unknown kinds of data.

    results: the nodes of the inputs and of the earlier results.
    """
    if isinstance(data, list):
        return [_value(item, graph, results) for item in data]
    if not isinstance(data, dict):
        return data
    if "result" in data:
        node, item = results[int(data["result"])], data.get("item")
        return node if item is None else graph.call_function(getitem, (node, int(item)))
    return _constant(data, graph)


def _constant(data: dict[str, Any], graph: Any) -> Any:
    """Return a value in a graph, by its JSON data.  Raises ValueError for unknown kinds of data."""
    import torch

    ((kind, value),) = data.items()
    if kind == "complex":
        return graph.call_function(complex, tuple(map(float, value)))  # infinities have no literals
    if kind == "device":
        return torch.device("cpu")
    if kind in ("dtype", "layout", "memory_format"):
        read = getattr(torch, value)
        if isinstance(read, getattr(torch, kind)):
            return read
    raise ValueError(f"{kind} {value}")
