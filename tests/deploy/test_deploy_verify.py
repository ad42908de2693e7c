"""The error of a compiled model is the true one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from felixlike.deploy import Compiled, compile_model, max_relative_error
from felixlike.frontend import import_model
from felixlike.testing.models import Apply, mlp


class Insists(nn.Module):
    """Works in float32 only."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4)


def compiled(function: Any, x: Tensor) -> Compiled:
    return compile_model(import_model(Apply(function), x))


def test_right_answers_are_close_to_float64() -> None:
    model, inputs = mlp()
    verification = max_relative_error(compile_model(import_model(model, inputs)), model, inputs)
    assert verification.reference == "float64"
    assert 0 < verification.error < 1e-5
    assert next(model.parameters()).dtype is torch.float32


def test_the_error_is_relative_to_the_largest_value_of_its_output() -> None:
    x = torch.tensor([1.0, 2.0, 4.0])
    wrong = compiled(lambda x: (x * 1.5, x), x)
    assert max_relative_error(wrong, Apply(lambda x: (x, x)), (x,)).error == pytest.approx(2.0 / 4.0)
    assert max_relative_error(wrong, Apply(lambda x: (x * 1.5, x)), (x,)).error == 0


def test_zero_reference_gives_the_absolute_error() -> None:
    x = torch.ones(3)
    assert max_relative_error(compiled(lambda x: x * 0.25, x), Apply(lambda x: x * 0), (x,)).error == 0.25


def test_other_shapes_and_nans_are_infinitely_wrong() -> None:
    x = torch.ones(3)
    zero = compiled(lambda x: x * 0, x)
    assert max_relative_error(zero, Apply(lambda x: x[:2]), (x,)).error == float("inf")
    assert max_relative_error(zero, Apply(lambda x: x * float("nan")), (x,)).error == float("inf")
    assert max_relative_error(zero, Apply(lambda x: x / 0), (x,)).error == float("inf")


def test_equal_infinities_and_nans_agree() -> None:
    x = torch.tensor([1.0, 0.0, -1.0])
    model = Apply(torch.log)
    assert model(x).isfinite().tolist() == [True, False, False]
    assert max_relative_error(compiled(torch.log, x), model, (x,)).error == 0


def test_float32_where_float64_is_impossible() -> None:
    x = torch.randn(2, 4)
    verification = max_relative_error(compile_model(import_model(Insists(), x)), Insists(), (x,))
    assert verification.reference == "float32"
    assert verification.error < 1e-5


def test_exported_programs() -> None:
    model, inputs = mlp()
    program = torch.export.export(model, inputs)
    assert max_relative_error(compile_model(import_model(program)), program, inputs).error < 1e-5


def test_the_model_of_an_exported_program_is_left_as_it_was() -> None:
    """They share their parameters."""
    model, inputs = mlp()
    program = torch.export.export(model, inputs)
    max_relative_error(compile_model(import_model(program)), program, inputs)
    assert {tensor.dtype for tensor in (*model.parameters(), *program.state_dict.values())} == {torch.float32}


def test_against_the_untuned_module() -> None:
    model, inputs = mlp()
    untuned = compile_model(import_model(model, inputs))
    verification = max_relative_error(compile_model(import_model(model, inputs)), untuned, inputs)
    assert (verification.reference, verification.error) == ("untuned", 0)


def test_example_inputs_are_not_changed() -> None:
    x = torch.randn(3)
    before = x.clone()
    max_relative_error(compiled(lambda x: x.relu_() + 1, x), Apply(lambda x: x.relu_() + 1), (x,))
    assert torch.equal(x, before)
