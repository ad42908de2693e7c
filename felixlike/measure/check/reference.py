"""Create the float64 reference: a task's unscheduled function with every float type replaced by float64.

The input is an IRModule. The output is one whose buffers, constants and operators are float64. Its large sums take
seconds instead of minutes on a CPU, or milliseconds on a GPU.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._util.spent import on
from felixlike.spaces.stages import Stage, stages_of

_NARROW = frozenset(["float16", "bfloat16", "float32"])


@on("references")
def double_precision(module: Any) -> Any:
    """Return the IRModule in float64.

    This changes TVM's JSON graph, in which buffers, constants and operators refer to a node for each type. Constants
    keep their values, so float32's smallest number remains a valid initial value of a maximum. A function that depends
    on the width of a type (reinterpret between float32 and int32) does not compile afterwards."""
    graph = json.loads(_tvm.ir.save_json(module))
    for node in graph["nodes"]:
        if node["type"] == "ir.PrimType" and node["data"]["dtype"] in _NARROW:
            node["data"]["dtype"] = "float64"
    return _tvm.load_graph(json.dumps(graph))


@dataclass(frozen=True, slots=True)
class Sizes:
    """From which sizes a reference is reordered, tiled or computed on a GPU. All values are chosen by hand.

    Attributes:
        reordered: Iterations of a block from which its loops are reordered.
        vectorized: Iterations of a block from which LLVM vectorizes its loops.
        strided: Fewest elements of a buffer whose elements should be read in the order in which they lie in memory.
        columns: Most columns of a tile of a matrix product, so that reused data stays in L2.
        terms: Most terms of a tile of a matrix product, for the same reason.
        on_gpu: Fewest iterations of a function that runs on a GPU. They take a CPU longer than the start of a GPU's
            first kernel, about 0.1 s.
        threads: Fewest outputs of large sums on a GPU. With fewer, a long sum leaves most of it idle.
    """

    reordered: int = 2**22
    vectorized: int = 2**26
    strided: int = 2**16
    columns: int = 512
    terms: int = 64
    on_gpu: int = 2**26
    threads: int = 2**12


_SIZES = Sizes()


def in_threads(module: Any, target: Any) -> Any | None:
    """Return the IRModule scheduled for a GPU: a kernel for each block, a thread for each of its outputs.

    This is TVM's simplest schedule (dlight's `Fallback`), without shared memory and tiles, so the reference is unlikely
    to be wrong.

    Returns:
        The module; None if a CPU is as fast or TVM cannot schedule it.
    """
    blocks = _blocks(module)
    steps = list(map(_iterations, blocks))
    outputs = [math.prod(int(i.dom.extent) for i in block.iter_vars if _tvm.is_spatial(i)) for block in blocks]
    few = any(s > n and s >= _SIZES.reordered and n < _SIZES.threads for s, n in zip(steps, outputs, strict=True))
    if few or sum(steps) < _SIZES.on_gpu:
        return None
    dlight = _tvm.dlight()
    copy = _tvm.map_functions(module, _tvm.s_tir.renew_defs)  # dlight changes functions in place
    try:
        with target:
            return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(copy)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None


def is_large(module: Any) -> bool:
    """Return whether a function computes for so long that LLVM should vectorize its loops."""
    return max(map(_iterations, _blocks(module)), default=0) >= _SIZES.vectorized


def _blocks(module: Any) -> list[Any]:
    """Return the blocks of a function that have iterators."""
    return [block for block in _tvm.found(module["main"].body, _tvm.s_tir.SBlock) if block.iter_vars]


def _iterations(block: Any) -> int:
    """Return the number of iterations of a block."""
    return math.prod(int(iterator.dom.extent) for iterator in block.iter_vars)


@on("references")
def in_quick_order(module: Any) -> Any:
    """Return the IRModule with the loops of its large sums reordered for the CPU.

    The output's last dimension becomes the innermost loop, so that memory is read contiguously and loops are
    vectorized. A product of large matrices takes minutes otherwise. If a large buffer is not contiguous along that
    dimension, as weights of convolutions are not, it becomes the outermost loop instead, so that each part of the
    buffer is read once. Only TVM's `reorder`, `split` and `decompose_reduction` are used; blocks on which they fail do
    not change."""
    schedule = _tvm.Schedule(module)
    whole = module["main"].body.block  # named "root", except in operators such as sorting and scans
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
    """Order the loops of a large reduction; tile a product of matrices."""
    definition, loops = schedule.get(block), schedule.get_loops(block)
    kinds = [int(iterator.iter_type) for iterator in definition.iter_vars]
    sizes = [int(iterator.dom.extent) for iterator in definition.iter_vars]
    if len(loops) != len(kinds) or 2 not in kinds or math.prod(sizes) < _SIZES.reordered:
        return
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    spatial = [(loop, size) for loop, kind, size in zip(loops, kinds, sizes, strict=True) if kind != 2]
    position = next((i for i in reversed(range(len(spatial))) if spatial[i][1] > 1), None)
    if position is None:
        return
    last, columns = spatial.pop(position)
    outer = [loop for loop, _ in spatial]
    stage = next(stage for stage in stages_of(schedule) if stage.name == definition.name_hint)
    if _longest_step(stage, definition.iter_vars[loops.index(last)].var) > 1:
        schedule.reorder(last, *outer)
        return
    terms = sizes[kinds.index(2)]
    if len(sums) == 1 and terms > _SIZES.terms and len(outer) <= 2:
        column_tile, column = schedule.split(last, [None, _divisor(columns, _SIZES.columns)])
        term_tile, term = schedule.split(sums[0], [None, _divisor(terms, _SIZES.terms)])
        batches = outer[:-1]
        schedule.reorder(*batches, column_tile, term_tile, *outer[-1:], term, column)
        schedule.decompose_reduction(block, term_tile)
    else:
        schedule.reorder(*outer, *sums, last)
        schedule.decompose_reduction(block, sums[0])


def _longest_step(stage: Stage, variable: Any) -> int:
    """Return the longest step in large buffers that are read, in elements, from a variable's value to the next."""
    large = [access for access in stage.reads if math.prod(int(n) for n in access[0].shape) >= _SIZES.strided]
    return max((abs(stage.step(access, variable)) for access in large), default=0)


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)
