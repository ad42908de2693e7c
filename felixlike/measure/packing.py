"""A schedule that lays constants out anew, cut in two: what is done once, before the first call, and the calls.

In: a scheduled PrimFunc. Out: its kernel, which takes packed constants, and a function to pack each of them. As TVM's
SplitLayoutRewritePreproc does it, for a function by itself; a packing that also pads is none for
RemoveWeightLayoutRewriteBlock. What is measured is cut like what is deployed.
"""

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidSchedule
from felixlike.frontend.constants import PACKING, packing_blocks


@dataclass(frozen=True, slots=True)
class Packing:
    """How one constant is packed.

    parameter: its index.  shape, dtype: of what is packed.  function: a PrimFunc of the constant and of that."""

    parameter: int
    shape: tuple[int, ...]
    dtype: str
    function: Any


def cut(func: Any) -> tuple[Any, tuple[Packing, ...]]:
    """The kernel of a scheduled PrimFunc and the packings before it; the function itself and none where it packs none.

    Raises InvalidSchedule where a packing block reads anything but one parameter, or stands among others."""
    parts = _parts(func)
    packed = [(part, block) for part in parts for block in packing_blocks(part)]
    if not packed:
        return func, ()
    stay = [part for part in parts if not any(part.same_as(other) for other, _ in packed)]
    params = list(func.params)
    packings = []
    for part, block in packed:
        old, new = block.reads[0].source, block.writes[0].source
        found = [index for index, param in enumerate(func.params) if param.same_as(old)]
        alone = len(block.reads) == 1 and len(_tvm.found(part, _tvm.s_tir.SBlock)) == 1
        if len(found) != 1 or not alone or not params[found[0]].same_as(old):
            raise InvalidSchedule(
                "it packs something else than one of the function's parameters, or in several steps",
                where=f"block {block.name_hint}",
                remedy="let each packing block read one parameter and stand alone in a loop nest",
            )
        params[found[0]] = new
        plain = _tvm.structural_map(part, (_tvm.s_tir.SBlock, _without_mark))
        function = _tvm.without_attributes(_function([old, new], [plain], [], None), "tirx.is_scheduled")
        packings.append(Packing(found[0], tuple(int(e) for e in new.shape), str(new.dtype), function))
    kept = [b for b in func.body.block.alloc_buffers if not any(b.same_as(p) for p in params)]
    return _function(params, stay, kept, func.attrs), tuple(packings)


def _parts(func: Any) -> list[Any]:
    """The statements of the root block."""
    root = func.body.block if type(func.body).__name__ == "SBlockRealize" else None
    if root is None or type(root.body).__name__ != "SeqStmt":
        return []
    return list(root.body.seq)


def _without_mark(block: Any) -> Any:
    rest = {key: value for key, value in block.annotations.items() if key != PACKING}
    return _tvm.s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init, annotations=rest
    )


def _function(params: list[Any], parts: list[Any], allocated: list[Any], attrs: Any) -> Any:
    body = parts[0] if len(parts) == 1 else _tvm.tirx.SeqStmt(parts)
    root = _tvm.s_tir.SBlock([], [], [], "root", body, alloc_buffers=allocated)
    func = _tvm.PrimFunc(params, _tvm.s_tir.SBlockRealize([], True, root), attrs=attrs)
    return _tvm.s_tir.renew_defs(func.with_attr("tirx.noalias", True).with_attr("tirx.is_scheduled", True))
