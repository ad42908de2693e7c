"""Tests for `max_relative_error`: the reported error of a compiled model is the true one."""

from typing import Any

import pytest
import torch
from support.models import Apply, mlp
from torch import Tensor, nn

from felixlike import _tvm
from felixlike.frontend import Imported, import_model
from felixlike.runtime import Compiled, Verdict, compile_model, max_relative_error
from felixlike.runtime import verification as verify


class Float32Only(nn.Module):
    """A model that works in float32 only."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4)


def compiled(function: Any, x: Tensor) -> Compiled:
    return compile_model(import_model(Apply(function), x))


def test_a_right_model_is_close_to_float64() -> None:
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


def test_the_error_is_absolute_where_the_reference_is_zero() -> None:
    x = torch.ones(3)
    assert max_relative_error(compiled(lambda x: x * 0.25, x), Apply(lambda x: x * 0), (x,)).error == 0.25


def test_the_error_of_other_shapes_and_nans_is_infinite() -> None:
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


def test_a_float32_only_model_is_compared_in_float32() -> None:
    x = torch.randn(2, 4)
    verification = max_relative_error(compile_model(import_model(Float32Only(), x)), Float32Only(), (x,))
    assert verification.reference == "the model's own precision"
    assert verification.error < 1e-5


def test_exported_programs_are_compared() -> None:
    model, inputs = mlp()
    program = torch.export.export(model, inputs)
    assert max_relative_error(compile_model(import_model(program)), program, inputs).error < 1e-5


def test_the_model_of_an_exported_program_is_not_changed() -> None:
    """The exported program shares its parameters with the model, which stay float32."""
    model, inputs = mlp()
    program = torch.export.export(model, inputs)
    max_relative_error(compile_model(import_model(program)), program, inputs)
    assert {tensor.dtype for tensor in (*model.parameters(), *program.state_dict.values())} == {torch.float32}


def test_example_inputs_are_not_changed() -> None:
    x = torch.randn(3)
    before = x.clone()
    max_relative_error(compiled(lambda x: x.relu_() + 1, x), Apply(lambda x: x.relu_() + 1), (x,))
    assert torch.equal(x, before)


def test_a_model_that_changes_its_inputs_is_wrong() -> None:
    """Each side gets its own copies of the inputs. Otherwise the original would run on the changed ones."""
    x = torch.randn(3)

    class Spoiling(Compiled):
        def __call__(self, *tensors: Any, **named: Any) -> Any:
            outputs = super().__call__(*tensors, **named)
            tensors[0].mul_(2)
            return outputs

    model = object.__new__(Spoiling)
    vars(model).update(vars(compiled(lambda x: x + 1, x)))
    before = x.clone()
    verification = max_relative_error(model, Apply(lambda x: x + 1), (x,))
    assert verification.verdict is Verdict.WRONG
    assert "its input tensors[0]" in verification.words
    assert torch.equal(x, before)


# -- NaN --------------------------------------------------------------------------------------------------------------


def test_other_inputs_are_tried_if_all_outputs_are_nan() -> None:
    x = -torch.ones(4, 8)
    model = compiled(torch.log, x)
    verification = max_relative_error(model, Apply(torch.log), (x,))
    assert (verification.verdict, verification.words) == (Verdict.RIGHT, "")
    assert 0 < verification.error < 1e-5
    wrong = max_relative_error(model, Apply(lambda x: torch.log(x) + 0.1), (x,))
    assert wrong.verdict is Verdict.WRONG


def test_outputs_that_are_always_nan_are_unsure() -> None:
    x = torch.ones(4, 8)
    model = compiled(lambda x: (torch.log(-x.abs() - 1), x + 1), x)
    verification = max_relative_error(model, Apply(lambda x: (torch.log(-x.abs() - 1), x + 1)), (x,))
    assert verification.verdict is Verdict.UNSURE
    assert "output[0] are NaN" in verification.words


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide() -> tuple[nn.Module, Compiled, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model, inputs = nn.Linear(512, 512).eval(), (torch.randn(2, 512),)
    return model, compile_model(import_model(model, inputs)), inputs


@pytest.mark.parametrize(
    ("megabytes", "reference", "verdict"), [(16, "float64", "right"), (2, "float32", "right"), (0, "", "unsure")]
)
def test_the_reference_s_precision_depends_on_free_memory(
    megabytes: int, reference: str, verdict: str, wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights take 1 MiB, a float32 copy another 1 MiB, and float64 another 2 MiB."""
    monkeypatch.setattr(verify, "free_memory_bytes", lambda: megabytes * 2**20)
    model, verification = wide[0], max_relative_error(wide[1], wide[0], wide[2])
    assert (verification.reference, verification.verdict.value) == (reference, verdict)
    if not megabytes:
        assert "0.0 GiB of memory" in verification.words
    assert model.weight.dtype is torch.float32


# -- kernels ----------------------------------------------------------------------------------------------------------


def compiled_out_of_bounds(imported: Imported, rows: int, first: int) -> Compiled:
    """Return a model whose kernel also computes rows outside of its buffers, and the right values inside."""
    (task,) = imported.tasks
    schedule = _tvm.Schedule(task.module)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    outer = schedule.get_loops(block)[0]
    loop = schedule.get(outer)
    changed = _tvm.tirx.For(loop.loop_var, _tvm.tirx.IntImm("int64", first), rows, loop.kind, loop.body)
    schedule.state.replace(schedule.get_sref(outer), changed)
    return compile_model(imported, {task.key: schedule.mod})


@pytest.mark.parametrize(("rows", "first", "place"), [(9, 0, "after it"), (9, -1, "before it")])
def test_kernels_that_write_outside_of_their_buffers_are_wrong(rows: int, first: int, place: str) -> None:
    x, model = torch.randn(8, 16), Apply(lambda x: x * 2)
    imported = import_model(model, (x,))
    assert max_relative_error(compile_model(imported), model, (x,)).verdict is Verdict.RIGHT
    verification = max_relative_error(compiled_out_of_bounds(imported, rows, first), model, (x,))
    assert verification.verdict is Verdict.WRONG
    assert verification.words.startswith("kernel multiply: ")
    assert "buffer 1" in verification.words
    assert place in verification.words
