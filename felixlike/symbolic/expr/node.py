"""The nodes of expressions: what kinds there are, and the parts of a sum or a product.

In: nothing. Out: `Node`, which knows its operator, arguments and an interval that holds its value; `expression.py`
builds nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias, TypeVar

Number: TypeAlias = int | float
Payload: TypeAlias = tuple[object, ...]


class Op(Enum):
    """Node kinds.  The payload is: CONST (value,); VAR (name, low, high, group); ADD (constant, coefficient of each
    argument); MUL (exponent of each argument); AT_LEAST (threshold,); the rest ()."""

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
    """Variables whose product is known: the factors of one tiled loop.

    name: unique among the groups of an expression.  product: what all of them multiply to.  size: how many there
    are."""

    name: str
    product: int
    size: int


class Node:
    """An operator and its arguments.

    Attributes:
        op: The operator.
        args: What it is applied to.
        payload: Numbers and names that belong to the operator; see `Op`.
        low, high: Bounds of the value.
        order: Position in the order of creation: arguments come before what is built of them."""

    __slots__ = ("__weakref__", "args", "high", "low", "op", "order", "payload")

    op: Op
    args: tuple[Node, ...]
    payload: Payload
    low: float
    high: float
    order: int

    @property
    def is_const(self) -> bool:
        """Whether this is a number."""
        return self.op is Op.CONST

    @property
    def value(self) -> Number:
        """The number this constant stands for."""
        if self.op is not Op.CONST:
            raise TypeError(f"{self} is not a constant")
        return self.payload[0]  # type: ignore[return-value]

    @property
    def name(self) -> str:
        """The name of this variable."""
        if self.op is not Op.VAR:
            raise TypeError(f"{self} is not a variable")
        return str(self.payload[0])


AnyNode = TypeVar("AnyNode", bound=Node)


def linear_parts(expr: AnyNode) -> tuple[Number, list[tuple[AnyNode, Number]]]:
    """expr = constant + Σ coefficient · term, where no term is a sum or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.ADD:
        numbers: tuple[Number, ...] = expr.payload  # type: ignore[assignment]
        return numbers[0], list(zip(expr.args, numbers[1:], strict=True))  # type: ignore[arg-type]
    return 0, [(expr, 1)]


def product_parts(expr: AnyNode) -> tuple[Number, list[tuple[AnyNode, int]]]:
    """expr = coefficient · Π base ^ exponent, where no base is a product or a constant."""
    if expr.op is Op.CONST:
        return expr.value, []
    if expr.op is Op.MUL:
        return 1, list(zip(expr.args, expr.payload, strict=True))  # type: ignore[arg-type]
    if expr.op is Op.ADD and len(expr.args) == 1 and expr.payload[0] == 0:
        scale, parts = product_parts(expr.args[0])
        return scale * expr.payload[1], parts  # type: ignore[operator, return-value]
    return 1, [(expr, 1)]


def group_of(expr: Node) -> Group | None:
    """The group a variable belongs to."""
    return expr.payload[3] if expr.op is Op.VAR else None  # type: ignore[return-value]


def is_gate(expr: Node) -> bool:
    """Whether the value is 0 or 1: a test, 1 − a gate, or a product of gates."""
    if expr.op is Op.AT_LEAST:
        return True
    if expr.op is Op.MUL:
        return all(map(is_gate, expr.args))
    return expr.op is Op.ADD and expr.payload == (1, -1) and is_gate(expr.args[0])
