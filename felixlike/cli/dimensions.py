"""Read the `--dim` options of `felixlike tune`: sizes of inputs that differ between calls.

Inputs: texts such as "T=1..128", and the parsed `--shape` options in which these names occur. Outputs: `Dim`s, and
`dynamic_shapes` as `optimize` takes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felixlike.errors import InvalidDim

if TYPE_CHECKING:
    from felixlike.dynamic import Dim
    from felixlike.frontend.importers.input_shapes import Given

_SIZES = re.compile(r"(?P<least>\d{1,9})\.\.(?P<most>\d{1,9})|\d{1,9}(,\d{1,9})*", re.ASCII)
"""Pattern of sizes: a range, or a list."""


def parse_dims(texts: Sequence[str]) -> dict[str, Dim]:
    """Return the dimension of each text by its name. Raise InvalidDim."""
    from felixlike.dynamic import Dim

    dims: dict[str, Dim] = {}
    for text in texts:
        name, _, sizes = text.partition("=")
        match = _SIZES.fullmatch(sizes)
        if match is None:
            raise InvalidDim(
                f"expected NAME=SIZES, got {text!r}", where="--dim", remedy="write T=1..128, or T=16,32,64"
            )
        if "x" in name:
            raise InvalidDim(
                f"{name!r} contains x, which separates sizes in --shape", where="--dim", remedy="use another name"
            )
        if name in dims:
            raise InvalidDim(f"{name!r} is given twice", where="--dim", remedy="give each dimension once")
        span = match["least"] is not None
        dims[name] = Dim(
            name, range(int(match["least"]), int(match["most"]) + 1) if span else map(int, sizes.split(","))
        )
    return dims


def example_sizes(dims: Mapping[str, Dim]) -> dict[str, int]:
    """Return a size of each dimension to export a model with."""
    from felixlike.dynamic.shapes import example_size

    return {name: example_size(dim) for name, dim in dims.items()}


def dynamic_shapes(given: Given | None, dims: Mapping[str, Dim]) -> Any:
    """Return which sizes of the inputs are dynamic, as `optimize` takes it.

    given: The parsed shapes; None without any. Raise InvalidDim for a dimension that is the size of no input.
    """
    inputs = [] if given is None else [value for _, value in given.named] or given.positional
    places = [{place: dims[name] for place, name in value.examples[0].dims} for value in inputs]
    used = {dim.name for entry in places for dim in entry.values()}
    unused = [name for name in dims if name not in used]
    if given is None or unused:
        raise InvalidDim(
            f"{unused[0]!r} is the size of no input",
            where="--dim",
            remedy=f"use it in --shape: --shape x=1x{unused[0]}",
        )
    if given.named:
        return {name: entry for (name, _), entry in zip(given.named, places, strict=True) if entry}
    return tuple(entry or None for entry in places)
