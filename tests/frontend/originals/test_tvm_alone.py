"""Tests for Relax modules as references, compiled without felixlike's rewrites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.faulty import matmul

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.frontend.importers import importer
from felixlike.frontend.originals import original_of

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def softmax_and_double() -> Any:
    """Return a Relax module with two nested outputs."""
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.softmax(x))
            result = builder.emit_output(relax.Tuple([first, relax.Tuple([relax.op.add(x, x)])]))
        builder.emit_func_output(result)
    return builder.get()


def test_a_module_with_nested_outputs() -> None:
    first, (second,) = original_of(softmax_and_double(), import_model(softmax_and_double()).signature).outputs((X,))
    torch.testing.assert_close(first, X.softmax(-1))
    torch.testing.assert_close(second, X + X)


def test_a_primfunc() -> None:
    imported = import_model(matmul())
    original = original_of(imported.original, imported.signature)
    torch.testing.assert_close(original.outputs((X, X)), X @ X, rtol=1e-4, atol=1e-4)
    moved = original.outputs((X, X), moved=1)
    assert 0 < (moved - X @ X).abs().max() < 1e-3
    with pytest.raises(ValueError, match="float64"):
        original.outputs((X, X), wide=True)


def test_the_reference_uses_no_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    imported = import_model(softmax_and_double())
    for name, value in vars(importer).items():
        if callable(value) and getattr(value, "__module__", "").startswith("felixlike"):
            monkeypatch.setattr(importer, name, refuse)
    original = original_of(imported.original, imported.signature)
    torch.testing.assert_close(original.outputs((X,))[0], X.softmax(-1))


def test_repeated_rows() -> None:
    """LLVM vectorizes remainders by powers of two in addresses incorrectly (`codegen/hidden_masks.py`)."""
    relax, shape = _tvm.relax, (2, 3, 4, 5)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.tile(x, (1, 6, 4, 1)))
        builder.emit_func_output(result)
    module, values = builder.get(), torch.randn(shape)
    repeated = original_of(module, import_model(module).signature).outputs((values,))
    assert torch.equal(repeated, values.repeat(1, 6, 4, 1))
