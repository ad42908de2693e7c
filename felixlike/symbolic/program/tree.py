"""Read the named loop tree of a function, for pictures of a schedule.

Input: the body of a TVM function, scheduled or not. Output: nested loops and the statements inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.frontend.constants import PACKING
from felixlike.symbolic.program.nest import loop_kind


@dataclass(frozen=True, slots=True)
class Statement:
    """Describe a block.

    Attributes:
        text: The buffers that it writes and reads.
    """

    text: str


@dataclass(frozen=True, slots=True)
class LoopNode:
    """Describe a loop.

    Attributes:
        name: The name of its variable.
        kind: The loop's kind, as in `NestLoop`.
        extent: The number of iterations; 0 if it is not constant.
        unroll: The largest number of unrolled steps, as in `NestLoop`.
        body: The loops and statements inside, in order.
    """

    name: str
    kind: str
    extent: int
    unroll: int
    body: tuple[LoopNode | Statement, ...]


Nodes = tuple[LoopNode | Statement, ...]
"""Loops and statements of one level, in order."""


def loop_tree(body: Any) -> Nodes:
    """Return the loops and blocks of a function's body (`module["main"].body`).

    The packing of constants, which a compiled model runs once, is omitted, and so are loops of extent 1 without
    annotations.
    """
    match type(body).__name__:
        case "For":
            body_nodes = loop_tree(body.body)
            unroll = int(body.annotations.get("pragma_auto_unroll_max_step", 0))
            kind, extent = loop_kind(body), int(getattr(body.extent, "value", 0))
            if not body_nodes or (extent == 1 and not unroll):
                return body_nodes
            return (LoopNode(str(body.loop_var.name), kind, extent, unroll, body_nodes),)
        case "SBlockRealize" if PACKING in body.block.annotations:
            return ()
        case "SBlockRealize":
            body_nodes = loop_tree(body.block.body)
            return body_nodes if body_nodes else (Statement(_text(body.block)),)
        case "SeqStmt":
            return tuple(node for part in body.seq for node in loop_tree(part))
        case "IfThenElse":
            parts = (body.then_case, body.else_case)
            return tuple(node for part in parts if part is not None for node in loop_tree(part))
        case _:
            return ()


def _text(block: Any) -> str:
    """Return a block as text, such as "C ⊕= f(A, B)": the names of the buffers that it writes and reads."""
    writes = dict.fromkeys(str(region.source.name) for region in block.writes)
    reads = dict.fromkeys(str(region.source.name) for region in block.reads if str(region.source.name) not in writes)
    sums = block.init is not None or str(block.name_hint).endswith("_update")
    return f"{', '.join(writes) or block.name_hint} {'⊕=' if sums else '='} f({', '.join(reads)})"
