"""One file for each kind of schedule primitive: how an instruction of a trace is replayed on symbolic loops.

`PRIMITIVES` maps TVM's instruction names to them; an instruction that is not in the table makes its sketch one that is
tuned by sampling, with its name in the report.
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

__all__ = ["PRIMITIVES", "Primitive"]
