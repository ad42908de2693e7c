"""Tests for importing PyTorch models, and for the one-line errors of models that cannot be imported."""

from typing import Any

import pytest
import torch
from support.models import Apply, mlp
from torch import Tensor, distributions, nn

from felixlike._util.wording import for_the_command
from felixlike.errors import (
    DynamicControlFlow,
    EmptyModel,
    ExportFailed,
    InputMismatch,
    InvalidModel,
    InvalidShape,
    UnsupportedOperator,
)
from felixlike.frontend import import_model
from felixlike.frontend.importers.converters import CONVERTERS
from felixlike.runtime import compile_model


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Counter(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class Tied(nn.Module):
    """A model with one parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.embedding(ids))


class Optional(nn.Module):
    def forward(self, x: Tensor, scale: Tensor | None = None, *, bias: Tensor | None = None) -> Tensor:
        x = torch.relu(x)
        if scale is not None:
            x = x * scale
        return x if bias is None else x + bias


class Further(nn.Module):
    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        return x * 2 + more["extra"]


def test_modes_and_gradients_are_not_changed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    imported = import_model(model, (3, 4))
    assert [part.training for part in model.modules()] == [True, True, True, False]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    x = torch.randn(3, 4)
    torch.testing.assert_close(compile_model(imported)(x), model.eval()(x))


def test_modes_are_restored_after_an_error() -> None:
    model = Branch().train()
    with pytest.raises(DynamicControlFlow):
        import_model(model, (3,))
    assert model.training


def test_tied_parameters() -> None:
    model, ids = Tied().eval(), torch.randint(0, 20, (1, 5))
    torch.testing.assert_close(compile_model(import_model(model, ids))(ids), model(ids))


def test_example_tensors_are_not_copied() -> None:
    model, (x,) = mlp()
    assert import_model(model, x).examples[0].data_ptr() == x.data_ptr()
    assert import_model(model, (8, 128)).examples[0].shape == (8, 128)


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        (((2, 3),), ["x"]),
        (((2, 3), (3,)), ["x", "scale"]),
        ({"bias": (3,), "x": (2, 3)}, ["x", "bias"]),
        ({"bias": (3,), "scale": (3,), "x": (2, 3)}, ["x", "scale", "bias"]),
    ],
)
def test_arguments_by_position_and_by_name(shapes: Any, names: list[str]) -> None:
    assert [spec.name for spec in import_model(Optional(), shapes).inputs] == names


def test_variable_keyword_arguments() -> None:
    imported = import_model(Further(), {"x": (2, 3), "extra": (3,)})
    assert [spec.name for spec in imported.inputs] == ["x", "extra"]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"^Optional: .*\bshapes\b.*shapes=\(\("),
        ([], "^Optional: .*1 to 2 inputs, got 0. .*x, scale;"),
        (((2,), (2,), (2,)), "^Optional: .*1 to 2 inputs, got 3"),
        ({"y": (2,)}, "^Optional: .*'y'. .*x, scale, bias"),
        ({"scale": (2,)}, "^Optional: input 'x' is missing"),
    ],
)
def test_wrong_inputs_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidShape, match=message):
        import_model(Optional(), shapes)


def test_control_flow_names_the_line() -> None:
    with pytest.raises(DynamicControlFlow, match=r"test_torch.py:\d+ in forward: if x.sum\(\) > 0") as caught:
        import_model(Branch(), (3,))
    assert "torch.where" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_size_read_from_a_tensor_is_refused() -> None:
    with pytest.raises(DynamicControlFlow, match=r"int\(x\[0\]\.item\(\)\)"):
        import_model(Apply(lambda x: x[: int(x[0].item())]), (3,))


def test_distributions_can_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Tensor) -> Any:
        mean, deviation = x.chunk(2, -1)
        normal: Any = distributions.Normal(mean, deviation.exp())
        return normal.log_prob(mean + 1), distributions.kl_divergence(normal, distributions.Normal(0.0, 1.0))

    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)
    x = torch.randn(3, 4)
    got = compile_model(import_model(Apply(model), (x,)))(x)
    torch.testing.assert_close(got, model(x))
    with pytest.raises(ValueError, match="invalid values"):
        distributions.Normal(0.0, -1.0)


def test_wrong_sizes_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportFailed, match=r"^Linear: .*\[3, 3\] X \[4, 5\]"):
        import_model(nn.Linear(4, 5), torch.ones(3, 3))
    assert capfd.readouterr().err == ""


def test_sizes_for_integers_suggest_a_tensor() -> None:
    with pytest.raises(ExportFailed, match=r"^Embedding: .*float32.*\bexample tensor\b"):
        import_model(nn.Embedding(10, 4), (1, 5))
    with for_the_command(), pytest.raises(ExportFailed, match=r"float32.*--shape ids=1x64:int64"):
        import_model(nn.Embedding(10, 4), (1, 5))


def test_unknown_operators_are_all_named() -> None:
    model = Apply(lambda x: (torch.linalg.det(x), torch.special.i0(x)))
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*aten\._linalg_det\.default, aten\.i0\b"):
        import_model(model, (3, 3))


def test_shapes_that_depend_on_values_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*\baten\.nonzero\b"):
        import_model(Apply(lambda x: x.nonzero()), (3, 3))


def test_state_that_a_model_changes_is_taken_and_returned() -> None:
    imported = import_model(Counter(), (3,))
    assert imported.mutations.names == imported.mutations.buffers == ("calls",)
    assert imported.mutations.places == (1,)
    assert imported.mutations.state[0].tolist() == [0]
    assert [spec.name for spec in imported.inputs] == ["x"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x, "^Apply: .*nothing"),
        (lambda x: x.reshape(-1), "^Apply: .*nothing"),
        (lambda x: torch.ones(3), "^Apply: .*nothing"),
        (lambda x: (None, 3), "^Apply: .*no tensor"),
    ],
)
def test_models_that_compute_nothing_are_refused(function: Any, message: str) -> None:
    with pytest.raises(EmptyModel, match=message):
        import_model(Apply(function), (2, 3))


def test_parameters_on_another_device_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"^Linear: weight .*\bmeta\b.*\bCPU\b"):
        import_model(nn.Linear(2, 2, device="meta"), (3, 2))


def test_uninitialized_layers_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"^LazyLinear: weight .*\bsize\b"):
        import_model(nn.LazyLinear(4), (2, 3))


def test_exported_program_knows_its_inputs() -> None:
    model, (x,) = mlp()
    imported = import_model(torch.export.export(model, (x,)))
    assert [str(spec) for spec in imported.inputs] == ["input: float32[8, 128]"]
    assert torch.equal(imported.examples[0], x)
    assert [task.key for task in imported.tasks] == [task.key for task in import_model(model, x).tasks]


def test_an_exported_program_with_other_shapes_is_refused() -> None:
    model, (x,) = mlp()
    with pytest.raises(InvalidShape, match=r"^ExportedProgram: input 'input' .*\(8, 128\).*\(9, 128\)"):
        import_model(torch.export.export(model, (x,)), (9, 128))


def test_exported_program_is_not_changed() -> None:
    program = torch.export.export(Apply(lambda x: (x + 1, None, 2)), (torch.randn(3),))
    text = str(program)
    first, none, two = compile_model(import_model(program))(torch.zeros(3))
    assert (first.tolist(), none, two) == ([1.0, 1.0, 1.0], None, 2)
    assert str(program) == text


def test_an_exported_program_with_dynamic_shapes_is_refused() -> None:
    model, (x,) = mlp()
    dynamic = {"input": {0: torch.export.Dim("batch", min=2, max=64)}}
    with pytest.raises(InvalidShape, match=r"^ExportedProgram: input 'input' .*\(s\d+, 128\).*dynamic_shapes"):
        import_model(torch.export.export(model, (x,), dynamic_shapes=dynamic))


def test_exported_program_with_constants() -> None:
    program = torch.export.export(Apply(lambda x, n: x * n), (torch.randn(3), 2))
    compiled = compile_model(import_model(program))
    assert len(compiled.inputs) == 1
    assert compiled(torch.ones(3), 2).tolist() == [2.0] * 3
    with pytest.raises(InputMismatch, match=r" is 3, .*=2\b"):
        compiled(torch.ones(3), 3)


def test_errors_of_tvms_importer_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: Any, importer: Any) -> Any:
        raise ValueError("no such layout")

    monkeypatch.setitem(CONVERTERS, "addmm.default", refuse)
    with pytest.raises(UnsupportedOperator, match=r"^Linear: TVM's importer .*: no such layout"):
        import_model(nn.Linear(4, 4), torch.ones(2, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.amax(1),
        lambda x: x.amin((0, 2), keepdim=True),
        lambda x: x.amax(),
        lambda x: x.relu().norm(0, 1),
        lambda x: torch.linalg.vector_norm(x.relu(), 0, keepdim=True),
        lambda x: x.logsumexp(-1),
        lambda x: x.prod(1, keepdim=True),
        lambda x: (x * 4).to(torch.int32).prod(2),
        lambda x: (x * 9).to(torch.int32).abs().add(1).prod(),  # more than int32 can hold
        lambda x: (-(x > 0).int()).any(1),  # their maximum is 0
        lambda x: (-(x > 0).int()).any((0, 2), keepdim=True),
        lambda x: (x * 4).abs().to(torch.uint8).any(2),
    ],
)
def test_reductions_that_the_importer_lacks(function: Any) -> None:
    model, x = Apply(function), torch.randn(3, 5, 4)
    got, want = compile_model(import_model(model, (x,)))(x), model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "function",
    [
        torch.exp2,
        lambda x: nn.functional.group_norm(x.double(), 3),
        lambda x: torch.where(x > 0, x.bfloat16(), (x * 2).bfloat16()) - 1,
        lambda x: x.bfloat16().masked_fill(x > 1, 0.5).float(),
        nn.functional.elu,
        nn.functional.selu,
        lambda x: nn.functional.celu(x, 0.7),
        lambda x: torch.max(x, -1),
        lambda x: torch.max(x, 1)[0],
        lambda x: torch.min(x, 2, keepdim=True),
        lambda x: torch.topk(x, 3, -1, sorted=False)[0].sort()[0],
        lambda x: torch.var_mean(x, -1),
        lambda x: torch.var_mean(x, (2, 3), correction=0, keepdim=True),
        *(
            lambda x, factor=factor: nn.functional.interpolate(x, scale_factor=factor, mode="nearest")
            for factor in (2, 1.5, 0.5, 1 / 3, 1.3)
        ),
        lambda x: nn.functional.interpolate(x, size=(13, 53), mode="nearest"),
        lambda x: nn.functional.interpolate(x, size=(3, 5), mode="nearest"),
    ],
)
def test_operators_that_the_importer_lacks_or_gets_wrong(function: Any) -> None:
    model, x = Apply(function), torch.randn(1, 3, 8, 7)
    got, want = compile_model(import_model(model, (x,)))(x), model(x)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for got_part, want_part in pairs:
        torch.testing.assert_close(got_part, want_part)


class _Attention(nn.Module):
    """Attention over several samples with a mask and a view of its output, as in GPT-2."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = x.view(batch, length, 2, 4).transpose(1, 2)
        output = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return output.transpose(1, 2).view(batch * length, 8)


def test_a_view_of_attention_s_output() -> None:
    x, mask = torch.randn(3, 5, 8), torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    compiled = compile_model(import_model(_Attention(), (x, mask)))
    torch.testing.assert_close(compiled(x, mask), _Attention()(x, mask), rtol=1e-5, atol=1e-6)
