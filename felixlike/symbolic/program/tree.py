"""The loops of a function as they are nested, with their names: what a picture of a schedule shows.

In: the body of a TVM function, as it came or scheduled. Out: loops within loops, and the statements inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.frontend.constants import PACKING
from felixlike.symbolic.program.nest import loop_kind


@dataclass(frozen=True, slots=True)
class Statement:
    """A block.  text: what it writes, and of what."""

    text: str


@dataclass(frozen=True, slots=True)
class LoopNode:
    """name: of its variable.  kind, extent, unroll: as of a `NestLoop`; extents that are no numbers are 0.  body: what
    is inside, in order."""

    name: str
    kind: str
    extent: int
    unroll: int
    body: tuple[LoopNode | Statement, ...]


Nodes = tuple[LoopNode | Statement, ...]


def loop_tree(body: Any) -> Nodes:
    """The loops and blocks of a function's body (`module["main"].body`) without what a compiled model has done once and
    for all, its packing of constants, and without loops of extent 1 that say nothing."""
    match type(body).__name__:
        case "For":
            inside = loop_tree(body.body)
            note = int(body.annotations.get("pragma_auto_unroll_max_step", 0))
            kind, extent = loop_kind(body), int(getattr(body.extent, "value", 0))
            if not inside or (extent == 1 and not note):
                return inside
            return (LoopNode(str(body.loop_var.name), kind, extent, note, inside),)
        case "SBlockRealize" if PACKING in body.block.annotations:
            return ()
        case "SBlockRealize":
            inside = loop_tree(body.block.body)
            return inside if inside else (Statement(_text(body.block)),)
        case "SeqStmt":
            return tuple(node for part in body.seq for node in loop_tree(part))
        case "IfThenElse":
            parts = (body.then_case, body.else_case)
            return tuple(node for part in parts if part is not None for node in loop_tree(part))
        case _:
            return ()


def _text(block: Any) -> str:
    """ "C += A, B": the names of the buffers that it writes and reads."""
    writes = dict.fromkeys(str(region.source.name) for region in block.writes)
    reads = dict.fromkeys(str(region.source.name) for region in block.reads if str(region.source.name) not in writes)
    sums = block.init is not None or str(block.name_hint).endswith("_update")
    return f"{', '.join(writes) or block.name_hint} {'⊕=' if sums else '='} f({', '.join(reads)})"
