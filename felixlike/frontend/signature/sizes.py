"""Describe dynamic sizes: the inputs that have them, and their ranges.

Input: names for dimensions of tensors, and a range for each name. Output: `Sizes`, which checks tensors and is saved
as JSON in an artefact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike.errors import InputMismatch, InvalidArtefact

Places = tuple[tuple[str | None, ...], ...]
"""For each tensor and each of its dimensions, its size as "T", "T + 1" or "T - 1" with a name, or None if it is
fixed."""


def size_text(name: str, more: int) -> str:
    """Return the text of a size that differs from a named one by a constant."""
    return f"{name} {'+' if more > 0 else '-'} {abs(more)}" if more else name


def read_size(text: str) -> tuple[str, int]:
    """Return the name and the constant of a size's text.  Raises ValueError."""
    name, *rest = text.split(" ")
    if not rest:
        return name, 0
    sign, number = rest
    if sign not in ("+", "-"):
        raise ValueError(f"expected a sum, got {text!r}")
    return name, int(number) if sign == "+" else -int(number)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Describe the dynamic sizes of a model's inputs.

    Attributes:
        ranges: (name, minimum, maximum) of each size, in elements.
        inputs: Sizes of the dimensions of each input. Dimensions without a name have the size in the input's spec.
            For the others, the spec holds the maximum.
    """

    ranges: tuple[tuple[str, int, int], ...]
    inputs: Places

    def check(self, names: Sequence[str], wanted: Sequence[Sequence[int]], tensors: Sequence[Any], where: str) -> None:
        """Check the shapes of tensors.

        Args:
            names: Name of each input.
            wanted: Largest shape of each input.
            tensors: One tensor per input.
            where: The model's name, for messages.

        Raises:
            InputMismatch: A size is out of range, a fixed size or the rank differs, or sizes of one name are not
                equal.
        """
        ranges = {name: (least, most) for name, least, most in self.ranges}
        first_use: dict[str, tuple[int, str]] = {}
        for input_name, shape, places, tensor in zip(names, wanted, self.inputs, tensors, strict=True):
            fixed = [None if place else size for place, size in zip(places, shape, strict=True)]
            actual = tuple(tensor.shape)
            if len(actual) != len(fixed) or any(f is not None and f != a for f, a in zip(fixed, actual, strict=True)):
                text = ", ".join(place or str(size) for place, size in zip(places, shape, strict=True))
                raise InputMismatch(
                    f"input {input_name!r} has shape {actual}", where=where, remedy=f"pass a tensor of shape ({text})"
                )
            for place, size in zip(places, actual, strict=True):
                if place is None:
                    continue
                dim, more = read_size(place)
                size -= more
                known, first = first_use.setdefault(dim, (size, input_name))
                if known != size:
                    raise InputMismatch(
                        f"{dim} is {known} in input {first!r} and {size} in input {input_name!r}",
                        where=where,
                        remedy=f"pass inputs with equal {dim}",
                    )
                least, most = ranges[dim]
                if not least <= size <= most:
                    raise InputMismatch(
                        f"{dim} is {size} in input {input_name!r}, out of its range {least} to {most}",
                        where=where,
                        remedy="pass a size in that range, or optimize the model for more sizes",
                    )

    def to_json(self) -> dict[str, Any]:
        """Return the sizes as JSON data."""
        return {"ranges": [list(r) for r in self.ranges], "inputs": [list(places) for places in self.inputs]}

    @staticmethod
    def from_json(data: Any, shapes: Sequence[Sequence[int]]) -> Sizes:
        """Restore sizes from the data of `to_json`.

        Args:
            data: JSON data.
            shapes: Largest shape of each input.

        Returns:
            The sizes.

        Raises:
            InvalidArtefact: The data is malformed or does not match the shapes.
        """
        try:
            ranges = tuple((_text(name), _size(least), _size(most)) for name, least, most in data["ranges"])
            inputs = tuple(tuple(None if p is None else _text(p) for p in places) for places in data["inputs"])
            terms = [[None if p is None else read_size(p) for p in places] for places in inputs]
        except (KeyError, TypeError, ValueError):
            raise InvalidArtefact("the dynamic sizes are malformed") from None
        most_of: Mapping[str, int] = {name: most for name, _, most in ranges}
        matches = len(inputs) == len(shapes) and all(
            len(places) == len(shape)
            and all(p is None or most_of.get(p[0]) == s - p[1] for p, s in zip(places, shape, strict=True))
            for places, shape in zip(terms, shapes, strict=False)
        )
        if not matches or any(least > most for _, least, most in ranges):
            raise InvalidArtefact("the dynamic sizes do not match the inputs")
        return Sizes(ranges, inputs)


def _text(value: Any) -> str:
    """Return a string.  Raises ValueError for other values."""
    if not isinstance(value, str):
        raise ValueError("expected a string")
    return value


def _size(value: Any) -> int:
    """Return a positive int.  Raises ValueError for other values."""
    if type(value) is not int or value < 1:
        raise ValueError("expected a positive integer")
    return value
