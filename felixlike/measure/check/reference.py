"""The float64 reference: a task's unscheduled function with every float type replaced by float64.

In: an IRModule. Out: one whose buffers, constants and operators are double precision, and whose large sums take seconds
rather than minutes on a processor, or milliseconds on a GPU.
"""

import json
import math
from typing import Any

from felixlike import _tvm

_NARROW = frozenset(["float16", "bfloat16", "float32"])


def double_precision(module: Any) -> Any:
    """The same IRModule in float64.

    Works on TVM's JSON graph, where a type is a node of its own that buffers, constants and operators refer to.
    Constants keep the value they were written with, so float32's smallest number stays a harmless start of a maximum.
    A function that depends on the width (reinterpret between float32 and int32) does not compile after this."""
    graph = json.loads(_tvm.ir.save_json(module))
    for node in graph["nodes"]:
        if node["type"] == "ir.PrimType" and node["data"]["dtype"] in _NARROW:
            node["data"]["dtype"] = "float64"
    return _tvm.ir.load_json(json.dumps(graph))


_LARGE = 2**22
"""Steps of a sum's loops below which their order does not matter."""

_COLUMNS, _TERMS = 512, 64
"""At most so many columns and terms of a product at a time, so that what is read again lies in L2."""


_WORTH, _FEWEST_THREADS = 2**26, 2**12
"""Steps of a function's blocks that take a processor longer than what comes before a GPU's first kernel, about a tenth
of a second; and outputs below which a long sum leaves most of a GPU idle.  Chosen by hand."""


def in_threads(module: Any, target: Any) -> Any | None:
    """The same IRModule for a GPU: each block a kernel, each of its outputs a thread that takes the terms of its sum
    one after the other. None where a processor has done it as soon, or TVM does not know how.

    That is TVM's plainest schedule (dlight's `Fallback`): nothing is shared, nothing tiled, so that there is little
    that could be wrong with what candidates are compared with."""
    blocks = [block for block in _tvm.found(module["main"].body, _tvm.s_tir.SBlock) if block.iter_vars]
    steps = [math.prod(int(i.dom.extent) for i in block.iter_vars) for block in blocks]
    outputs = [math.prod(int(i.dom.extent) for i in block.iter_vars if _tvm.is_spatial(i)) for block in blocks]
    few = any(s > n and s >= _LARGE and n < _FEWEST_THREADS for s, n in zip(steps, outputs, strict=True))
    if few or sum(steps) < _WORTH:
        return None
    dlight = _tvm.dlight()
    own = _tvm.map_functions(module, _tvm.s_tir.renew_defs)  # dlight changes functions in place
    try:
        with target:
            return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(own)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None


def in_quick_order(module: Any) -> Any:
    """The same IRModule with the loops of its large sums in an order in which memory is read along, and vectors can be
    used: the output's last dimension inside of the sum. A product of large matrices takes minutes otherwise.

    Uses TVM's `reorder`, `split` and `decompose_reduction` alone; what they refuse stays as it is."""
    schedule = _tvm.Schedule(module)
    whole = module["main"].body.block  # called "root" unless it is an operator's own, as sorting and scans are
    for block in schedule.get_child_blocks(schedule.get_sblock(whole.name_hint)):
        trial = schedule.copy()
        try:
            _reorder(trial, trial.get_sblock(schedule.get(block).name_hint))
        except _tvm.TVM_ERRORS as error:
            if not _tvm.refusal(error):
                raise
            continue
        schedule = trial
    return schedule.mod


def _reorder(schedule: Any, block: Any) -> None:
    found, loops = schedule.get(block), schedule.get_loops(block)
    kinds = [int(iterator.iter_type) for iterator in found.iter_vars]
    sizes = [int(iterator.dom.extent) for iterator in found.iter_vars]
    if len(loops) != len(kinds) or 2 not in kinds or math.prod(sizes) < _LARGE:
        return
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    around = [(loop, size) for loop, kind, size in zip(loops, kinds, sizes, strict=True) if kind != 2]
    place = next((i for i in reversed(range(len(around))) if around[i][1] > 1), None)
    if place is None:
        return
    last, columns = around.pop(place)
    outer = [loop for loop, _ in around]
    terms = sizes[kinds.index(2)]
    if len(sums) == 1 and terms > _TERMS and len(outer) <= 2:
        far, near = schedule.split(last, [None, _divisor(columns, _COLUMNS)])
        first, then = schedule.split(sums[0], [None, _divisor(terms, _TERMS)])
        batches = outer[:-1]
        schedule.reorder(*batches, far, first, *outer[-1:], then, near)
        schedule.decompose_reduction(block, first)
    else:
        schedule.reorder(*outer, *sums, last)
        schedule.decompose_reduction(block, sums[0])


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is not larger than another number."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)
