"""Tests for `import_model`: dispatch by kind, and refusals of objects that are not models."""

from pathlib import Path
from typing import Any

import pytest
from support.models import mlp
from torch import nn

from felixlike.errors import CompilationFailed, InvalidModel, InvalidOption, UnknownTarget
from felixlike.frontend import import_model
from felixlike.frontend.rewrites import pipeline


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "^model: an int .*torch.nn.Module"),
        (None, "^model: None "),
        (lambda x: x, "^model: a function "),
        (nn.ReLU, r"^model: ReLU is a class.*ReLU\(…\)"),
        ("model.safetensors", r"^model\.safetensors: .* \.safetensors .*\.pt2 .*\.onnx"),
        ("model", r"^model: .*\bno suffix\b.*\.pt2 .*\.onnx"),
        (Path("nowhere.onnx"), r"^nowhere\.onnx: .*no such file"),
        ("nowhere.pt2", r"^nowhere\.pt2: .*no such file"),
    ],
)
def test_objects_that_are_not_models_are_refused(model: Any, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        import_model(model, (1, 2))


def test_an_unknown_target_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(UnknownTarget, match="'gpu'"):
        import_model(object(), None, "gpu")


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError])
def test_an_internal_error_is_not_reported_as_tvm_s(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: Any) -> Any:
        raise kind("ours")

    model, (x,) = mlp()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "REWRITES", [pipeline.function_pass(fail), *pipeline.REWRITES])
        with pytest.raises(kind, match="ours"):
            import_model(model, x)
    refused = pipeline.function_pass(lambda module: module["nothing"])
    monkeypatch.setattr(pipeline, "REWRITES", [refused, *pipeline.REWRITES])
    with pytest.raises(CompilationFailed, match=r"^Sequential: TVM .*nothing"):
        import_model(model, x)


def test_attributes_of_an_imported_model() -> None:
    model, (x,) = mlp()
    imported = import_model(model, x)
    assert imported.name == "Sequential"
    assert imported.target.attrs["num-cores"] >= 1
    assert {task.target for task in imported.tasks} == {imported.target}
    assert all(task.flops > 0 for task in imported.tasks)


def test_an_imported_model_is_returned_for_its_own_target_only() -> None:
    model, (x,) = mlp()
    imported = import_model(model, x)
    assert import_model(imported) is imported
    with pytest.raises(InvalidOption, match=r"^target: .*imported for .*llvm.*, not for .*sm_90"):
        import_model(imported, target="sm_90")
