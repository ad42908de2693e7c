"""Replace a warp's products and sums by tensor core instructions.

    for k in 16:                                      for every 16 × 8 of a warp's outputs:
        for r in 4, c in 4:                      →        D = A · B + C for 16 k, by all 32 threads together
            C[r, c] += A[4·g + r, k] · B[k, 4·t + c]

Input: an IRModule of scheduled PrimFuncs with such loops annotated with `TensorCores`. Output: the same module with
calls of the functions below. threadIdx.x is 32·warp + 4·g + t, as the instruction numbers a warp's threads (PTX ISA,
Matrix fragments for mma.m16n8k8 and mma.m16n8k16):

    C, D    (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
    A       rows g and g + 8, four of the 16 steps        B       column g, the same four steps

Row g + 8·h in the instruction for tile (i, j) is row 4·g + 2·i + h here, and column 2·t + h is column 4·t + 2·h + j, so
neighbours stay in one thread. A thread's four steps are 4·t … 4·t + 3 if an operand has them contiguous, else t, t + 4,
t + 8, t + 12. For a sum, A and B only have to agree. A thread loads the elements of A that it had in the loops, and the
elements of B that the thread (t, g) of such a square had there.

Operands are rounded to nearest, and sums are of float32. An annotated loop of another form is an error, so that other
code never passes for tensor core code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Loop, Module, Stmt, TirExpr, Var
from felixlike.codegen.annotations import TensorCores
from felixlike.codegen.passes.loop_tools import like, step_along, unlike
from felixlike.errors import CompilationFailed
from felixlike.hardware import PRECISIONS

STEPS, WARP, ROWS, COLUMNS = 16, 32, 8, 4
"""Reduction steps of a loop, threads of a warp, and threads along each direction."""

_CALL = "felixlike_mma_"
"""Prefix of the functions' names."""


def tensor_cores(module: Module) -> Module:
    """Return the IRModule with annotated loops replaced by tensor core instructions. Other functions are not changed.

    Raises CompilationFailed if an annotated loop has another form.
    """
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    return _tvm.map_functions(module, _changed) if any(map(_marked, functions)) else module


def uses_tensor_cores(source: str) -> bool:
    """Return whether CUDA source needs `FUNCTIONS` before it."""
    return _CALL in source


def _changed(func: Func) -> Func:
    """Replace a function's annotated loops."""
    loops, marked = _tvm.found(func.body, _tvm.tirx.For), _marked(func)
    if not marked:
        return func
    thread_loops = {
        id(loop): [other for other in loops if _binds_threads(other) and _contains(other, loop)] for loop in marked
    }
    if any(len(own_threads) != 1 for own_threads in thread_loops.values()):
        raise _unlike("it is not inside exactly one loop over threadIdx.x")
    threads = [(loop.loop_var, thread_loops[id(loop)][0]) for loop in marked]

    def change(loop: Loop) -> Stmt:
        own_threads = [thread_loop for variable, thread_loop in threads if loop.loop_var.same_as(variable)]
        return _fragments(loop, own_threads[0]) if own_threads else loop

    return _tvm.structural_map(func, (_tvm.tirx.For, change))


def _marked(func: Func) -> list[Any]:
    """Return a function's annotated loops."""
    return [loop for loop in _tvm.found(func.body, _tvm.tirx.For) if TensorCores.on(loop)]


def _binds_threads(loop: Loop) -> bool:
    """Return whether a loop is bound to threadIdx.x."""
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag) == "threadIdx.x"


def _contains(outer: Loop, inner: Loop) -> bool:
    """Return whether a loop contains another."""
    return any(loop.loop_var.same_as(inner.loop_var) for loop in _tvm.found(outer.body, _tvm.tirx.For))


def _unlike(why: str) -> CompilationFailed:
    """Return the error for an annotated loop of another form."""
    return unlike("for tensor cores", why, where="tensor cores")


@dataclass(frozen=True, slots=True)
class _Tile:
    """An annotated loop.

    Attributes:
        g: Number of a thread along the rows, see above.
        t: Number of a thread along the columns.
        row: Loop over a thread's rows.
        column: Loop over a thread's columns.
        step: Variable of the reduction step.
        sums: Load of the output. The indices of all loads are in these variables.
        left: Load of the operand that has rows.
        right: Load of the operand that has columns.
    """

    g: Var
    t: Var
    row: Loop
    column: Loop
    step: Var
    sums: Any
    left: Any
    right: Any


def _fragments(loop: Loop, threads: Loop) -> Stmt:
    """Return the replacement of an annotated loop. `threads` is the loop over threads around it."""
    tile, block = _read(loop, threads)
    thread = threads.loop_var
    numbers = {tile.g: _tvm.tirx.floormod(thread, WARP) // COLUMNS, tile.t: _tvm.tirx.floormod(thread, COLUMNS)}

    def at(load: Any, values: Mapping[Var, Any]) -> list[Any]:
        """Return an element's indices at values of the variables, with the thread's g and t for others."""
        return [_tvm.simplify(_tvm.substituted(_tvm.substituted(i, values), numbers)) for i in load.indices]

    run = int(tile.column.extent)
    wide = any(_along(load, tile.step) for load in (tile.left, tile.right))
    steps = [tile.t * 4 + i if wide else tile.t + 4 * i for i in range(4)]

    def four(load: Any, values: Mapping[Var, Any]) -> list[TirExpr]:
        """Return a thread's steps of a row or a column.

        They are not loaded as a vector: TVM would make the buffer one of vectors, which it cannot copy asynchronously.
        NVIDIA's compiler combines neighbouring loads.
        """
        return [load.source[tuple(at(load, {**values, tile.step: step}))] for step in steps]

    def column(number: int) -> dict[Var, Any]:
        """Return the values of the variables for column `number` of the thread in a tile."""
        place = tile.g * (run // 2) + number
        return {tile.t: place // run, tile.column.loop_var: _tvm.tirx.floormod(place, run)}

    calls = []
    for i in range(int(tile.row.extent) // 2):
        left = [e for h in range(2) for e in four(tile.left, {tile.row.loop_var: like(tile.step, 2 * i + h)})]
        for j in range(run // 2):
            outputs = [(2 * i + h, run // 2 * side + j) for h in range(2) for side in range(2)]
            sums = [at(tile.sums, {tile.row.loop_var: r, tile.column.loop_var: c}) for r, c in outputs]
            first, *others = (tile.sums.source[tuple(place)] for place in sums)
            name = _CALL + PRECISIONS[TensorCores.of(loop).precision].name
            operands = (first, *map(_tvm.tirx.address_of, others), *left, *four(tile.right, column(j)))
            value = _tvm.tirx.call_extern("float32", name, *operands)
            calls.append(_tvm.tirx.BufferStore(tile.sums.source, value, sums[0]))
    body = _tvm.tirx.stmt_seq(*calls)
    buffers = {load.source: load.source for load in (tile.sums, tile.left, tile.right)}
    bare = _tvm.s_tir.SBlock([], [], [], block.name_hint, body)
    reads, _ = _tvm.s_tir.analysis.get_sblock_read_write_region(bare, buffers)
    # What is written by its address counts as read.
    writes = [region for region in reads if region.source.same_as(tile.sums.source)]
    opaque = _tvm.s_tir.SBlock([], reads, writes, block.name_hint, body)
    return _tvm.s_tir.SBlockRealize([], _tvm.tirx.const(True, "bool"), opaque)


def _read(loop: Loop, threads: Loop) -> tuple[_Tile, Any]:
    """Read an annotated loop and its block. Raises CompilationFailed if it has another form."""
    row, column, realize = _nest(loop)
    store = realize.block.body
    product = getattr(getattr(store, "value", None), "b", None)
    factors: list[Any] = [getattr(product, "a", None), getattr(product, "b", None)]
    if any(type(one).__name__ != "TensorLoad" or str(one.ty.dtype) != "float32" for one in factors):
        raise _unlike("it does not sum products of float32 numbers")
    if type(store.value).__name__ != "Add" or type(product).__name__ != "Mul":
        raise _unlike("it does not sum products")
    dtype = str(threads.loop_var.ty.dtype)
    warp, g, t = (_tvm.tirx.Var(name, dtype) for name in ("warp", "g", "t"))
    if int(threads.extent) % WARP:
        raise _unlike(f"its number of threads, {int(threads.extent)}, is not a multiple of {WARP}")
    analyzer = _tvm.sym.Analyzer()
    extents = {warp: int(threads.extent) // WARP, g: ROWS, t: COLUMNS}
    extents |= {one_loop.loop_var: int(one_loop.extent) for one_loop in (row, column, loop)}
    for variable, extent in extents.items():
        analyzer.bind(variable, _tvm.ir.Range(0, extent))
    thread = {threads.loop_var: warp * WARP + g * COLUMNS + t}
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    back = {warp: threads.loop_var // WARP}

    def known(access: Any, buffer: Any) -> Any:
        indices = [_tvm.substituted(_tvm.substituted(index, values), thread) for index in access.indices]
        return buffer[tuple(_tvm.substituted(analyzer.simplify(index), back) for index in indices)]

    left, right = (known(one, one.source) for one in factors)
    if not _uses(left, row.loop_var):
        left, right = right, left
    tile = _Tile(g, t, row, column, loop.loop_var, known(store, store.buffer), left, right)
    strange = {tile.left: (t, column.loop_var), tile.right: (g, row.loop_var), tile.sums: (loop.loop_var,)}
    if any(_uses(load, variable) for load, variables in strange.items() for variable in variables):
        raise _unlike("its rows and columns do not match its operands")
    return tile, realize.block


def _nest(loop: Loop) -> tuple[Any, Any, Any]:
    """Return the loops over a thread's rows and columns, and the block in them."""
    nest = [loop, loop.body, getattr(loop.body, "body", None)]
    realize: Any = getattr(nest[-1], "body", None)
    if any(type(one).__name__ != "For" or int(one.min) for one in nest) or type(realize).__name__ != "SBlockRealize":
        raise _unlike("it does not contain two nested loops around a block")
    if int(loop.extent) != STEPS or any(int(one.extent) not in (2, 4) for one in nest[1:]):
        raise _unlike(f"its steps, rows and columns are {', '.join(str(int(one.extent)) for one in nest)}")
    if not _tvm.structural_equal(realize.predicate, _tvm.tirx.const(True, "bool")):
        raise _unlike(f"its block has the predicate {realize.predicate}")
    return nest[1], nest[2], realize


def _uses(load: Any, variable: Var) -> bool:
    """Return whether a load's indices use a variable."""
    return any(_tvm.uses(index, variable) for index in load.indices)


def _along(load: Any, step: Var) -> bool:
    """Return whether steps are contiguous in memory."""
    *outer, last = load.indices
    return step_along(last, step) == 1 and not any(_tvm.uses(index, step) for index in outer)


_FUNCTION = """\
static __device__ __forceinline__ float felixlike_mma_{name}(
    float c0, float* c1, float* c2, float* c3, {operands}) {{
{body}  return c0;
}}
"""
"""CUDA source of a function."""

_OPERANDS = ", ".join(f"float {name}{i}" for name in "abw" for i in range(4))
"""Parameters for a thread's elements of A and B."""

_MMA = """\
  asm("mma.sync.aligned.{shape}.row.col.f32.{type}.{type}.f32 "
      "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
      : "+f"(c0), "+f"(*c1), "+f"(*c2), "+f"(*c3) : {operands});
"""
"""CUDA source of an instruction."""


def _tf32() -> str:
    """Return the function for TF32: two instructions of 8 steps."""

    def operands(first: int, second: int) -> str:
        values = (f"a{first}", f"b{first}", f"a{second}", f"b{second}", f"w{first}", f"w{second}")
        return ", ".join(f'"r"(felixlike_tf32({value}))' for value in values)

    halves = (operands(0, 1), operands(2, 3))
    body = "".join(_MMA.format(shape="m16n8k8", type="tf32", operands=half) for half in halves)
    rounded = """\
static __device__ __forceinline__ unsigned felixlike_tf32(float x) {
  unsigned y; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y;
}
"""
    return rounded + _FUNCTION.format(name="tf32", operands=_OPERANDS, body=body)


def _halves(name: str, ptx: str) -> str:
    """Return the function for a 16-bit type: one instruction of 16 steps.

    A register holds two numbers, the first one in its lower half.
    """
    values = ("a0, a1", "b0, b1", "a2, a3", "b2, b3", "w0, w1", "w2, w3")
    operands = ", ".join(f'"r"(felixlike_{ptx}({value}))' for value in values)
    rounded = f"""\
static __device__ __forceinline__ unsigned felixlike_{ptx}(float x, float y) {{
  unsigned z; asm("cvt.rn.{ptx}x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x)); return z;
}}
"""
    body = _MMA.format(shape="m16n8k16", type=ptx, operands=operands)
    return rounded + _FUNCTION.format(name=name, operands=_OPERANDS, body=body)


FUNCTIONS = _tf32() + _halves("float16", "f16") + _halves("bfloat16", "bf16")
"""CUDA source of the called functions. c0 … c3 are a thread's C and D, of which it returns the first. a and b are four
steps of its rows g and g + 8 of A, w those of its column of B."""
