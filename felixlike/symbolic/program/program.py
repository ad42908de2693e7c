"""Define a symbolic program, the loop nest of a sketch with expressions for extents, and print it as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from felixlike._encoding import showable
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.program.buffers import Buffer
from felixlike.symbolic.program.loops import FullyFusedNest, Loop
from felixlike.symbolic.program.stores import Store


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Hold the loop nest of a sketch.

    Attributes:
        body: The outermost loops and stores.
        buffers: The buffers in order of first use.
        blankets: The stores whose nest may be fully fused, each with its fusion.
        stages: Copies of shared buffers that a software pipeline keeps.
        fits: The gate that is 1 for tiles with which this is the nest; for instance, groups must begin where blocks do.
    """

    body: tuple[Loop | Store, ...]
    buffers: tuple[Buffer, ...]
    blankets: dict[Store, FullyFusedNest] = field(default_factory=dict)
    stages: int = 1
    fits: Expr = field(default_factory=lambda: const(1))

    def stores(self) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
        """Yield every store in program order with its loops, outermost first."""
        yield from _walk(self.body, ())

    def __str__(self) -> str:
        return showable(program_text(self))


def _walk(body: tuple[Loop | Store, ...], path: tuple[Loop, ...]) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
    """Yield every store below `body` with its loops."""
    for node in body:
        if isinstance(node, Store):
            yield node, path
        else:
            yield from _walk(node.body, (*path, node))


def program_text(program: Program) -> str:
    """Return the nest as indented text; loops that may fuse show the condition.

        for i0_0 in i0.0 parallel if [i0.0*j.0 ≤ 32]

    A loop that is fused with its neighbours and split across threads: for ax0 in 64 of serial 2 × threadIdx.x 32
    """
    lines = [
        f"alloc {buffer.name}[{', '.join(map(str, buffer.shape))}]{_aligned(buffer)}"
        for buffer in program.buffers
        if buffer.internal
    ]
    for node in program.body:
        lines += _lines(program, node, "")
    return "\n".join(lines)


def _lines(program: Program, node: Loop | Store, indent: str, parent: Loop | None = None) -> list[str]:
    """Return the lines of a loop or store."""
    if isinstance(node, Loop):
        lines = [f"{indent}for {node.variable} in {node.extent}{_loop_kinds(node, parent)}"]
        for child in node.body:
            lines += _lines(program, child, indent + "  ", node)
        return lines
    lines = []
    if node in program.blankets:
        fused_nest = program.blankets[node]
        lines.append(f"{indent}# whole nest fused and split by {fused_nest.width}{_when(fused_nest.gate)}")
    return [*lines, f"{indent}{_statement(node)}"]


def _loop_kinds(loop: Loop, parent: Loop | None) -> str:
    """Return the kinds of a loop as text."""
    text = f" {loop.thread}" if loop.thread else ""
    text += " unrolled" if loop.kind == "unrolled" else ""
    if loop.share is not None and parent is not None and loop.share is parent.share:
        text += " of the same"
    elif loop.share is not None:
        text += " of " + " × ".join(f"{kind} {extent}" for kind, extent in loop.share.parts)
    for word, gate in (("parallel", loop.parallel), ("vector", loop.vector)):
        if not _never(gate):
            text += f" {word}{_when(gate)}"
    return text if _never(loop.unroll) else f"{text} unroll {loop.unroll}"


def _aligned(buffer: Buffer) -> str:
    """Return the strides of an aligned buffer as text."""
    return f" in steps of [{', '.join(map(str, buffer.steps))}]" if buffer.aligns else ""


def _never(gate: Expr) -> bool:
    """Return whether a gate is the constant 0."""
    return gate.is_const and gate.value == 0


def _when(gate: Expr) -> str:
    """Return the condition of a gate as text."""
    return "" if gate.is_const else f" if {gate}"


def _statement(store: Store) -> str:
    """Return a store as text."""
    operator = "⊕=" if store.is_reduction else "="
    loads = [load for load in store.loads if load.buffer is not store.target.buffer]
    return f"{store.target} {operator} f({', '.join(map(str, loads))})"
