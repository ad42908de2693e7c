"""Marked loops: a schedule annotates a loop, and a pass over the scheduled function changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from felixlike import tvmlib
from felixlike.codegen import plain_loops

Change = Callable[[Any], Any]
"""A marked loop → what takes its place."""


def with_marked_loops(module: Any, mark: str, change: Callable[[Any], Change], *, flat: bool = False) -> Any:
    """The IRModule without blocks, and with every loop changed that has an annotation `mark`; functions without any are
    left alone.

    change: a function as plain loops → what to do with such a loop in it. Inner loops are changed first.  flat: its
    buffers have one dimension then."""
    return tvmlib.map_functions(module, lambda func: _changed(func, mark, change, flat=flat))


def unmarked(loop: Any, body: Any = None) -> Any:
    """A loop without its annotations; with another body, if one is given."""
    return tvmlib.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body if body is None else body)


def annotated(loop: Any, annotations: Mapping[str, Any]) -> Any:
    """A loop with these annotations instead of its own."""
    return tvmlib.tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=dict(annotations))


def _changed(func: Any, mark: str, change: Callable[[Any], Change], *, flat: bool) -> Any:
    if not any(mark in loop.annotations for loop in tvmlib.found(func.body, tvmlib.tirx.For)):
        return func
    plain = plain_loops.without_blocks(func)
    plain = plain_loops.with_flat_buffers(plain) if flat else plain
    changed = change(plain)
    return tvmlib.structural_map(
        plain, (tvmlib.tirx.For, lambda loop: changed(loop) if mark in loop.annotations else loop)
    )
