"""Tests that every operator imports, compiles untuned and agrees with PyTorch in float64."""

import pytest
from support.models import OPERATORS, bert, mlp

from felixlike.frontend import import_model
from felixlike.runtime import compile_model, max_relative_error


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_agrees_with_float64(name: str) -> None:
    model, inputs = OPERATORS[name]()
    imported = import_model(model, inputs)
    assert imported.tasks
    verification = max_relative_error(compile_model(imported), model, inputs)
    assert verification.reference == "float64"
    assert verification.error <= 1e-4


@pytest.mark.parametrize("build", [mlp, lambda: bert(layers=1, hidden=32, length=12)])
def test_network_agrees_with_float64(build: object) -> None:
    assert callable(build)
    model, inputs = build()
    verification = max_relative_error(compile_model(import_model(model, inputs)), model, inputs)
    assert verification.reference == "float64"
    assert verification.error <= 1e-4
