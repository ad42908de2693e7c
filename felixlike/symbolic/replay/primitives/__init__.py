"""Replay schedule primitives on symbolic loops, one file for each kind.

`PRIMITIVES` maps TVM's instruction names to them. A sketch with any other instruction has no symbolic program: it is
tuned by sampling, and the report names the instruction.
"""

from felixlike.symbolic.replay.primitives import (
    annotate,
    bind,
    cache,
    categorical,
    fuse,
    inline,
    kind,
    layout,
    location,
    lookup,
    merge,
    pad,
    reorder,
    rfactor,
    scope,
    split,
    storage_align,
    unit_loop,
)
from felixlike.symbolic.replay.primitives.primitive import Primitive

PRIMITIVES: dict[str, Primitive] = {
    **lookup.PRIMITIVES,
    **annotate.PRIMITIVES,
    **split.PRIMITIVES,
    **categorical.PRIMITIVES,
    **reorder.PRIMITIVES,
    **fuse.PRIMITIVES,
    **unit_loop.PRIMITIVES,
    **bind.PRIMITIVES,
    **scope.PRIMITIVES,
    **inline.PRIMITIVES,
    **kind.PRIMITIVES,
    **layout.PRIMITIVES,
    **pad.PRIMITIVES,
    **cache.PRIMITIVES,
    **rfactor.PRIMITIVES,
    **merge.PRIMITIVES,
    **location.PRIMITIVES,
    **storage_align.PRIMITIVES,
}
"""The primitive of each of TVM's instruction names."""

__all__ = ["PRIMITIVES", "Primitive"]
