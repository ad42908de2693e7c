"""Run the passes over scheduled functions before TVM's compiler, in a checked order.

Input: an IRModule of scheduled PrimFuncs. Output: the same module, ready for TVM's compiler. Schedules and workloads
elsewhere do not change, only the code does. Each pass declares what it needs and what it changes. `out_of_order` lists
where a sequence of passes violates these declarations, and a test calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import (
    Asynchronous,
    Blocks,
    Columns,
    Guard,
    Keys,
    LoopAnnotation,
    Matrix,
    Narrow,
    Pairs,
    Peel,
    Prefetch,
    Row,
    Skip,
    Softmax,
    Steps,
    TensorCores,
    Tile,
    Transpose,
)
from felixlike.codegen.matrix_functions import with_matrix_functions
from felixlike.codegen.pair_functions import with_pair_functions
from felixlike.codegen.passes import (
    choose_lazily,
    copies_in_vectors,
    first_and_last,
    from_infinity,
    guard,
    keep_nan,
    keep_rounding,
    multiply_pairs,
    only_marked_are_asynchronous,
    only_with_instructions,
    peel_columns,
    peel_tails,
    plain_conditions,
    prefetch,
    rows_in_vectors,
    share_reciprocals,
    shared_steps,
    skip_hidden_keys,
    skip_padding,
    tensor_cores,
    tile_rows,
    transpose,
    unaligned_parameters,
    vectorise_math,
    wrap_integers,
    wrap_integers_on_gpus,
    write_out_halves,
)
from felixlike.codegen.passes.loop_tools import without_mark
from felixlike.hardware import TILES, has_instruction, kind_of


class Invariant(Enum):
    """Properties of functions between passes."""

    BLOCKS = "annotated functions have the blocks of their schedules"
    DIMENSIONS = "buffers of annotated functions have their declared dimensions"
    ROWS = "accumulator tiles that were too large for the stack are split into one buffer per row"
    WHOLE_TILES = "a loop that accumulates a tile writes one buffer, in unrolled loops"
    NAMELESS = "no value is bound to a name, on which TVM's own bfloat16 conversions could depend"
    EXTREMES = "maxima and minima are TVM's operators, and comparisons are those of the workload"
    PADDING = "padding copies have the conditions of the workload"
    DIVISIONS = "divisions are those of the workload"
    CALLS = "elementary functions are calls"


AT_FIRST = frozenset(
    {
        Invariant.BLOCKS,
        Invariant.DIMENSIONS,
        Invariant.WHOLE_TILES,
        Invariant.NAMELESS,
        Invariant.EXTREMES,
        Invariant.PADDING,
        Invariant.DIVISIONS,
        Invariant.CALLS,
    }
)
"""Invariants of functions before the first pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass with its requirements and effects.

    Attributes:
        run: The function from an IRModule to an IRModule.
        marks: Loop annotations that it reads. No later pass may put them on a loop.
        takes: Those of `marks` that it removes.
        puts: Loop annotations that it puts on loops.
        needs: Invariants that must hold before.
        gives: Invariants that hold after it.
        ends: Invariants that no longer hold after it.
    """

    run: Callable[[Module], Module]
    marks: tuple[type[LoopAnnotation], ...] = ()
    takes: tuple[type[LoopAnnotation], ...] = ()
    puts: tuple[type[LoopAnnotation], ...] = ()
    needs: tuple[Invariant, ...] = ()
    gives: tuple[Invariant, ...] = ()
    ends: tuple[Invariant, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the pass's function."""
        return self.run.__name__


def _of(run: Callable[[Module], Module], mark: type[LoopAnnotation], **others: Any) -> Pass:
    """Return a pass that rewrites loops with one annotation and removes it."""
    return Pass(run, marks=(mark,), takes=(mark,), **others)


CPU_PASSES = (
    Pass(plain_conditions),
    Pass(choose_lazily, needs=(Invariant.BLOCKS,)),
    Pass(keep_rounding),
    Pass(wrap_integers),
    Pass(from_infinity, needs=(Invariant.EXTREMES,)),
    _of(skip_hidden_keys, Keys, needs=(Invariant.BLOCKS,), ends=(Invariant.BLOCKS,)),
    _of(skip_padding, Skip, needs=(Invariant.DIMENSIONS, Invariant.PADDING), ends=(Invariant.BLOCKS,)),
    _of(transpose, Transpose, needs=(Invariant.DIMENSIONS,), ends=(Invariant.BLOCKS,)),
    _of(first_and_last, Blocks, puts=(Tile, Guard), needs=(Invariant.DIMENSIONS, Invariant.WHOLE_TILES)),
    _of(guard, Guard, needs=(Invariant.DIMENSIONS, Invariant.WHOLE_TILES), ends=(Invariant.PADDING, Invariant.BLOCKS)),
    Pass(
        tile_rows,
        (Prefetch, Tile),
        needs=(Invariant.DIMENSIONS,),
        gives=(Invariant.ROWS,),
        ends=(Invariant.WHOLE_TILES,),
    ),
    Pass(prefetch, (Prefetch, Narrow), takes=(Prefetch, Narrow), needs=(Invariant.DIMENSIONS, Invariant.ROWS)),
    Pass(
        multiply_pairs,
        (Pairs, Matrix),
        takes=(Pairs, Matrix),
        needs=(Invariant.NAMELESS,),
        ends=(Invariant.DIMENSIONS,),
    ),
    _of(peel_tails, Peel, ends=(Invariant.DIMENSIONS,)),
    _of(peel_columns, Columns, ends=(Invariant.DIMENSIONS,)),
    _of(rows_in_vectors, Row, needs=(Invariant.EXTREMES,), ends=(Invariant.DIMENSIONS,)),
    _of(shared_steps, Steps),
    Pass(copies_in_vectors),
    Pass(share_reciprocals, needs=(Invariant.DIVISIONS,)),
    Pass(write_out_halves, needs=(Invariant.NAMELESS,), ends=(Invariant.NAMELESS,)),
    Pass(keep_nan, (Softmax,), needs=(Invariant.EXTREMES,), ends=(Invariant.EXTREMES, Invariant.NAMELESS)),
    # Its formulas have names, comparisons and divisions by values that are computed anew for each element.
    _of(
        vectorise_math,
        Softmax,
        needs=(Invariant.CALLS,),
        ends=(Invariant.CALLS, Invariant.DIVISIONS, Invariant.NAMELESS, Invariant.EXTREMES),
    ),
    Pass(unaligned_parameters),
)
"""Passes for CPUs, in order."""


GPU_PASSES = (
    Pass(plain_conditions),
    Pass(choose_lazily, needs=(Invariant.BLOCKS,)),
    Pass(keep_rounding),
    Pass(wrap_integers_on_gpus),
    Pass(only_marked_are_asynchronous, marks=(Asynchronous,)),
    _of(tensor_cores, TensorCores, needs=(Invariant.DIMENSIONS,)),
)
"""Passes for GPUs, in order. The compiler must then run inside `asynchronous_copies`."""

PASSES: dict[str, tuple[Pass, ...]] = {"llvm": CPU_PASSES, "cuda": GPU_PASSES}
"""Passes for each target kind."""


def lower(module: Module, target: Any) -> Module:
    """Run a target kind's passes over the PrimFuncs of an IRModule. Relax functions are not changed."""
    module = plain_loops.without_scopes(module)
    kind = kind_of(target)
    if kind.on_host and not has_instruction(TILES, target):
        module = _tvm.map_functions(module, _without_matrices)
    for one in PASSES[kind.name]:
        module = one.run(module)
    if not kind.on_host:
        return module
    return with_matrix_functions(with_pair_functions(only_with_instructions(module, target), target))


def _without_matrices(func: Func) -> Func:
    """Return a function whose matrices are multiplied in pairs."""

    def change(loop: Loop) -> Loop:
        return without_mark(loop, Matrix) if Matrix.on(loop) else loop

    return _tvm.structural_map(func, (_tvm.tirx.For, change))


def out_of_order(passes: Sequence[Pass]) -> Iterator[str]:
    """Yield a sentence for each reason why the passes cannot run in this order."""
    holds = set(AT_FIRST)
    for number, one in enumerate(passes):
        for invariant in one.needs:
            if invariant not in holds:
                yield f"{one.name} requires that {invariant.value}"
        holds = (holds | set(one.gives)) - set(one.ends)
        for mark in one.marks:
            late = [other.name for other in passes[number + 1 :] if mark in other.puts]
            yield from (f"{name} adds {mark.__name__} after {one.name}, which reads it" for name in late)
        for mark in one.takes:
            later = [other.name for other in passes[number + 1 :] if mark in other.marks]
            yield from (f"{one.name} removes {mark.__name__}, which {name} reads later" for name in later)
