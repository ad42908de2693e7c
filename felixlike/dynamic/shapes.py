"""Read shapes with dimensions: example sizes to export with, and the positions of each dimension.

Input: tuples of sizes, some of them `Dim`s, in a tuple or by input name; or an ExportedProgram with ranges. Output:
`DynamicShapes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike.dynamic.dims import Dim, check_dims
from felixlike.errors import InvalidDim, InvalidShape

_EXAMPLE = 5
"""Least example size where the range allows it: torch treats 0 and 1 as constants. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class DynamicShapes:
    """Shapes of a model with dynamic sizes.

    Attributes:
        given: Shapes as `optimize` takes them, with example sizes for the dimensions.
        places: The same structure, with a dictionary of dynamic dimensions for each tensor.
        dims: All dimensions.
    """

    given: Any
    places: Any
    dims: tuple[Dim, ...]


def has_dims(shapes: Any) -> bool:
    """Return whether a Dim occurs anywhere in shapes."""
    if isinstance(shapes, Dim):
        return True
    if isinstance(shapes, Mapping):
        return any(map(has_dims, shapes.values()))
    return isinstance(shapes, list | tuple) and any(map(has_dims, shapes))


def read_dynamic_shapes(shapes: Any) -> DynamicShapes:
    """Parse shapes. Raise InvalidDim, InvalidShape."""
    dims: dict[str, Dim] = {}
    single = isinstance(shapes, list | tuple) and not any(isinstance(entry, list | tuple | Mapping) for entry in shapes)
    entries: Any = (shapes,) if single and not any(map(_is_tensor, shapes)) else shapes
    if isinstance(entries, Mapping):
        read = {name: _entry(entry, dims, where=f"shapes[{name!r}]") for name, entry in entries.items()}
        example_shapes: Any = {name: sizes for name, (sizes, _) in read.items()}
        places: Any = {name: positions for name, (_, positions) in read.items()}
    else:
        pairs = [_entry(entry, dims, where=f"shapes[{i}]") for i, entry in enumerate(entries)]
        example_shapes, places = tuple(sizes for sizes, _ in pairs), tuple(positions for _, positions in pairs)
    return DynamicShapes(example_shapes, places, check_dims(dims.values()))


def _entry(entry: Any, dims: dict[str, Dim], *, where: str) -> tuple[Any, dict[int, str]]:
    """Return the sizes of one input, and its dynamic dimensions by position."""
    if _is_tensor(entry):
        return entry, {}
    if not isinstance(entry, Sequence) or isinstance(entry, str | bytes):
        raise InvalidShape(
            f"expected a tuple of sizes, got {entry!r}",
            where=where,
            remedy="if a size is a Dim, give a tuple of sizes or a tensor for every input",
        )
    sizes, places = [], {}
    for place, size in enumerate(entry):
        if isinstance(size, Dim):
            previous = dims.setdefault(size.name, size)
            if previous != size:
                raise InvalidDim(
                    f"two different dimensions have the name {size.name!r}",
                    where=where,
                    remedy="give them the same sizes and weights, or different names",
                )
            places[place] = size.name
            sizes.append(example_size(size))
        else:
            sizes.append(size)
    return tuple(sizes), places


def example_size(dim: Dim) -> int:
    """Return a size to export with, 2 or more if possible."""
    return min(max(dim.least, _EXAMPLE), max(dim.most, 2))


def dims_of_program(program: Any) -> tuple[Dim, ...]:
    """Return the dimensions of an ExportedProgram, with all sizes of their ranges. Raise InvalidDim.

    A dimension without an upper bound is rejected, since code is compiled and verified for a range.
    """
    dims = []
    for symbol, span in program.range_constraints.items():
        if not symbol.is_symbol:  # such as s0 + 1, whose range follows from that of s0
            continue
        if not _is_finite(span.upper):
            place, name = _place(program, symbol)
            bounded = f'dynamic_shapes={{"{name}": {{{place}: torch.export.Dim("N", max=64)}}}}'
            raise InvalidDim(
                f"dimension {place} of {name} has no upper bound",
                where="ExportedProgram",
                remedy=f"export it with a bound: {bounded}; or optimize the module itself, with fx.Dim in its shapes",
            )
        dims.append(Dim(str(symbol), range(max(1, int(span.lower)), int(span.upper) + 1)))
    return check_dims(dims)


def _place(program: Any, symbol: Any) -> tuple[int, str]:
    """Return the first position and input with this size."""
    for node in program.graph.find_nodes(op="placeholder"):
        for place, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if str(size) == str(symbol):
                return place, str(node.name)
    return 0, str(symbol)


def is_dynamic_program(model: Any) -> bool:
    """Return whether a model is an ExportedProgram with dynamic sizes."""
    import torch

    return isinstance(model, torch.export.ExportedProgram) and bool(model.range_constraints)


def _is_finite(bound: Any) -> bool:
    """Return whether an upper bound is below 2³¹."""
    try:
        return int(bound) < 2**31
    except (OverflowError, TypeError, ValueError, AttributeError):
        return False


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
