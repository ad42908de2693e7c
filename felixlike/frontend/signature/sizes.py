"""Sizes that a call decides: which of a model's inputs and outputs have them, and in which range.

In: names for dimensions of tensors, a range for each name. Out: `Sizes`, which checks tensors, and goes into an
artefact as JSON and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike.errors import InputMismatch, InvalidArtefact

Places = tuple[tuple[str | None, ...], ...]
"""For each tensor, and each of its dimensions, the name of its size; None where it is fixed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """ranges: the least and the most of each name.  inputs: where they stand; sizes without a name are those of the
    input's specification, whose others are the largest."""

    ranges: tuple[tuple[str, int, int], ...]
    inputs: Places

    def check(self, names: Sequence[str], wanted: Sequence[Sequence[int]], tensors: Sequence[Any], where: str) -> None:
        """Raise InputMismatch unless all sizes are in range, and the same wherever they have the same name.

        names, wanted: of each input, the largest shape it may have."""
        ranges = {name: (least, most) for name, least, most in self.ranges}
        found: dict[str, tuple[int, str]] = {}
        for input_name, shape, places, tensor in zip(names, wanted, self.inputs, tensors, strict=True):
            fixed = [None if place else size for place, size in zip(places, shape, strict=True)]
            given = tuple(tensor.shape)
            if len(given) != len(fixed) or any(f is not None and f != g for f, g in zip(fixed, given, strict=True)):
                text = ", ".join(place or str(size) for place, size in zip(places, shape, strict=True))
                raise InputMismatch(f"input {input_name!r} has shape {given}", where=where, remedy=f"give ({text})")
            for place, size in zip(places, given, strict=True):
                if place is None:
                    continue
                known, first = found.setdefault(place, (size, input_name))
                if known != size:
                    raise InputMismatch(
                        f"{place} is {known} in input {first!r} and {size} in input {input_name!r}",
                        where=where,
                        remedy=f"give inputs that agree about {place}",
                    )
                least, most = ranges[place]
                if not least <= size <= most:
                    raise InputMismatch(
                        f"{place} is {size} in input {input_name!r}, out of its range {least} to {most}",
                        where=where,
                        remedy="give a size in that range, or optimize the model for more sizes",
                    )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"ranges": [list(r) for r in self.ranges], "inputs": [list(places) for places in self.inputs]}

    @staticmethod
    def from_json(data: Any, shapes: Sequence[Sequence[int]]) -> Sizes:
        """The inverse of `to_json`, for inputs of these largest shapes.  Raises InvalidArtefact."""
        try:
            ranges = tuple((_text(name), _size(least), _size(most)) for name, least, most in data["ranges"])
            inputs = tuple(tuple(None if p is None else _text(p) for p in places) for places in data["inputs"])
        except (KeyError, TypeError, ValueError):
            raise InvalidArtefact("they are no sizes that a call decides") from None
        most_of: Mapping[str, int] = {name: most for name, _, most in ranges}
        fits = len(inputs) == len(shapes) and all(
            len(places) == len(shape)
            and all(p is None or most_of.get(p) == s for p, s in zip(places, shape, strict=True))
            for places, shape in zip(inputs, shapes, strict=False)
        )
        if not fits or any(least > most for _, least, most in ranges):
            raise InvalidArtefact("they do not fit the inputs")
        return Sizes(ranges, inputs)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no name")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("no size")
    return value
