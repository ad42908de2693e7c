"""Index expressions are converted to TVM and back."""

from __future__ import annotations

import pytest

from felixlike import _tvm
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least
from felixlike.symbolic.expr.expression import var
from felixlike.symbolic.replay.convert import from_expr, to_expr


def test_indices_survive_a_round_trip_through_tvm() -> None:
    i, j, t = (_tvm.tirx.Var(name, "int32") for name in "ijt")
    table = {t: var("t", 1, 8), i: var("i", 0, 7), j: var("j", 0, 7)}
    names = {ours: theirs for theirs, ours in table.items()}
    for theirs in (i * t * 3 + j - 2, _tvm.tirx.floordiv(i * t + j, 4) * 4, _tvm.tirx.min(i * t, j) + t):
        ours = to_expr(theirs, table)
        assert to_expr(from_expr(ours, names, i), table) is ours
    gate = at_least(table[i], 3)
    with pytest.raises(UnsupportedSketch) as caught:
        from_expr(gate, names, i)
    assert str(gate) in caught.value.what
