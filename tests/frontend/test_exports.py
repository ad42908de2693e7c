"""Tests that the caches of `tests/exports.py`, which make tests faster, do not change exported programs."""

from __future__ import annotations

from typing import Any

import exports
import pytest
import torch
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program
from torch.nn import functional

from felixlike.frontend.importers.refusals import quiet


class Composed(nn.Module):
    """Operators that torch decomposes by its tables, by dispatch, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish(), nn.Upsample((9, 9))
        )
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layers(x).flatten(2).mT
        z = self.encoder(y).unflatten(1, (9, 9)).softmax(-1)
        weights = functional.scaled_dot_product_attention(y, y, y, is_causal=True)
        return z.std(1), functional.interpolate(x, (7, 5), mode="bilinear"), weights.cumsum(1), y.movedim(0, 1)


def _graph_text(program: Any) -> str:
    with quiet():
        return str(program.run_decompositions().graph)


def test_decomposed_programs_equal_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Composed().eval(), (torch.randn(1, 3, 6, 6),))
    cached = [_graph_text(program) for _ in range(3)]
    kernels = [dict(op.py_kernels) for op in exports.known()]
    with monkeypatch.context() as patch:
        for module in exports.COLLECTING:
            patch.setattr(module, "_collect_all_valid_cia_ops", exports.collected_by_torch)
        patch.setattr(exported_program, "_override_composite_implicit_decomp", exports.given_by_torch)
        assert [_graph_text(program)] * 3 == cached
    assert kernels == [dict(op.py_kernels) for op in exports.known()]
    assert not exports.known() & op_implementations_dict.keys()


def test_a_changed_operator_gets_its_new_kernel() -> None:
    """An operator whose kernel changes between two exports is decomposed by the current kernel."""
    with torch.library._scoped_library("exports_of_tests", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")

        class Twice(nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                return torch.ops.exports_of_tests.twice(x).relu()

        program = torch.export.export(Twice(), (torch.randn(3),))
        assert "twice" in str(program.graph)
        assert "aten.add.Tensor" in _graph_text(program)
        operator = torch.ops.exports_of_tests.twice.default
        operator.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(lambda x: x * 2)
        assert "aten.mul.Tensor" in _graph_text(program)
