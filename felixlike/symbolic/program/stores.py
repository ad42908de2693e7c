"""Define the statements of a symbolic program, and the arithmetic in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.program.indices import Access


class Operation(StrEnum):
    """Name the kinds of arithmetic that are counted, as TVM's features do."""

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
    """Describe one statement `target[…] = value`.

    Attributes:
        block: The name of the statement's block.
        target: The write.
        loads: The distinct reads in `value` (reads of the target included).
        repeats: How often each read occurs.
        operations: How often one execution does each kind of arithmetic; index arithmetic is not counted.
        spatial: The loop variables that data-parallel iterators depend on.
        reduction: The loop variables that reduction iterators depend on.
        is_reduction: Whether the block is a reduction.
        regions: The reads and writes that TVM records on the block, for the postprocessors.
        text: The value as TVM prints it.
        at_once: How many executions take the time of one, on tensor cores; else 1.
        word: The variable of the loop over a pair that an instruction loads and multiplies as one word, or None.
        rows: The variable of the loop over a matrix's rows that an instruction multiplies at once, or None.
        initial: The loops around the store of a reduction's initial value, if the trace itself has decomposed it.
    """

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
    word: Expr | None = None
    rows: Expr | None = None
    initial: frozenset[Expr] | None = None

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Return the write first, then the reads."""
        return (self.target, *self.loads)
