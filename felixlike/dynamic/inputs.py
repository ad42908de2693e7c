"""Describe the inputs of a model with dynamic sizes, and run it at other sizes than those of its examples.

Input: an imported model with the Dim of each symbolic size. Output: specifications of its inputs, examples at other
sizes, and upper bounds for sizes that have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_compat import condition_text, is_false, symbols_in
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.memory import check_memory, largest_shape, size_shown
from felixlike.errors import InvalidDim, InvalidModel
from felixlike.frontend import InputSpec, Sizes
from felixlike.frontend.examples import repeated
from felixlike.frontend.imported import Source
from felixlike.frontend.originals import original_of
from felixlike.frontend.signature.sizes import is_condition, read_size, size_text

_TRIED = {1: 64, 2: 8}
"""How many of the smallest sizes of a dimension are tried to contradict a condition, by the number of dimensions in it;
2 for others. Chosen by hand."""


def dynamic_inputs(main: Any, source: Source, dims: dict[str, Dim]) -> tuple[tuple[InputSpec, ...], Sizes]:
    """Return the input specifications at the largest sizes, and the dynamic dimensions."""
    specs, places = [], []
    users = main.params[: len(source.signature.names)]  # buffers that the model changes come after them
    for name, parameter in zip(source.signature.names, users, strict=True):
        specs.append(InputSpec(name, largest_shape(parameter.ty, dims), str(parameter.ty.dtype)))
        places.append(tuple(_size_text(size, dims, where=source.name) for size in _sizes(parameter.ty)))
    ranges = tuple((dim.name, dim.least, dim.most) for dim in {dim.name: dim for dim in dims.values()}.values())
    free = {read_size(text)[0] for of_input in places for text in of_input if text is not None}
    return tuple(specs), Sizes(ranges, tuple(places), _conditions(source, dims, free))


def _conditions(source: Source, dims: Mapping[str, Dim], free: Collection[str]) -> tuple[str, ...]:
    """Return the conditions that calls must fulfil.  free: the names of sizes that inputs have.

    Conditions without a meaning for a call are left out: PyTorch takes computed sizes, too, as other than 1.
    """
    return tuple(
        text
        for condition in source.needed
        if all(symbol in free and symbol in dims and dims[symbol].name == symbol for symbol in symbols_in(condition))
        and not (text := condition_text(condition)).endswith("!= 1")
        and is_condition(text, free)
    )


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
    now = sizes_of_examples(source, sizes)
    while not _fits(source, sizes, dims):
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


def sizes_of_examples(source: Source, sizes: Sizes) -> dict[str, int]:
    """Return the size of each dimension in the examples, or the nearest one in its range."""
    numbers: dict[str, int] = {}
    ranges = {name: (least, most) for name, least, most in sizes.ranges}
    for tensor, places in zip(source.examples, sizes.inputs, strict=True):
        for text, size in zip(places, tensor.shape, strict=True):
            if text is not None:
                name, more = read_size(text)
                least, most = ranges[name]
                numbers[name] = min(max(least, int(size) - more), most)
    return numbers


def _fits(source: Source, sizes: Sizes, dims: Mapping[str, Dim]) -> bool:
    """Return whether the tensors fit into memory and the original model runs at the largest sizes."""
    try:
        check_memory(source, dict(dims))
    except InvalidDim:
        return False
    return _runs(source, sizes, {dim.name: dim.most for dim in dims.values()})


def _runs(source: Source, sizes: Sizes, numbers: Mapping[str, int]) -> bool:
    """Return whether the original model runs.  numbers: the size of each dimension by name."""
    import torch

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # keep the caller's random state
            original_of(source.original, source.signature).outputs(resized(source, sizes, numbers))
    except Exception:  # the user's model may raise anything at these sizes
        return False
    return True


def doubtful_sizes(source: Source, sizes: Sizes, dims: Mapping[str, Dim]) -> list[dict[str, int]]:
    """Return sizes at which the original may compute something else than it does at those of its examples.

    torch.export takes each size as larger than 1, and each condition on several sizes as it is for the examples. It
    checks neither, as a model may have a branch for one token beside a cache.

    Args:
        source: The model.
        sizes: The dynamic sizes of its inputs.
        dims: The Dim of each symbolic size, by its name in the module.

    Returns:
        Sizes by the names of the dimensions, at which the original runs.
    """
    import torch

    now = sizes_of_examples(source, sizes)
    by_name = {dim.name: dim for dim in dims.values()}
    doubtful: list[dict[str, int]] = []
    if len(by_name) > 1 and not isinstance(source.original, torch.export.ExportedProgram):
        doubtful += [{**now, name: 1} for name, dim in by_name.items() if dim.least == 1 and name in now]
    for condition in source.assumed:
        if not any(_contradict(numbers, condition, dims) for numbers in doubtful):
            doubtful += itertools.islice(_contradictions(condition, now, dims), 1)
    return [numbers for numbers in doubtful if _runs(source, sizes, numbers)]


def _contradict(numbers: Mapping[str, int], condition: Any, dims: Mapping[str, Dim]) -> bool:
    """Return whether a condition does not hold for sizes by the names of their dimensions."""
    known = {symbol: numbers[dim.name] for symbol, dim in dims.items() if dim.name in numbers}
    return is_false(condition, known)


def _contradictions(condition: Any, now: Mapping[str, int], dims: Mapping[str, Dim]) -> Iterator[dict[str, int]]:
    """Yield sizes for which a condition does not hold, small ones first.  now: the sizes of the examples."""
    free = {symbol: dim for symbol, dim in dims.items() if dim.name in now}  # others follow from these
    of_condition = {free[symbol].name: free[symbol] for symbol in symbols_in(condition) if symbol in free}
    count = _TRIED.get(len(of_condition), 2)

    def tried(dim: Dim) -> list[int]:
        ends = {now[dim.name], max(dim.least, dim.most - 1), dim.most}
        return sorted(ends.union(range(dim.least, min(dim.most, dim.least + count) + 1)))

    for combination in sorted(itertools.product(*map(tried, of_condition.values())), key=sum):
        numbers = {**now, **dict(zip(of_condition, combination, strict=True))}
        if _contradict(numbers, condition, dims):
            yield numbers


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
            f"an input has the size {size_shown(size)}, but only sizes like {symbol} + 1 are supported",
            where=where,
            remedy="compute the part of that input that depends on its size inside the model",
        )
    return size_text(dim.name, int(more))


def _sizes(kind: Any) -> Sequence[Any]:
    return list(kind.shape.values)
