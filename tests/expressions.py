"""Evaluate TVM expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from felixlike import _tvm


def number(expression: Any, values: Mapping[str, int]) -> int:
    """Return the value of an expression. `values` maps the names of all its variables to numbers."""
    named = {variable: values[str(variable.name)] for variable in _tvm.found(expression, _tvm.tirx.Var)}
    return int(_tvm.simplify(_tvm.substituted(expression, named)))
