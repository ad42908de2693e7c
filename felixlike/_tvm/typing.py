"""Name TVM's objects in signatures. TVM has no static types, so all aliases are Any and only document a signature.

Statements and expressions are nodes of a function. References are arguments and results of a schedule's methods, and
stand for a block or loop wherever it has moved to. This module does not load TVM.
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
"""A variable of TIR, such as a loop's."""

Buffer: TypeAlias = Any
"""A buffer of TIR."""

Schedule: TypeAlias = Any
"""A schedule under construction."""

BlockRef: TypeAlias = Any
"""A schedule's reference to a block (SBlockRV)."""

LoopRef: TypeAlias = Any
"""A schedule's reference to a loop (LoopRV)."""

Trace: TypeAlias = Any
"""The instructions of a schedule, with their decisions."""

Instruction: TypeAlias = Any
"""An instruction of a trace."""
