"""Find the sizes of a captured graph that differ between calls, so that one compiled version serves many of them.

Inputs: the placeholders of a graph captured by TorchDynamo, and the inputs of a call. Outputs: which dimensions are
dynamic, which of them are equal, and the range of sizes to compile for.

Dynamo gives every dynamic dimension a symbol of its own: the lengths of the keys and of the values of all layers of a
transformer are different symbols. A compiled version assumes that sizes of one dimension that are equal in its first
call are equal in all calls. Calls for which this does not hold get a version of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from felixlike._util.torch_compat import always_equal, size_expression, size_hint

Place = tuple[int, int]
"""The index of an input, and one of its dimensions."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Largest sizes that a version is compiled for, as multiples of the first. All values are chosen by hand.

    Attributes:
        batch: The least largest size of a first dimension, such as a batch.
        length: The least largest size of any other dimension, such as the length of a sequence.
        factor: Ratio of successive largest sizes.
        room: Share of a size by which the largest one must exceed it, so that a growing cache fits for a while.
    """

    batch: int = 16
    length: int = 256
    factor: int = 4
    room: float = 0.25

    def most(self, size: int, dim: int) -> int:
        """Return the largest size to compile for, for a size of a dimension."""
        most = self.length if dim else self.batch
        while most < size * (1 + self.room if dim else 1):
            most *= self.factor
        return most


RANGES = Ranges()


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation between two dimensions: the size of `place` is that of `other` plus `more`."""

    place: Place
    other: Place
    more: int


class GraphSizes:
    """The dynamic sizes of a graph.

    Args:
        placeholders: The nodes of the graph's inputs.

    Attributes:
        places: The dynamic dimensions of inputs, one for each expression in symbols.
        dims: For each input with dynamic dimensions, these and the place with the same expression.
        sources: For each input that is the size of a dimension: that dimension.
    """

    def __init__(self, placeholders: Sequence[fx.Node]) -> None:
        self.dims: dict[int, dict[int, Place]] = {}
        first: dict[Any, Place] = {}
        sizes: dict[Place, Any] = {}
        for index, node in enumerate(placeholders):
            value = node.meta.get("example_value")
            if not isinstance(value, Tensor):
                continue
            shape: Sequence[Any] = value.shape
            for dim, size in enumerate(shape):
                if not (isinstance(size, int) or always_equal(size, size_hint(size))):
                    place = first.setdefault(size_expression(size), (index, dim))
                    sizes.setdefault(place, size)
                    self.dims.setdefault(index, {})[dim] = place
        self.places = list(sizes)
        self.sources: dict[int, Place] = {}
        for index, node in enumerate(placeholders):
            value = node.meta.get("example_value")
            if isinstance(value, torch.SymInt) and size_expression(value) in first:
                self.sources[index] = first[size_expression(value)]
        self._known = _known_relations(sizes)

    def __bool__(self) -> bool:
        return bool(self.places)

    def key(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what is equal for all calls that one compiled version serves."""
        return tuple(self._first_equal(inputs)), tuple(self.most(inputs).values()), self.constants(inputs)

    def constants(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the numbers among the inputs that are not sizes of tensors."""
        return tuple(x for i, x in enumerate(inputs) if isinstance(x, int | float) and i not in self.sources)

    def relations(self, inputs: Sequence[Any]) -> list[Relation]:
        """Return the equations between dimensions: what Dynamo knows, and which sizes are equal in this call."""
        known = {relation.place: relation for relation in self._known}
        found = []
        for number, (place, same) in enumerate(zip(self.places, self._first_equal(inputs), strict=True)):
            if place in known:
                found.append(known[place])
            elif same < number:
                found.append(Relation(place, self.places[same], 0))
        return found

    def most(self, inputs: Sequence[Any]) -> dict[Place, int]:
        """Return the largest size to compile for, for each place."""
        return {place: RANGES.most(size, place[1]) for place, size in self.of(inputs).items()}

    def of(self, inputs: Sequence[Any]) -> dict[Place, Any]:
        """Return the size of each place in a call."""
        return {(index, dim): inputs[index].shape[dim] for index, dim in self.places}

    def _first_equal(self, inputs: Sequence[Any]) -> list[int]:
        """Return, for each place, the number of the first one with the same dimension and size in a call."""
        sizes = [(dim, size) for (_, dim), size in self.of(inputs).items()]
        return list(map(sizes.index, sizes))


def _known_relations(sizes: dict[Place, Any]) -> list[Relation]:
    """Return the equations between sizes that Dynamo checks before each call."""
    relations = []
    places = [place for place in sizes if size_hint(sizes[place]) is not None]
    for number, place in enumerate(places):
        for other in places[:number]:
            more = (size_hint(sizes[place]) or 0) - (size_hint(sizes[other]) or 0)
            if always_equal(sizes[place], sizes[other] + more):
                relations.append(Relation(place, other, more))
                break
    return relations
