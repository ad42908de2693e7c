"""Find the sizes of a captured graph that differ between calls, so that one compiled version serves many of them.

Inputs: the placeholders of a graph captured by TorchDynamo, and the inputs of a call. Outputs: which dimensions are
dynamic, which of them are equal, and the range of sizes to compile for.

Dynamo gives every dynamic dimension a symbol of its own: the lengths of the keys and of the values of all layers of a
transformer are different symbols. A compiled version assumes that sizes of one dimension that are equal in its first
call are equal in all calls. Calls for which this does not hold get a version of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from felixlike._util.torch_compat import always_equal, forward_of, size_expression, size_hint
from felixlike.frontend.examples import repeated

Place = tuple[int, int]
"""The index of an input, and one of its dimensions."""


NUMBER = (int, float)
"""Classes of numbers among inputs."""


def number_key(number: Any) -> int | str:
    """Return what identifies a number: 0.0 and -0.0 are equal, but not what is computed from them."""
    return number.hex() if isinstance(number, float) else int(number)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Largest sizes that a version is compiled for, as multiples of the first. All values are chosen by hand.

    Attributes:
        batch: The least largest size of a first dimension, such as a batch.
        length: The least largest size of any other dimension, such as the length of a sequence.
        factor: Ratio of successive largest sizes.
        room: Share of a size by which the largest one must exceed it, so that a growing cache fits for a while.
        flops: Floating-point operations of the graph at the largest sizes, at which the version is compared with
            PyTorch. This takes a few seconds.
    """

    batch: int = 16
    length: int = 256
    factor: int = 4
    room: float = 0.25
    flops: float = 1e11

    def most(self, size: int, dim: int) -> int:
        """Return the largest size to compile for, for a size of a dimension."""
        most = self.length if dim else self.batch
        while most < size * (1 + self.room if dim else 1):
            most *= self.factor
        return most


RANGES = Ranges()

_LEAST = 2
"""Smallest size of a dynamic dimension: Dynamo captures graphs of their own for sizes of 0 and 1."""


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

    def of(self, inputs: Sequence[Any]) -> dict[Place, Any]:
        """Return the size of each place in a call."""
        return {(index, dim): inputs[index].shape[dim] for index, dim in self.places}

    def with_numbers(self, inputs: Sequence[Any]) -> list[Any]:
        """Return inputs with the sizes of their tensors as the numbers that the graph takes."""
        changed = list(inputs)
        for index, (tensor, dim) in self.sources.items():
            changed[index] = inputs[tensor].shape[dim]
        return changed

    def constants(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what identifies the numbers among the inputs that are not sizes of tensors."""
        return tuple(number_key(x) for i, x in enumerate(inputs) if isinstance(x, NUMBER) and i not in self.sources)

    def span(self, graph: fx.GraphModule, inputs: Sequence[Any], changed: Collection[int]) -> Span:
        """Return the sizes to compile a version for.

        The graph is run at the largest and smallest sizes: a table of positions may end before those to compile for.

        Args:
            graph: The graph.
            inputs: The inputs of a call.
            changed: Indices of parameters that the graph changes.
        """
        relations = self._relations(inputs)
        now = self.of(inputs)
        most = {place: RANGES.most(size, place[1]) for place, size in now.items()}
        free = set(now) - {relation.place for relation in relations}
        run = partial(self._run, graph, inputs, changed)
        with FlopCounterMode(display=False) as counter:
            run(now)

        def growth(place: Place) -> float:
            return float(most[place] / now[place])

        def smaller(places: Collection[Place]) -> dict[Place, int]:
            return {place: max(now[place], size // 2) if place in places else size for place, size in most.items()}

        def fulfilled(sizes: dict[Place, int]) -> dict[Place, int]:
            for relation in relations:
                sizes[relation.place] = sizes[relation.other] + relation.more
            return sizes

        while counter.get_total_flops() * math.prod(map(growth, free)) > RANGES.flops:
            widest = max(free, key=growth)
            if growth(widest) <= 1:
                break
            most = smaller([widest])
        most = fulfilled(most)
        while any(growth(place) > 1 for place in free) and not run(most):
            most = fulfilled(smaller(free))
        below = min([0, *(relation.more for relation in relations)])
        least = fulfilled({place: min(now[place], _LEAST - below) for place in now})
        return Span(self, self.constants(inputs), relations, least if run(least) else now, most)

    def _run(
        self, graph: fx.GraphModule, inputs: Sequence[Any], changed: Collection[int], most: Mapping[Place, int]
    ) -> bool:
        """Return whether a graph runs on copies of the inputs with other sizes."""
        values = [
            x.clone() if isinstance(x, Tensor) and (place in changed or not isinstance(x, nn.Parameter)) else x
            for place, x in enumerate(inputs)
        ]
        for index, dims in self.dims.items():
            values[index] = repeated(values[index], {dim: most[place] for dim, place in dims.items()})
        try:
            with torch.random.fork_rng(devices=[]):
                forward_of(graph)(*self.with_numbers(values))
        except Exception:  # whatever the user's model raises
            return False
        return True

    def _relations(self, inputs: Sequence[Any]) -> list[Relation]:
        """Return the equations between dimensions: what Dynamo knows, and which sizes are equal in this call."""
        known = {relation.place: relation for relation in self._known}
        sizes = [(dim, size) for (_, dim), size in self.of(inputs).items()]
        found = []
        for number, place in enumerate(self.places):
            same = sizes.index(sizes[number])
            if place in known:
                found.append(known[place])
            elif same < number:
                found.append(Relation(place, self.places[same], 0))
        return found


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that one compiled version serves.

    Attributes:
        sizes: The dynamic sizes of the graph.
        constants: What identifies the numbers that were compiled in, see `number_key`.
        relations: The equations that its sizes fulfil.
        least: The smallest size of each place.
        most: The largest size of each place.
    """

    sizes: GraphSizes
    constants: tuple[Any, ...]
    relations: Sequence[Relation]
    least: Mapping[Place, int]
    most: Mapping[Place, int]

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Return whether the inputs of a call have such sizes."""
        sizes = self.sizes.of(inputs)
        return (
            all(self.least[place] <= sizes[place] <= most for place, most in self.most.items())
            and all(sizes[relation.place] == sizes[relation.other] + relation.more for relation in self.relations)
            and self.constants == self.sizes.constants(inputs)
        )


def _known_relations(sizes: dict[Place, Any]) -> list[Relation]:
    """Return the equations between sizes that Dynamo checks before each call.

    Of sizes that are equal when the graph is captured only the first is looked at: the others are taken as equal to it.
    """
    relations = []
    first: dict[tuple[int, int], Place] = {}
    for place, size in sizes.items():
        hint = size_hint(size)
        if hint is None or (place[1], hint) in first:
            continue
        for (_, value), other in first.items():
            if always_equal(size, sizes[other] + (hint - value)):
                relations.append(Relation(place, other, hint - value))
                break
        first[place[1], hint] = place
    return relations
