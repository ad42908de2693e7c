"""What TVM itself says of a scheduled program: its loops, and its feature extractor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import tvmlib
from felixlike.symbolic import NestLoop, Sketch

_KINDS = {0: "serial", 1: "parallel", 2: "vector", 3: "unrolled"}


def tvm_nest(schedule: Any) -> list[tuple[str, tuple[NestLoop, ...]]]:
    """(block, its loops) of a postprocessed schedule, without initial stores and loops of extent 1."""
    found: list[tuple[str, tuple[NestLoop, ...]]] = []

    def visit(stmt: Any, path: tuple[NestLoop, ...]) -> None:
        match type(stmt).__name__:
            case "For":
                note = stmt.annotations.get("pragma_auto_unroll_max_step", 0)
                kind = _KINDS.get(int(stmt.kind)) or str(stmt.thread_binding.thread_tag)
                loop = NestLoop(kind, int(stmt.extent), int(note))
                visit(stmt.body, (*path, loop))
            case "SBlockRealize" if stmt.block.name_hint == "root":
                visit(stmt.block.body, path)
            case "SBlockRealize":
                kept = tuple(loop for loop in path if loop.extent > 1 or loop.unroll)
                found.append((str(stmt.block.name_hint), kept))
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, path)

    visit(schedule.mod["main"].body, ())
    return [(name.removesuffix("_update"), loops) for name, loops in found if not name.endswith("_init")]


def tvm_features(sketch: Sketch, schedule: Any) -> npt.NDArray[np.float64]:
    """float64[rows, 164] of TVM's PerStoreFeature."""
    context = tvmlib.tune_context(sketch.task.module, sketch.task.target)
    extractor = tvmlib.ms.feature_extractor.PerStoreFeature()
    (features,) = extractor.extract_from(context, [tvmlib.ms.MeasureCandidate(schedule, [])])
    rows: npt.NDArray[np.float64] = features.numpy()
    return rows
