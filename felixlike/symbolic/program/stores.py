"""Statements of a symbolic program, and the arithmetic in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.program.indices import Access


class Operation(StrEnum):
    """Arithmetic that is counted, by TVM's feature names."""

    FLOAT_ADD_SUB = "float_add_sub"
    FLOAT_MUL = "float_mul"
    FLOAT_DIV_MOD = "float_div_mod"
    FLOAT_CMP = "float_cmp"
    FLOAT_MATH_FUNC = "float_math_func"
    FLOAT_OTHER_FUNC = "float_other_func"
    INT_ADD_SUB = "int_add_sub"
    INT_MUL = "int_mul"
    INT_DIV_MOD = "int_div_mod"
    INT_CMP = "int_cmp"
    INT_MATH_FUNC = "int_math_func"
    INT_OTHER_FUNC = "int_other_func"
    BOOL_OP = "bool_op"
    SELECT_OP = "select_op"


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """One statement `target[…] = value`.

    loads: the distinct reads in `value` (reads of the target included).  repeats: how often each occurs.  operations:
    how often each kind of arithmetic is done in one execution, index arithmetic not counted.  spatial, reduction: loop
    variables its data-parallel and its reduction iterators depend on.  regions: what TVM notes as its block's reads and
    writes, for the postprocessors.  text: its value as TVM writes it.  at_once: how many of its executions take the
    time of one, on tensor cores; else 1."""

    block: str
    target: Access
    loads: tuple[Access, ...]
    repeats: tuple[int, ...]
    operations: tuple[tuple[Operation, int], ...]
    spatial: frozenset[Expr]
    reduction: frozenset[Expr]
    is_reduction: bool
    regions: tuple[Access, ...]
    text: str
    at_once: int = 1

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The write first, then the reads."""
        return (self.target, *self.loads)
