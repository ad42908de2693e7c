"""Code without checks of arguments lacks these, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import workloads

from felixlike import _tvm, codegen
from felixlike.hardware import resolve_target

_IN_CHECKS = "Mismatched type on argument"
"""A part of TVM's messages on wrong arguments, which the code contains."""


def _code(module: Any, *, checks_arguments: bool) -> str:
    executable = codegen.compile_primfuncs(module, resolve_target("cpu"), checks_arguments=checks_arguments)
    return str(executable.mod.inspect_source("ll"))


def _module(*, asserts: bool = False) -> Any:
    function = workloads.matmul()
    if asserts:
        tirx = _tvm.tirx
        first = tirx.BufferLoad(function.params[0], [0, 0])
        assertion = tirx.AssertStmt(first >= 0.0, _tvm.ir.StringImm("ValueError"), [_tvm.ir.StringImm("negative")])
        function = function.with_body(tirx.SeqStmt([assertion, function.body]))
    return _tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("checks", [True, False])
def test_checks_of_arguments_are_left_out(checks: bool) -> None:
    assert (_IN_CHECKS in _code(_module(), checks_arguments=checks)) == checks


def test_functions_with_assertions_keep_them() -> None:
    code = _code(_module(asserts=True), checks_arguments=False)
    assert "negative" in code
    assert _IN_CHECKS in code
