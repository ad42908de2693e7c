"""Check that a model's tensors fit into memory at the largest sizes of its dimensions, and exist at the smallest ones.

Input: a Source with symbolic sizes, its dimensions. Output: nothing, or an InvalidDim with the sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from felixlike import _tvm
from felixlike.dynamic.dims import Dim
from felixlike.errors import InvalidDim
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.relax import leaves
from felixlike.hardware.probe import memory_bytes


def check_memory(source: Source, dims: dict[str, Dim]) -> None:
    """Raise InvalidDim if inputs, outputs and the largest intermediate tensor exceed the memory of this machine."""
    main = source.module["main"]
    ends = sum(_bytes(kind, dims) for kind in (*(parameter.ty for parameter in main.params), *leaves(main.ret_ty)))
    between = max((_bytes(kind, dims) for kind in _between(main)), default=0)
    if ends + between > memory_bytes():
        at = ", ".join(f"{dim.name} = {dim.most}" for dim in dict.fromkeys(dims.values()))
        raise InvalidDim(
            f"at {at} the inputs and outputs take {_shown(ends)} and the largest other tensor {_shown(between)}, but"
            f" this machine has {_shown(memory_bytes())} of memory",
            where=source.name,
            remedy="use smaller sizes",
        )


def check_least(source: Source, dims: dict[str, Dim]) -> None:
    """Raise InvalidDim if a tensor has a negative size where a dimension is smallest, as T - 2 at T = 1."""
    main = source.module["main"]
    for kind in (*leaves(main.ret_ty), *_between(main)):
        for size in getattr(getattr(kind, "shape", None), "values", None) or ():
            symbols = _tvm.found(size, _tvm.tirx.Var)
            names = {str(symbol.name) for symbol in symbols}
            if isinstance(size, _tvm.tirx.Var) or len(names) != 1 or not names <= dims.keys():
                continue
            dim = dims[names.pop()]
            if (least := size_at(size, dict.fromkeys(symbols, dim.least))) < 0:
                valid = (n for n in range(dim.least, dim.most) if size_at(size, dict.fromkeys(symbols, n)) >= 0)
                raise InvalidDim(
                    f"at {dim.name} = {dim.least} a tensor has the size {size_shown(size)} = {least}",
                    where=source.name,
                    remedy=f"let {dim.name} begin at {next(valid, dim.most)}",
                )


def largest_shape(kind: Any, dims: dict[str, Dim]) -> tuple[int, ...]:
    """Return the shape of a tensor with every dimension at its largest size."""

    def at(size: Any) -> int:
        symbols = [symbol for symbol in _tvm.found(size, _tvm.tirx.Var) if str(symbol.name) in dims]
        return size_at(size, {symbol: dims[str(symbol.name)].most for symbol in symbols})

    return tuple(map(at, kind.shape.values))


def size_shown(size: Any) -> str:
    """Return a size as text, without the types of numbers."""
    return re.sub(r"T\.int\d+\((-?\d+)\)", r"\1", str(size))


def size_at(size: Any, values: Mapping[Any, int]) -> int:
    """Return a size for values of its symbols."""
    return int(_tvm.simplify(_tvm.substituted(size, values)))


def _between(main: Any) -> Iterator[Any]:
    """Yield the types of the tensors that a function computes."""
    for block in main.body.blocks:
        for binding in block.bindings:
            yield from leaves(binding.var.ty)


def _bytes(kind: Any, dims: dict[str, Dim]) -> int:
    """Return the bytes of a tensor at its largest size; 0 if the dimensions do not determine its shape."""
    if not isinstance(kind, _tvm.relax.TensorType) or not hasattr(kind.shape, "values"):
        return 0
    try:
        shape = largest_shape(kind, dims)
    except TypeError:  # the shape has symbols that are not input dimensions
        return 0
    return math.prod(shape) * ((_tvm.bits(kind.dtype) + 7) // 8)


def _shown(count: int) -> str:
    """Return bytes as text in GiB."""
    return f"{count / 2**30:.1f} GiB"
