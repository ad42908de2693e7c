"""What signatures call TVM's objects. TVM has no types that mypy could check, so all of these are Any: they say what a
function takes and gives, and hold nobody to it.

Statements and expressions are nodes of a function; references are what a schedule's methods take and give, and stand
for a block or loop wherever it has moved to. Nothing of TVM is loaded.
"""

from typing import Any, TypeAlias

Module: TypeAlias = Any
"""An IRModule."""

Func: TypeAlias = Any
"""A PrimFunc."""

Node: TypeAlias = Any
"""Anything in a function: a statement or an expression."""

Stmt: TypeAlias = Any
"""A statement of TIR."""

Loop: TypeAlias = Any
"""A For statement."""

Block: TypeAlias = Any
"""An SBlock: a statement with iterators, reads and writes."""

BlockRealize: TypeAlias = Any
"""An SBlockRealize: a block with the values of its iterators and its predicate."""

TirExpr: TypeAlias = Any
"""An expression of TIR: a number, a variable, a load, a call."""

Var: TypeAlias = Any
"""A variable of TIR, as a loop has one."""

Buffer: TypeAlias = Any
"""A buffer of TIR."""

Schedule: TypeAlias = Any
"""A schedule that is being made."""

BlockRef: TypeAlias = Any
"""A schedule's name for a block (SBlockRV)."""

LoopRef: TypeAlias = Any
"""A schedule's name for a loop (LoopRV)."""

Trace: TypeAlias = Any
"""The instructions of a schedule, with their decisions."""

Instruction: TypeAlias = Any
"""One of a trace's."""
