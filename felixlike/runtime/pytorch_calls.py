"""Run the regions of a compiled model that consist of PyTorch's own operators.

Inputs: a region as JSON text (`frontend/importers/pytorch_regions.py`), its input tensors and sizes, and the tensors
that the results are copied to. The text is data: it names functional operators of torch.ops.aten, nothing else is
called.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from felixlike import _tvm
from felixlike._util.torch_modes import default_modes_of_thread, once
from felixlike.errors import InvalidArtefact
from felixlike.frontend.importers.pytorch_regions import PACKED, is_functional
from felixlike.runtime.serial_copy import on_this_thread

_REGIONS = 1024
"""Maximum number of regions that are kept read. Chosen by hand."""


class _Region(NamedTuple):
    """A region that was read.

    Attributes:
        inputs: Number of inputs.
        operators: Each operator with its arguments by position and by name, in which `_Result` stands for results.
        outputs: The results that are copied.
    """

    inputs: int
    operators: tuple[tuple[Callable[..., Any], Any, Any], ...]
    outputs: tuple[Any, ...]


class _Result(NamedTuple):
    """The number of an earlier result, and the index of one of its tensors or None."""

    result: int
    item: int | None


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

    region = _read(text)
    with default_modes_of_thread(), torch.no_grad(), on_this_thread():
        tensors = list(map(_tensor, values))
        results = tensors[: region.inputs]
        for operator, arguments, named in region.operators:
            results.append(operator(*_filled(arguments, results), **_filled(named, results)))
        for target, output in zip(tensors[region.inputs :], region.outputs, strict=True):
            value = _filled(output, results)
            if value.shape != target.shape or value.dtype != target.dtype:
                raise RuntimeError(
                    f"PyTorch returned {value.dtype}{list(value.shape)}, expected {target.dtype}{list(target.shape)},"
                    f" with the default dtype {torch.get_default_dtype()}"
                )
            target.copy_(value)


def _tensor(value: Any) -> Any:
    """Return one of TVM's tensors as a tensor of PyTorch with the same memory. Other values stay as they are."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(value) if isinstance(value, _tvm.runtime.Tensor) else value


def _filled(value: Any, results: Sequence[Any]) -> Any:
    """Return an argument with results in place of their numbers."""
    kind = type(value)
    if kind is _Result:
        return results[value.result] if value.item is None else results[value.result][value.item]
    if kind is list:
        return [_filled(item, results) for item in value]
    if kind is dict:
        return {name: _filled(item, results) for name, item in value.items()}
    return value


@functools.lru_cache(maxsize=_REGIONS)
def _read(text: str) -> _Region:
    """Read a region.  Raises InvalidArtefact if it is not valid."""
    try:
        data = json.loads(text)
        operators = tuple(
            (_operator(name), _value(arguments), {key: _value(item) for key, item in named.items()})
            for name, arguments, named in data["operators"]
        )
        return _Region(int(data["inputs"]), operators, tuple(map(_value, data["outputs"])))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


def _value(data: Any) -> Any:
    """Return an argument of an operator for its JSON data.  Raises ValueError for unknown kinds of data."""
    import torch

    if isinstance(data, list):
        return [_value(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "result" in data:
        return _Result(int(data["result"]), data.get("item"))
    ((kind, value),) = data.items()
    if kind == "complex":
        return complex(*value)
    if kind == "device":
        return torch.device("cpu")
    if kind in ("dtype", "layout", "memory_format"):
        read = getattr(torch, value)
        if isinstance(read, getattr(torch, kind)):
            return read
    raise ValueError(f"{kind} {value}")
