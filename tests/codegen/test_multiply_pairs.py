"""Annotated loops that are not the products of a pair in a vector are refused, and others are not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_golden_passes import multiply_pairs as minimal

from felixlike import _tvm
from felixlike.codegen import compile_primfuncs
from felixlike.codegen.annotations import Pairs
from felixlike.codegen.pair_functions import with_pair_functions
from felixlike.codegen.passes import multiply_pairs
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
