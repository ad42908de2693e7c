"""Test that outputs are compared with the source model, so that errors of the importer and of rewrites are detected."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from support.faulty import elementwise
from support.models import Apply
from torch import nn

import felixlike as fx
from felixlike import _tvm
from felixlike.errors import UnverifiedWarning, VerificationFailed
from felixlike.frontend import import_model
from felixlike.frontend.importers import importer
from felixlike.frontend.rewrites import pipeline
from felixlike.runtime import Verdict, compile_model, max_relative_error
from felixlike.tuning import run

SHAPE = (8, 32)
REFERENCES = {
    "module": "float64",
    "program": "float64",
    ".pt2 file": "float64",
    "proto": "onnx.reference in float64",
    ".onnx file": "onnx.reference in float64",
    "Relax": "TVM's own build of the module as given",
    "PrimFunc": "TVM's own build of the module as given",
}
"""The reference that each kind of model is compared with."""


def program() -> Any:
    return torch.export.export(Apply(lambda x: x + 1.5), (torch.randn(SHAPE),))


def proto() -> Any:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, SHAPE)],
        [value("y", TensorProto.FLOAT, SHAPE)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def model_and_shapes(kind: str, folder: Path) -> tuple[Any, Any]:
    """Return a model that adds, and its shapes."""
    if kind == "module":
        return Apply(lambda x: x + 1.5), (SHAPE,)
    if kind == "program":
        return program(), None
    if kind == ".pt2 file":
        torch.export.save(program(), folder / "model.pt2")
        return folder / "model.pt2", None
    if kind == "proto":
        return proto(), None
    if kind == ".onnx file":
        onnx.save(proto(), str(folder / "model.onnx"))
        return folder / "model.onnx", None
    if kind == "PrimFunc":
        return elementwise(lambda x: _tvm.te.compute(SHAPE, lambda i, j: x[i, j] + 1.5), SHAPE), None
    relax = _tvm.relax
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(x, relax.const(1.5)))
        builder.emit_func_output(result)
    return builder.get(), None


def passes_with_an_error(module: Any, target: Any, **options: Any) -> Any:
    """Run the passes on a module and replace additions by subtractions."""
    tirx = _tvm.tirx

    def subtract(node: Any) -> Any:
        return tirx.Sub(node.a, node.b) if "float" in str(node.ty.dtype) else node

    def changed(func: Any) -> Any:
        return func.with_body(_tvm.structural_map(func.body, (tirx.Add, subtract)))

    fused, layers = FUSE(module, target, **options)
    return _tvm.map_functions(fused, changed), layers


FUSE = pipeline.fuse


@pytest.mark.parametrize("kind", REFERENCES)
def test_an_error_in_the_passes_is_detected(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = model_and_shapes(kind, tmp_path)
    tuned = fx.optimize(model, shapes, 0, progress=False)
    assert tuned.report.reference == REFERENCES[kind]
    assert tuned.report.error < 1e-6
    monkeypatch.setattr(importer, "fuse", passes_with_an_error)
    monkeypatch.setattr(run, "may_reuse", lambda _: False)
    with pytest.raises(VerificationFailed) as raised:
        fx.optimize(model, shapes, 0, progress=False)
    assert raised.value.optimized.report.error > 1e-3


def test_a_model_with_dropout_is_reported_as_random(tmp_path: Path) -> None:
    """TVM's importer removes dropout, which is wrong in every call."""
    x = torch.randn(SHAPE)
    model = Apply(lambda x: nn.functional.dropout(x + 1.5, training=True))
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    original = torch.export.load(tmp_path / "model.pt2")
    without = compile_model(import_model(Apply(lambda x: x + 1.5), (x,)))
    assert max_relative_error(without, original, (x,)).verdict is Verdict.RANDOM


def test_an_exported_program_is_not_changed() -> None:
    exported = program()
    before = str(exported)
    imported = import_model(exported)
    assert imported.original is exported
    assert str(exported) == before


def test_models_without_a_reference_are_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx.reference import ReferenceEvaluator

    def refuse(*_: Any) -> Any:
        raise NotImplementedError("Add has no implementation")

    monkeypatch.setattr(ReferenceEvaluator, "run", refuse)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # which would be the reference
    with pytest.warns(
        UnverifiedWarning, match="net was not verified as a whole: comparing failed: Add has no implementation"
    ):
        tuned = fx.optimize(proto(), None, 0, progress=False)
    assert torch.equal(tuned(torch.ones(SHAPE)), torch.full(SHAPE, 2.0))
    assert tuned.report.reference == ""
