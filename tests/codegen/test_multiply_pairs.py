"""Annotated loops that are not the products of a pair in a vector are refused, and others are not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_golden_passes import multiply_pairs as minimal

from felixlike import _tvm
from felixlike.codegen import compile_primfuncs, matrix_functions
from felixlike.codegen.annotations import Pairs
from felixlike.codegen.pair_functions import with_pair_functions
from felixlike.codegen.passes import multiply_pairs, round_halves, write_out_halves
from felixlike.errors import CompilationFailed


def _with_loops(change: Callable[[Any], Any]) -> Any:
    """Return the minimal function with its annotated loop changed."""
    module = minimal().mod
    loops = (_tvm.tirx.For, lambda loop: change(loop) if Pairs.on(loop) else loop)
    return _tvm.map_functions(module, lambda func: _tvm.structural_map(func, loops))


def _longer(loop: Any) -> Any:
    return _tvm.tirx.For(loop.loop_var, 0, 3, loop.kind, loop.body, annotations=loop.annotations)


def _twice(loop: Any) -> Any:
    return _tvm.tirx.stmt_seq(loop, loop)


def _in_float32(loop: Any) -> Any:
    return _tvm.structural_map(loop, (_tvm.tirx.Cast, lambda cast: _tvm.tirx.exp(cast)))


def _maximum(loop: Any) -> Any:
    return _tvm.structural_map(loop, (_tvm.tirx.Add, lambda add: _tvm.tirx.Max(add.a, add.b) if _float(add) else add))


def _float(value: Any) -> bool:
    return str(value.ty.dtype) == "float32"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_longer, "its 3 steps are in a loop of 4"),
        (_twice, "not the only statement in a vectorized loop"),
        (_in_float32, "not a number of bfloat16 as float32"),
        (_maximum, "does not sum products"),
    ],
)
def test_other_loops_are_refused(change: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(CompilationFailed, match=why) as caught:
        multiply_pairs(_with_loops(change))
    assert 'precision="float32"' in caught.value.remedy


def test_functions_without_pairs_are_not_changed() -> None:
    module = _with_loops(lambda loop: _tvm.tirx.For(loop.loop_var, 0, 2, loop.kind, loop.body))
    assert multiply_pairs(module) is module
    assert with_pair_functions(module, _tvm.Target("llvm")) is module


def test_definitions_are_those_of_the_target() -> None:
    """Each function brings its own definition, which the linker merges."""
    func = minimal().mod["main"]
    module = _tvm.IRModule({name: func.with_attr("global_symbol", name) for name in ("one", "two")})
    for mcpu, instruction in (("znver4", True), ("znver3", False)):
        target = _tvm.Target({"kind": "llvm", "mcpu": mcpu})
        code = compile_primfuncs(module, target).mod.inspect_source("asm")
        assert ("vdpbf16ps" in code) == instruction
        assert "felixlike_pairs" not in code


def test_copies_are_rounded_by_the_instruction_of_the_target() -> None:
    """Steps that are copied to pairs, and rows, take one or two instructions for a vector."""
    for mcpu, instruction in (("znver4", True), ("znver3", False)):
        code = compile_primfuncs(_copies(), _tvm.Target({"kind": "llvm", "mcpu": mcpu})).mod.inspect_source("asm")
        assert ("vcvtneps2bf16" in code) == instruction
        assert ("vcvtne2ps2bf16" in code) == instruction
        assert "felixlike_" not in code


@pytest.mark.parametrize("summed", [True, False])
def test_only_results_of_reductions_are_rounded_by_the_instruction(summed: bool) -> None:
    """Kernels that only convert preserve subnormal numbers, which the instruction takes for zero."""
    for mcpu, instruction in (("znver4", True), ("znver3", False)):
        code = compile_primfuncs(_converted(summed=summed), _tvm.Target({"kind": "llvm", "mcpu": mcpu}))
        assert ("vcvtneps2bf16" in code.mod.inspect_source("asm")) == (instruction and summed)
    result = _tvm.runtime.tensor(np.zeros((4, 16), np.uint16))
    x = np.full((4, 16), 1e-39, np.float32)
    compile_primfuncs(_converted(summed=summed), _tvm.Target({"kind": "llvm", "mcpu": _tvm.host_cpu()})).jit()["main"](
        _tvm.runtime.tensor(x), result
    )
    if not summed:
        expected = torch.from_numpy(x).bfloat16().view(torch.int16)
        assert torch.equal(torch.from_numpy(result.numpy().view(np.int16)), expected)


@pytest.mark.parametrize("registers", [True, False])
def test_results_of_sums_in_tile_registers_are_rounded_by_the_instruction(registers: bool) -> None:
    """No statement accumulates into a buffer then."""
    func = _converted(summed=False)["main"]
    if registers:
        func = func.with_body(_tvm.tirx.stmt_seq(matrix_functions.zero(0), func.body))
    calls = _tvm.found(write_out_halves(_tvm.IRModule({"main": func}))["main"].body, _tvm.ir.Call)
    assert any(round_halves.operand(call) is not None for call in calls) == registers


@pytest.mark.parametrize("mcpu", [None, "znver3"])
def test_rounding_is_that_of_pytorch(mcpu: str | None) -> None:
    """Ties, infinities and NaN included. Whether subnormal numbers become zero is left to the processor."""
    target = _tvm.Target({"kind": "llvm", "mcpu": mcpu or _tvm.host_cpu()})
    missing = [f for f in _tvm.cpu_features(target) if f.startswith("avx") and f not in _tvm.host_features()]
    if missing:
        pytest.skip(f"this processor has no {', '.join(missing)}")
    bits = np.random.default_rng(0).integers(0, 2**32, (16, 2), np.uint32)
    bits[:4, 0] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001
    bits[:3, 1] = 0x7F800000, 0xFF800000, 0xFFFFFFFF
    bits[(bits & 0x7F800000) == 0] = 0
    x = bits.view(np.float32)
    pairs, rows = (np.zeros((16, 2), np.uint16) for _ in range(2))
    tensors = [_tvm.runtime.tensor(each) for each in (x, pairs, rows)]
    compile_primfuncs(_copies(), target).jit()["main"](*tensors)
    expected = torch.from_numpy(x).bfloat16()
    for result in tensors[1:]:
        rounded = torch.from_numpy(result.numpy().view(np.int16)).view(torch.bfloat16)
        assert torch.equal(rounded.isnan(), expected.isnan())
        assert torch.equal(rounded.nan_to_num(), expected.nan_to_num())


def _copies() -> Any:
    """Return a function that copies 32 numbers to pairs of columns in vectors, and as they are."""
    te = _tvm.te
    x = te.placeholder((16, 2), name="x")
    words = te.compute((16,), lambda i: round_halves.word(x[i, 0], x[i, 1]), name="words")
    rows = te.compute((16, 2), lambda i, j: round_halves.half(x[i, j]), name="rows")
    pairs = te.compute((16, 2), lambda i, j: (words[i] >> (j * 16)).astype("uint16"), name="pairs")
    schedule = _tvm.Schedule(te.create_prim_func([x, pairs, rows]))
    for name in ("words", "rows"):
        loop = schedule.fuse(*schedule.get_loops(schedule.get_sblock(name)))
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    return schedule.mod


def _converted(*, summed: bool) -> Any:
    """Return a function that rounds 64 numbers, or the sums of each and itself, to bfloat16."""
    te = _tvm.te
    x = te.placeholder((4, 16), name="x")
    k = te.reduce_axis((0, 2), name="k")
    sums = te.compute((4, 16), lambda i, j: te.sum(x[i, j], axis=k), name="sums")
    halves = te.compute((4, 16), lambda i, j: (sums if summed else x)[i, j].astype("bfloat16"), name="halves")
    bits = te.compute((4, 16), lambda i, j: _tvm.tirx.reinterpret("uint16", halves[i, j]), name="bits")
    schedule = _tvm.Schedule(te.create_prim_func([x, bits]))
    schedule.compute_inline(schedule.get_sblock("halves"))
    for block in map(schedule.get_sblock, ["sums"] * summed + ["bits"]):
        schedule.vectorize(schedule.get_loops(block)[1])
    return schedule.mod
