"""A symbolic program: the loop nest of a sketch with expressions for extents, as a tree of loops and stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from felixlike.algebra.expression import Expr, const
from felixlike.signs import showable
from felixlike.symbolic.program.buffers import Buffer
from felixlike.symbolic.program.loops import Blanket, Loop
from felixlike.symbolic.program.stores import Store


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The whole nest.  buffers: in order of first use.  blankets: for stores whose nest may be fused whole.  stages:
    copies of shared buffers that a software pipeline keeps.  fits: the gate that says for which tiles this is the nest:
    groups begin where blocks do, for instance."""

    body: tuple[Loop | Store, ...]
    buffers: tuple[Buffer, ...]
    blankets: dict[Store, Blanket] = field(default_factory=dict)
    stages: int = 1
    fits: Expr = field(default_factory=lambda: const(1))

    def stores(self) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
        """Every store in program order with its loops, outermost first."""
        yield from _walk(self.body, ())

    def __str__(self) -> str:
        from felixlike.symbolic.program.text import program_text

        return showable(program_text(self))


def _walk(body: tuple[Loop | Store, ...], path: tuple[Loop, ...]) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
    for node in body:
        if isinstance(node, Store):
            yield node, path
        else:
            yield from _walk(node.body, (*path, node))
