"""Run the regions of a compiled model that consist of PyTorch's own operators.

Inputs: a region as JSON text (`frontend/importers/pytorch_regions.py`), its input tensors and sizes, and the tensors
that the results are copied to. The text is data: it names functional operators of torch.ops.aten, nothing else is
called.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, NamedTuple

from felixlike import _tvm
from felixlike._util.torch_modes import default_modes_of_thread, in_default_modes, once
from felixlike.errors import InvalidArtefact
from felixlike.frontend.importers.pytorch_regions import PACKED, is_functional
from felixlike.runtime.serial_copy import on_this_thread

_REGIONS = 1024
"""Maximum number of regions that are kept read. Chosen by hand."""


_Maker = Callable[[Sequence[Any]], Any]
"""Returns an argument of an operator for the inputs and the earlier results of a region."""


class _Region(NamedTuple):
    """A region that was read.

    Attributes:
        inputs: Number of inputs.
        operators: Each operator with its arguments by position and by name.
        outputs: The results that are copied.
    """

    inputs: int
    operators: tuple[tuple[Callable[..., Any], Sequence[_Maker], Mapping[str, _Maker]], ...]
    outputs: tuple[_Maker, ...]


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
        results = tensors[: region.inputs]
        for operator, arguments, named in region.operators:
            values_by_name = {name: make(results) for name, make in named.items()}
            results.append(operator(*[make(results) for make in arguments], **values_by_name))
        for target, output in zip(tensors[region.inputs :], region.outputs, strict=True):
            value = output(results)
            if value.shape != target.shape or value.dtype != target.dtype:
                raise RuntimeError(
                    f"PyTorch returned {value.dtype}{list(value.shape)}, expected {target.dtype}{list(target.shape)},"
                    f" with the default dtype {torch.get_default_dtype()}"
                )
            target.copy_(value)


@functools.lru_cache(maxsize=_REGIONS)
def _read(text: str) -> _Region:
    """Read a region.  Raises InvalidArtefact if it is not valid."""
    try:
        data = json.loads(text)
        operators = tuple(
            (_operator(name), [*map(_maker, arguments)], {key: _maker(item) for key, item in named.items()})
            for name, arguments, named in data["operators"]
        )
        return _Region(int(data["inputs"]), operators, tuple(map(_maker, data["outputs"])))
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


def _maker(data: Any) -> _Maker:
    """Return what makes an argument of an operator, by its JSON data.  Raises ValueError for unknown kinds of data."""
    if isinstance(data, list):
        makers = [*map(_maker, data)]
        return lambda results: [make(results) for make in makers]
    if isinstance(data, dict) and "result" in data:
        number, item = int(data["result"]), data.get("item")
        return itemgetter(number) if item is None else lambda results: results[number][item]
    constant = _constant(data) if isinstance(data, dict) else data
    return lambda _: constant


def _constant(data: dict[str, Any]) -> Any:
    """Return a value for its JSON data.  Raises ValueError for unknown kinds of data."""
    import torch

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
