"""Share each step of a recurrence between the cores in one parallel region, instead of starting one for each step.

    for t in 32:                           parallel region, on each core:
        parallel for tile in 16:               for t in 32:
            step                       →           for tile in the core's part of 16:
                                                       wait until 16 · t tiles are done
                                                       step
                                                       one more tile is done

Input: an IRModule of PrimFuncs with loops annotated with `Steps`. Output: the same module without blocks, with the
functions of `_SOURCE` in them. TVM starts a region with as many tasks as its pool has workers, each on a worker of its
own, and each goes through the steps in order, so that none waits for a tile that is not computed. TVM's own barrier
gives up the core whenever it waits. If other processes want the core, that takes milliseconds. So a core first waits
busily here, for about as long as a short step takes.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module, Stmt
from felixlike.codegen.annotations import Steps
from felixlike.codegen.passes.loop_tools import unmarked, with_marked_loops

_SPINS = 2**13
"""Reads of the counter before a core is given up, about 10 µs. Chosen by hand."""

_SOURCE = f"""
declare i32 @sched_yield()

define i32 @felixlike_wait(ptr %done, i32 %step, i32 %tiles) alwaysinline {{
entry:
  %wide_step = zext i32 %step to i64
  %wide_tiles = zext i32 %tiles to i64
  %wanted = mul i64 %wide_step, %wide_tiles
  br label %test
test:
  %spins = phi i32 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i64, ptr %done acquire, align 8
  %enough = icmp sge i64 %now, %wanted
  br i1 %enough, label %exit, label %wait
wait:
  %patient = icmp ult i32 %spins, {_SPINS}
  br i1 %patient, label %again, label %yield
yield:
  %ignored = call i32 @sched_yield()
  br label %again
again:
  %next = add i32 %spins, 1
  br label %test
exit:
  ret i32 0
}}

define i32 @felixlike_finish(ptr %done) alwaysinline {{
  %old = atomicrmw add ptr %done, i64 1 release
  ret i32 0
}}
"""
"""The functions that wait for a number of tiles and that count one, as LLVM's text: TVM has no atomic operations."""


def shared_steps(module: Module) -> Module:
    """Return the IRModule with one parallel region for each annotated loop. Other functions are not changed."""
    return with_marked_loops(module, Steps, lambda func: _in_one_region)


def _in_one_region(loop: Loop) -> Stmt:
    """Return the replacement of an annotated loop."""
    tirx, tiles = _tvm.tirx, loop.body
    done = tirx.decl_buffer((1,), "int64", "done")
    place = [tirx.const(0, "int64")]
    counts = [tirx.Cast("int32", count) for count in (loop.loop_var, tiles.extent)]  # TVM may narrow 64-bit ones

    def call(name: str, *arguments: Any) -> Stmt:
        return tirx.Evaluate(tirx.call_extern("int32", name, tirx.address_of(done[place[0]]), *arguments))

    body = tirx.stmt_seq(call("felixlike_wait", *counts), tiles.body, call("felixlike_finish"))
    region = _pragma("parallel_launch_point", place[0], unmarked(loop, unmarked(tiles, body)))
    start = tirx.BufferStore(done, place[0], place)
    return tirx.stmt_seq(tirx.AllocBuffer(done), start, _pragma("import_llvm", _tvm.ir.StringImm(_SOURCE), region))


def _pragma(name: str, value: Any, body: Stmt) -> Stmt:
    """Return a statement under an instruction to TVM's code generator for CPUs."""
    return _tvm.tirx.AttrStmt(_tvm.tirx.const(0, "int32"), f"pragma_{name}", value, body)
