"""Share each step of a recurrence between the cores in one parallel region, instead of starting one for each step.

    for t in 32:                           parallel region, on each core:
        parallel for tile in 16:               for t in 32:
            step                       →           for tile in the core's part of 16:
                                                       if no core has begun it: wait until 16 · t tiles are done
                                                                                step
                                                                                one more tile is done
                                                   if the other tiles are late: the same for all 16

Input: an IRModule of PrimFuncs with loops annotated with `Steps`. Output: the same module without blocks, with the
functions of `_SOURCE` in them. A core that waits does so busily, for about as long as a short step takes. Then it takes
over the tiles that no other core has begun: other processes may have the core of a worker. So all tiles of a step have
been begun, by threads that run, when a core goes on to the next one, and none waits for a tile that is not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module, Stmt, TirExpr
from felixlike.codegen.annotations import Steps
from felixlike.codegen.passes.loop_tools import unmarked, with_marked_loops

_SPINS = 2**13
"""Reads of the counter before a core is given up, about 10 µs. Chosen by hand."""


def _reading(ahead: int, impatient: str) -> str:
    """Return the part of a function that reads the counter until all tiles of the steps before `step + ahead` are done.

    It goes on at `exit`, or at the label `impatient` after `_SPINS` reads.
    """
    return f"""entry:
  %wide_step = zext i32 %step to i64
  %wide_tiles = zext i32 %tiles to i64
  %steps = add i64 %wide_step, {ahead}
  %wanted = mul i64 %steps, %wide_tiles
  br label %test
test:
  %spins = phi i32 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i64, ptr %done acquire, align 8
  %enough = icmp sge i64 %now, %wanted
  br i1 %enough, label %exit, label %wait
wait:
  %patient = icmp ult i32 %spins, {_SPINS}
  br i1 %patient, label %again, label %{impatient}
again:
  %next = add i32 %spins, 1
  br label %test"""


_SOURCE = f"""
declare i32 @sched_yield()

define i32 @felixlike_wait(ptr %done, i32 %step, i32 %tiles) alwaysinline {{
{_reading(0, "yield")}
yield:
  %ignored = call i32 @sched_yield()
  br label %again
exit:
  ret i32 0
}}

define i32 @felixlike_finish(ptr %done) alwaysinline {{
  %old = atomicrmw add ptr %done, i64 1 release
  ret i32 0
}}

define i32 @felixlike_lags(ptr %done, i32 %step, i32 %tiles) alwaysinline {{
{_reading(1, "exit")}
exit:
  %late = xor i1 %enough, true
  %result = zext i1 %late to i32
  ret i32 %result
}}

define i32 @felixlike_claim(ptr %claim, i32 %step) alwaysinline {{
entry:
  %now = zext i32 %step to i64
  %next = add i64 %now, 1
  %seen = load atomic i64, ptr %claim monotonic, align 8
  %open = icmp eq i64 %seen, %now
  br i1 %open, label %try, label %exit
try:
  %pair = cmpxchg ptr %claim, i64 %now, i64 %next acq_rel monotonic
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br label %exit
exit:
  %success = phi i1 [ false, %entry ], [ %mine, %try ]
  %result = zext i1 %success to i32
  ret i32 %result
}}
"""
"""The functions that wait for all tiles of earlier steps, count a tile, tell whether tiles of a step are late, and
claim a tile, as LLVM's text: TVM has no atomic operations."""

_LINE = 8
"""Numbers of 8 bytes in a cache line. Each tile's claim has one to itself, as cores would wait for each other's."""


def shared_steps(module: Module) -> Module:
    """Return the IRModule with one parallel region for each annotated loop. Other functions are not changed."""
    return with_marked_loops(module, Steps, lambda func: _in_one_region)


def _in_one_region(loop: Loop) -> Stmt:
    """Return the replacement of an annotated loop."""
    tirx, tiles = _tvm.tirx, loop.body
    zero, count = _number(0), tirx.Cast("int64", tiles.extent)
    done, claims = tirx.decl_buffer((1,), "int64", "done"), tirx.decl_buffer((count * _LINE,), "int64", "claims")
    step = tirx.Cast("int32", loop.loop_var)  # TVM may narrow 64-bit ones
    place, counts = tirx.address_of(done[zero]), (step, tirx.Cast("int32", tiles.extent))

    def call(name: str, *arguments: Any) -> Any:
        return tirx.call_extern("int32", name, *arguments)

    def tile(number: Any) -> Stmt:
        cell = tirx.decl_buffer((1,), "int64", "number")  # once, and not in each index of the tile
        body = _tvm.substituted(tiles.body, {tiles.loop_var: tirx.Cast(str(tiles.loop_var.ty.dtype), cell[zero])})
        wait = tirx.Evaluate(call("felixlike_wait", place, *counts))
        finish = tirx.Evaluate(call("felixlike_finish", place))
        claimed = call("felixlike_claim", tirx.address_of(claims[cell[zero] * _LINE]), step) != 0
        run = tirx.IfThenElse(claimed, tirx.stmt_seq(wait, body, finish), None)
        return tirx.stmt_seq(tirx.AllocBuffer(cell), tirx.BufferStore(cell, number, [zero]), run)

    def part(others: Any) -> Stmt:
        # TVM gives each core variables of its own only inside a parallel loop. So this is one, over the core's tiles.
        late = tirx.Cast("int64", call("felixlike_lags", place, *counts)) * count
        number = tirx.Cast("int64", tiles.loop_var)
        extent = tirx.if_then_else(others == 0, _number(1), late)
        return unmarked(tiles, _loop("next", extent, lambda i: tile(tirx.Select(others == 0, number, i))))

    steps = unmarked(loop, _loop("others", _number(2), part))
    region = _pragma("import_llvm", _tvm.ir.StringImm(_SOURCE), _pragma("parallel_launch_point", zero, steps))
    start = _loop("tile", count, lambda number: tirx.BufferStore(claims, zero, [number * _LINE]))
    allocations = (tirx.AllocBuffer(done), tirx.AllocBuffer(claims))
    return tirx.stmt_seq(*allocations, tirx.BufferStore(done, zero, [zero]), start, region)


def _number(value: int) -> TirExpr:
    """Return a constant of 64 bits."""
    return _tvm.tirx.const(value, "int64")


def _loop(name: str, extent: TirExpr, body: Callable[[Any], Stmt]) -> Stmt:
    """Return a serial loop from zero."""
    variable = _tvm.tirx.Var(name, "int64")
    return _tvm.tirx.For(variable, _number(0), extent, _tvm.tirx.ForKind.SERIAL, body(variable))


def _pragma(name: str, value: Any, body: Stmt) -> Stmt:
    """Return a statement under an instruction to TVM's code generator for CPUs."""
    return _tvm.tirx.AttrStmt(_tvm.tirx.const(0, "int32"), f"pragma_{name}", value, body)
