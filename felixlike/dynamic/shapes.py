"""What a user gave for shapes, with dimensions in it: example inputs to export with, and where each dimension stands.

In: tuples of sizes some of which are a `Dim`, in a tuple or by input name; or an ExportedProgram with ranges. Out:
`DynamicShapes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike.dynamic.dims import Dim, check_dims
from felixlike.errors import InvalidDim, InvalidShape

_EXAMPLE = 5
"""Sizes that models are exported with are not smaller where that is possible: torch takes 0 and 1 for constants."""


@dataclass(frozen=True, slots=True)
class DynamicShapes:
    """given: shapes as `optimize` takes them, with sizes for the dimensions.  places: the same with, for each tensor, a
    dictionary of its dynamic dimensions.  dims: all dimensions."""

    given: Any
    places: Any
    dims: tuple[Dim, ...]


def has_dims(shapes: Any) -> bool:
    """Whether a Dim stands anywhere in what a user gave."""
    if isinstance(shapes, Dim):
        return True
    if isinstance(shapes, Mapping):
        return any(map(has_dims, shapes.values()))
    return isinstance(shapes, list | tuple) and any(map(has_dims, shapes))


def read_dynamic_shapes(shapes: Any) -> DynamicShapes:
    """What a user gave.  Raises InvalidDim, InvalidShape."""
    found: dict[str, Dim] = {}
    single = isinstance(shapes, list | tuple) and not any(isinstance(entry, list | tuple | Mapping) for entry in shapes)
    entries: Any = (shapes,) if single and not any(map(_is_tensor, shapes)) else shapes
    if isinstance(entries, Mapping):
        read = {name: _entry(entry, found, where=f"shapes[{name!r}]") for name, entry in entries.items()}
        given: Any = {name: sizes for name, (sizes, _) in read.items()}
        places: Any = {name: own for name, (_, own) in read.items()}
    else:
        pairs = [_entry(entry, found, where=f"shapes[{i}]") for i, entry in enumerate(entries)]
        given, places = tuple(sizes for sizes, _ in pairs), tuple(own for _, own in pairs)
    return DynamicShapes(given, places, check_dims(found.values()))


def _entry(entry: Any, found: dict[str, Dim], *, where: str) -> tuple[Any, dict[int, str]]:
    """One input's sizes, and its dynamic dimensions by place."""
    if _is_tensor(entry):
        return entry, {}
    if not isinstance(entry, Sequence) or isinstance(entry, str | bytes):
        raise InvalidShape(
            f"{entry!r} is not a tuple of sizes",
            where=where,
            remedy="where a size is a Dim, give tuples of sizes or tensors for all inputs",
        )
    sizes, places = [], {}
    for place, size in enumerate(entry):
        if isinstance(size, Dim):
            known = found.setdefault(size.name, size)
            if known != size:
                raise InvalidDim(
                    f"{size.name!r} is two different dimensions",
                    where=where,
                    remedy="give both the same sizes and weights, or names of their own",
                )
            places[place] = size.name
            sizes.append(example_size(size))
        else:
            sizes.append(size)
    return tuple(sizes), places


def example_size(dim: Dim) -> int:
    """A size to export with: neither 0 nor 1 where there is another."""
    return min(max(dim.least, _EXAMPLE), max(dim.most, 2))


def dims_of_program(program: Any) -> tuple[Dim, ...]:
    """The dimensions of an ExportedProgram, each with all sizes of its range.

    Raises InvalidDim, also for a dimension without an upper bound: code is compiled, and compared, for a range."""
    found = []
    for symbol, span in program.range_constraints.items():
        if not _is_finite(span.upper):
            place, name = _place(program, symbol)
            bounded = f'dynamic_shapes={{"{name}": {{{place}: torch.export.Dim("N", max=64)}}}}'
            raise InvalidDim(
                f"dimension {place} of {name} has no upper bound",
                where="ExportedProgram",
                remedy=f"export it with one: {bounded}; or optimize the module itself, with fx.Dim in its shapes",
            )
        found.append(Dim(str(symbol), range(max(1, int(span.lower)), int(span.upper) + 1)))
    return check_dims(found)


def _place(program: Any, symbol: Any) -> tuple[int, str]:
    """The first input and its dimension that have this size."""
    for node in program.graph.find_nodes(op="placeholder"):
        for place, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if str(size) == str(symbol):
                return place, str(node.name)
    return 0, str(symbol)


def is_dynamic_program(model: Any) -> bool:
    """Whether a model is an ExportedProgram with sizes that a call decides."""
    import torch

    return isinstance(model, torch.export.ExportedProgram) and bool(model.range_constraints)


def _is_finite(bound: Any) -> bool:
    try:
        return int(bound) < 2**31
    except (OverflowError, TypeError, ValueError, AttributeError):
        return False


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
