"""Describe dynamic sizes: the inputs that have them, their ranges, and conditions on them.

Input: names for dimensions of tensors, and a range for each name. Output: `Sizes`, which checks tensors and is saved
as JSON in an artefact.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
        conditions: Conditions that the sizes must fulfil, in Python with their names: "T % 2 == 0".
    """

    ranges: tuple[tuple[str, int, int], ...]
    inputs: Places
    conditions: tuple[str, ...] = ()

    def check(self, names: Sequence[str], wanted: Sequence[Sequence[int]], tensors: Sequence[Any], where: str) -> None:
        """Check the shapes of tensors.

        Args:
            names: Name of each input.
            wanted: Largest shape of each input.
            tensors: One tensor per input.
            where: The model's name, for messages.

        Raises:
            InputMismatch: A size is out of range, a fixed size or the rank differs, sizes of one name are not equal, or
                a condition does not hold.
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
        if not self.conditions:  # no work in each call
            return
        numbers = {name: size for name, (size, _) in first_use.items()}
        broken = self.broken(numbers)
        if broken is not None:
            raise InputMismatch(
                f"the model was exported for sizes with {broken}, but got "
                + ", ".join(f"{name} = {size}" for name, size in numbers.items()),
                where=where,
                remedy="pass such sizes, or pass the original module to optimize",
            )

    def broken(self, sizes: Mapping[str, int]) -> str | None:
        """Return the first condition that sizes, by name, do not fulfil; None if they fulfil all."""
        return next((condition for condition in self.conditions if not _holds(condition, sizes)), None)

    def to_json(self) -> dict[str, Any]:
        """Return the sizes as JSON data."""
        return {
            "ranges": [list(r) for r in self.ranges],
            "inputs": [list(places) for places in self.inputs],
            "conditions": list(self.conditions),
        }

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
            conditions = tuple(map(_text, data.get("conditions", ())))  # none in files of earlier versions
            sizes = {name: least for name, least, _ in ranges}
            for condition in conditions:
                _holds(condition, sizes)
        except (KeyError, RecursionError, SyntaxError, TypeError, ValueError):
            raise InvalidArtefact("the dynamic sizes are malformed") from None
        most_of: Mapping[str, int] = {name: most for name, _, most in ranges}
        matches = len(inputs) == len(shapes) and all(
            len(places) == len(shape)
            and all(p is None or most_of.get(p[0]) == s - p[1] for p, s in zip(places, shape, strict=True))
            for places, shape in zip(terms, shapes, strict=False)
        )
        if not matches or any(least > most for _, least, most in ranges):
            raise InvalidArtefact("the dynamic sizes do not match the inputs")
        return Sizes(ranges, inputs, conditions)


def is_condition(text: str, names: Iterable[str]) -> bool:
    """Return whether a text is a condition on sizes of these names that can be evaluated."""
    try:
        _holds(text, dict.fromkeys(names, 2))
    except (KeyError, SyntaxError, ValueError):
        return False
    return True


def _holds(condition: str, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition holds for sizes, or has no value, as after a division by 0.

    Raises SyntaxError, and ValueError and KeyError as `_value` does.
    """
    try:
        return bool(_value(_parsed(condition), sizes))
    except ArithmeticError:
        return True


@cache
def _parsed(condition: str) -> ast.expr:
    """Return the expression of a condition, which calls evaluate again and again. Raises SyntaxError."""
    return ast.parse(condition, mode="eval").body


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Evaluate whole numbers, names of sizes, arithmetic and comparisons, as a file may have any text.

    Raises ValueError for anything else, KeyError for another name, ArithmeticError for a division by 0.
    """
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return int(_OPERATORS[type(op)](_value(left, sizes), _value(right, sizes)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return int(_OPERATORS[type(op)](_value(operand, sizes)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return int(_OPERATORS[type(op)](_value(left, sizes), _value(right, sizes)))
        case ast.BoolOp(op=op, values=values):
            join = all if isinstance(op, ast.And) else any
            return int(join(_value(value, sizes) for value in values))
        case _:
            raise ValueError(f"expected arithmetic, got {ast.unparse(node)!r}")


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
