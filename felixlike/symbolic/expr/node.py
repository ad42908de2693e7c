"""Define the nodes of expressions: their kinds, and the parts of a sum or a product.

`Node` has an operator, arguments and an interval that contains its value; `expression.py` builds nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, TypeVar

Number: TypeAlias = int | float
"""A number in an expression."""
Payload: TypeAlias = tuple[object, ...]
"""Numbers and names that belong to an operator; see `Op`."""


class Op(Enum):
    """Name the kinds of nodes.

    The payload is: CONST (value,); VAR (name, low, high, group); ADD (constant, coefficient of each argument); MUL
    (exponent of each argument); AT_LEAST (threshold,); the others ().
    """

    CONST = auto()
    VAR = auto()
    ADD = auto()
    MUL = auto()
    FLOORDIV = auto()
    MIN = auto()
    MAX = auto()
    AT_LEAST = auto()
    SELECT = auto()


@dataclass(frozen=True, slots=True)
class Group:
    """Describe variables whose product is known: the factors of one tiled loop.

    Attributes:
        name: The name, unique among the groups of an expression.
        product: The product of all variables of the group.
        size: The number of variables.
    """

    name: str
    product: int
    size: int


class Node:
    """Represent an operator and its arguments.

    Attributes:
        op: The operator.
        args: Its arguments.
        payload: Numbers and names that belong to the operator; see `Op`.
        low: The lower bound of the value.
        high: The upper bound of the value.
        order: The position in the order of creation. Arguments come before the nodes that use them.
    """

    __slots__ = ("__weakref__", "args", "high", "low", "op", "order", "payload")

    op: Op
    args: tuple[Node, ...]
    payload: Payload
    low: float
    high: float
    order: int

    @property
    def is_const(self) -> bool:
        """Return whether this is a constant."""
        return self.op is Op.CONST

    @property
    def value(self) -> Number:
        """Return the number of a constant.

        Raises:
            TypeError: If this is not a constant.
        """
        if self.op is not Op.CONST:
            raise TypeError(f"{self} is not a constant")
        return self.payload[0]  # type: ignore[return-value]

    @property
    def name(self) -> str:
        """Return the name of a variable.

        Raises:
            TypeError: If this is not a variable.
        """
        if self.op is not Op.VAR:
            raise TypeError(f"{self} is not a variable")
        return str(self.payload[0])


AnyNode = TypeVar("AnyNode", bound=Node)


def linear_parts(expr: AnyNode) -> tuple[Number, list[tuple[AnyNode, Number]]]:
    """Split an expression: expr = constant + Σ coefficient · term, where no term is a sum or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.ADD:
        numbers: tuple[Number, ...] = expr.payload  # type: ignore[assignment]
        return numbers[0], list(zip(expr.args, numbers[1:], strict=True))  # type: ignore[arg-type]
    return 0, [(expr, 1)]


def product_parts(expr: AnyNode) -> tuple[Number, list[tuple[AnyNode, int]]]:
    """Split an expression: expr = coefficient · Π base ^ exponent, where no base is a product or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.MUL:
        return 1, list(zip(expr.args, expr.payload, strict=True))  # type: ignore[arg-type]
    if expr.op is Op.ADD and len(expr.args) == 1 and expr.payload[0] == 0:
        scale, parts = product_parts(expr.args[0])
        return scale * expr.payload[1], parts  # type: ignore[operator, return-value]
    return 1, [(expr, 1)]


def group_of(expr: Node) -> Group | None:
    """Return the group of a variable; None for other nodes, and variables without a group."""
    return expr.payload[3] if expr.op is Op.VAR else None  # type: ignore[return-value]


def is_gate(expr: Node) -> bool:
    """Return whether the value is 0 or 1: the expression is a test, 1 − a gate, or a product of gates."""
    if expr.op is Op.AT_LEAST:
        return True
    if expr.op is Op.MUL:
        return all(map(is_gate, expr.args))
    return expr.op is Op.ADD and expr.payload == (1, -1) and is_gate(expr.args[0])
