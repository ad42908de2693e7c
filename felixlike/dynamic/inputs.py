"""Describe the inputs of a model with dynamic sizes, and run it at other sizes than those of its examples.

Input: an imported model with the Dim of each symbolic size. Output: specifications of its inputs, examples at other
sizes, and upper bounds for sizes that have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.memory import check_memory, largest_shape
from felixlike.errors import InvalidModel
from felixlike.frontend import InputSpec, Sizes
from felixlike.frontend.examples import repeated
from felixlike.frontend.imported import Source
from felixlike.frontend.originals import original_of
from felixlike.frontend.signature.sizes import read_size, size_text


def dynamic_inputs(main: Any, source: Source, dims: dict[str, Dim]) -> tuple[tuple[InputSpec, ...], Sizes]:
    """Return the input specifications at the largest sizes, and the dynamic dimensions."""
    specs, places = [], []
    users = main.params[: len(source.signature.names)]  # buffers that the model changes come after them
    for name, parameter in zip(source.signature.names, users, strict=True):
        specs.append(InputSpec(name, largest_shape(parameter.ty, dims), str(parameter.ty.dtype)))
        places.append(tuple(_size_text(size, dims, where=source.name) for size in _sizes(parameter.ty)))
    ranges = tuple((dim.name, dim.least, dim.most) for dim in {dim.name: dim for dim in dims.values()}.values())
    return tuple(specs), Sizes(ranges, tuple(places))


def resized(source: Source, sizes: Sizes, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the examples repeated along dynamic dimensions.  numbers: the size of each dimension by name."""
    tensors = []
    for tensor, places in zip(source.examples, sizes.inputs, strict=True):
        dims = {place: read_size(text) for place, text in enumerate(places) if text is not None}
        tensors.append(repeated(tensor, {place: numbers[name] + more for place, (name, more) in dims.items()}))
    return tuple(tensors)


def with_bounds(source: Source, dims: dict[str, Dim]) -> tuple[Source, dict[str, Dim]]:
    """Halve upper bounds that were chosen, while the original cannot be run there, as with a table that ends earlier.

    Return the source, whose note names the bounds, and the dimensions.
    """
    if not source.unbounded:
        return source, dims
    _, sizes = dynamic_inputs(source.module["main"], source, dims)
    now = _sizes_of_examples(source, sizes)
    while not _runs(source, sizes, dims):
        smaller = {key: _halved(dim, now[dim.name]) for key, dim in dims.items() if dim.name in source.unbounded}
        if all(smaller[key] == dims[key] for key in smaller):
            break
        dims = dims | smaller
    chosen = {dim.name: dim for dim in dims.values() if dim.name in source.unbounded}
    ranges = ", ".join(map(str, chosen.values()))
    note = f"Sizes without an upper bound were compiled for a range: {ranges}."
    return replace(source, note=" ".join(filter(None, (source.note, note)))), dims


def _halved(dim: Dim, least: int) -> Dim:
    """Return a dimension with half its largest size, at least a given one."""
    most = max(dim.most // 2, least)
    return Dim(dim.name, [*(size for size in dim.sizes if size < most), most])


def _sizes_of_examples(source: Source, sizes: Sizes) -> dict[str, int]:
    """Return the size of each dimension in the examples."""
    numbers: dict[str, int] = {}
    for tensor, places in zip(source.examples, sizes.inputs, strict=True):
        for text, size in zip(places, tensor.shape, strict=True):
            if text is not None:
                name, more = read_size(text)
                numbers[name] = int(size) - more
    return numbers


def _runs(source: Source, sizes: Sizes, dims: Mapping[str, Dim]) -> bool:
    """Return whether the original model runs at the largest sizes."""
    import torch

    try:
        check_memory(source, dict(dims))
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # keep the caller's random state
            tensors = resized(source, sizes, {dim.name: dim.most for dim in dims.values()})
            original_of(source.original, source.signature).outputs(tensors)
    except Exception:  # the user's model may raise anything at these sizes
        return False
    return True


def _size_text(size: Any, dims: dict[str, Dim], *, where: str) -> str | None:
    """Return the text of a dynamic size of an input, None for a fixed one. Raise InvalidModel for other expressions."""
    symbols = _tvm.found(size, _tvm.tirx.Var)
    if not symbols:
        return None
    symbol = symbols[0]
    more = _tvm.simplify(size - symbol)
    dim = dims.get(str(symbol.name))
    if dim is None or not isinstance(more, _tvm.tirx.IntImm):
        raise InvalidModel(
            f"an input has the size {size}, but only sizes like {symbol} + 1 are supported",
            where=where,
            remedy="compute the part of that input that depends on its size inside the model",
        )
    return size_text(dim.name, int(more))


def _sizes(kind: Any) -> Sequence[Any]:
    return list(kind.shape.values)
