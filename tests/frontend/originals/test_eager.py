"""Tests for PyTorch models as references: in their own precision, in float64, and with perturbed values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from felixlike._util.torch_compat import Workspace, pytree
from felixlike.frontend import import_model
from felixlike.frontend.originals import eager, original_of
from felixlike.frontend.originals.eager import TorchOriginal
from felixlike.frontend.originals.original import moved_by_a_rounding
from felixlike.frontend.signature.mutations import Mutations

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["module", "program"])
def original(request: pytest.FixtureRequest) -> TorchOriginal:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).eval()
    source = model if request.param == "module" else torch.export.export(model, (X,))
    evaluator = original_of(source, import_model(source, (X,)).signature)
    assert isinstance(evaluator, TorchOriginal)
    return evaluator


def test_outputs_in_native_and_double_precision(original: TorchOriginal) -> None:
    native, wide = original.outputs((X,)), original.outputs((X,), wide=True)
    assert (native.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert 0 < (native - wide).abs().max() < 1e-6
    assert (original.name(wide=True), original.name(wide=False)) == ("float64", "float32")


def test_programs_that_convert_and_check_dtypes_are_evaluated_in_float64() -> None:
    """An export takes the dtypes of its examples for those that the model converts to."""

    class Converts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.exp().to(x.device).to(torch.float32, copy=True)
            return y.mul_(3.0) * (x > 0).to(x.dtype)

    program = torch.export.export(Converts(), (X,))
    assert any("_assert_tensor_metadata" in str(node.target) for node in program.graph.nodes)
    evaluator = original_of(program, import_model(program).signature)
    wide = X.double()
    torch.testing.assert_close(evaluator.outputs((X,), wide=True), wide.exp() * 3.0 * (wide > 0), rtol=1e-14, atol=0)
    assert evaluator.outputs((X,)).dtype is torch.float32


def test_a_perturbation_is_small_and_does_not_persist(original: TorchOriginal) -> None:
    before, x = original.outputs((X,)), X.clone()
    first, again, other = (original.outputs((X,), moved=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0 < (first - before).abs().max() < 1e-5
    assert torch.equal(original.outputs((X,)), before)
    assert torch.equal(X, x)


def test_memory_counts_the_copy_and_the_float64_values() -> None:
    original = original_of(nn.Linear(100, 50, bias=False), import_model(nn.Linear(100, 50), ((1, 100),)).signature)
    assert original.memory(wide=False) == 4 * 5000
    assert original.memory(wide=True) == (4 + 8) * 5000


class Uses(nn.Module):
    """A model that uses a large weight, a parameter or a buffer, in a way of its own."""

    def __init__(self, use: Callable[[Any, torch.Tensor], Any], *, buffer: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight: torch.Tensor
        if buffer:
            self.register_buffer("weight", torch.randn(512, 1024))
            self.register_buffer("tied", self.weight)
        else:
            self.weight = nn.Parameter(torch.randn(512, 1024))
            self.tied = self.weight
        self.bias = nn.Parameter(torch.randn(512))
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.randn(512))
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(self, x)


def _changed(model: Uses, x: torch.Tensor) -> torch.Tensor:
    model.weight.data.mul_(0.5)
    return x @ model.weight.t()


USES: dict[str, tuple[Callable[[Any, torch.Tensor], Any], bool]] = {
    "linear": (lambda m, x: nn.functional.linear(x, m.weight, m.bias) * m.scale, True),
    "the other operand's type": (lambda m, x: x.to(m.weight.dtype) @ m.weight.t(), True),
    "views": (lambda m, x: [x[:, :512] @ part for part in m.weight.t().reshape(2, 512, 512).unbind()], True),
    "tied": (lambda m, x: (x @ m.weight.t()) @ m.tied, True),
    "embedding": (lambda m, x: nn.functional.embedding(x.argmax(1).remainder(512), m.weight), True),
    "arithmetic": (lambda m, x: (x @ (m.weight / m.weight.norm(dim=1, keepdim=True)).t()).softmax(-1), True),
    "both operands": (lambda m, x: x @ (m.weight * m.tied.flip(0) - m.weight.view(512, 1024) * m.weight).t(), True),
    "a new tensor": (lambda m, x: torch.zeros_like(m.weight) + x.sum(), True),
    "returned": (lambda m, x: (x, {"weight": m.weight.t()}), False),
    "numpy": (lambda m, x: x @ torch.from_numpy(m.weight.detach().numpy().copy()).t(), False),
    "changed": (_changed, False),
    "bits": (lambda m, x: m.weight.view(torch.int64).remainder(7) + x.argmax(), False),
    "bits of the narrow type": (lambda m, x: m.weight.view(torch.float32)[:, :9].isfinite() & (x.sum() < 1e9), False),
    "strides": (lambda m, x: x @ m.weight[1:].as_strided((1024, 3), (1, 1024)), True),
}


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("way", USES)
def test_large_weights_are_converted_when_they_are_read(
    way: str, buffer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are those of a model in float64, without a copy of its large weights if possible."""
    use, is_shared = USES[way]
    model, x = Uses(use, buffer=buffer).eval(), torch.randn(3, 1024, generator=torch.Generator().manual_seed(1))
    original = TorchOriginal(model, import_model(nn.Linear(1024, 4), (x,)).signature)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        want = pytree().tree_leaves(copy.deepcopy(model).double()(x.double()))
    copies: list[bool] = []
    make = TorchOriginal._copy

    def noted(original: TorchOriginal, *, shares_large: bool = False) -> Any:
        copies.append(shares_large)
        return make(original, shares_large=shares_large)

    monkeypatch.setattr(TorchOriginal, "_copy", noted)
    got = pytree().tree_leaves(original.outputs((x,), wide=True))
    for actual, expected in zip(got, want, strict=True):
        assert type(actual) is torch.Tensor or type(actual) is nn.Parameter
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert copies == ([True] if is_shared else [True, False])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("way", ["embedding", "index_select"])
def test_lookups_convert_only_their_rows(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uses: dict[str, Callable[[Any, torch.Tensor], Any]] = {
        "embedding": lambda m, x: nn.functional.embedding(x.argmax(1).remainder(512), m.weight, padding_idx=3),
        "index_select": lambda m, x: m.weight.index_select(0, x.argmax(1).remainder(512)) * 3,
    }
    model, x = Uses(uses[way]).eval(), torch.randn(3, 1024, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(Workspace, "run", lambda *_: pytest.fail("the whole table is converted"))
    original = TorchOriginal(model, import_model(nn.Linear(1024, 4), (x,)).signature)
    got = original.outputs((x,), wide=True)
    assert got.dtype is torch.float64
    assert torch.equal(got, copy.deepcopy(model).double()(x.double()))


@pytest.mark.parametrize("name", ["weight", "tied"])
def test_large_buffers_that_a_call_changes_are_copied(name: str) -> None:
    """The model is evaluated once: the changed buffer is not shared under any of its names."""

    def changing(model: Uses, x: torch.Tensor) -> torch.Tensor:
        model.weight += 1
        return x @ model.weight.t()

    model, x = Uses(changing, buffer=True).eval(), torch.ones(3, 1024)
    before = model.weight.clone()
    mutations = Mutations((name,), (1,), (before,))
    original = TorchOriginal(model, import_model(nn.Linear(1024, 4), (x,)).signature, mutations)
    _, changed = original._outputs(eager._with_wide_small_tensors(original._copy(shares_large=True)), (x,), wide=True)
    assert torch.equal(changed, before.double() + 1)
    assert torch.equal(model.weight, before)
    assert original.memory(wide=True) == (4 + 8) * (512 * 1024 + 2 * 512)


def test_a_copy_of_large_weights_needs_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Uses(_changed).eval(), torch.ones(3, 1024)
    original = TorchOriginal(model, import_model(nn.Linear(1024, 4), (x,)).signature)
    small = 4 * 1024 + 8 * 1024
    assert original.memory(wide=True) == small + 2 * 8 * 512 * 1024
    monkeypatch.setattr(eager, "free_memory_bytes", lambda: small + 12 * 512 * 1024 - 1)
    with pytest.raises(TypeError, match="changes a tensor"):
        original.outputs((x,), wide=True)
    monkeypatch.setattr(eager, "free_memory_bytes", lambda: small + 12 * 512 * 1024)
    assert original.outputs((x,), wide=True).dtype == torch.float64


def test_shared_weights_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert original_of(model, import_model(model, ((1, 10),)).signature).memory(wide=False) == 400


def test_only_floats_are_perturbed() -> None:
    numbers, integers = torch.ones(1000), torch.arange(5)
    moved_by_a_rounding([numbers, integers], 0)
    eps = torch.finfo(torch.float32).eps
    assert set(numbers.tolist()) == {1 + eps, 1 - eps}
    assert integers.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_are_computed_before_each_call() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 4)), nn.ReLU()).eval()
    original = original_of(model, import_model(model, (X,)).signature)
    assert torch.equal(original.outputs((X,)), model(X).detach())
    assert original.outputs((X,), wide=True).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoders_with_padding_compute_what_an_export_of_them_computes() -> None:
    """In eager mode without gradients, nested tensors write zeros at padded places."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    x, padding = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    inputs = (x, None, padding)
    with torch.no_grad():
        assert not model(*inputs)[1, 2:].any()
    want = model(*inputs).detach()
    assert want[1, 2:].all()
    evaluator = original_of(model, import_model(model, inputs).signature)
    torch.testing.assert_close(evaluator.outputs((x, padding)), want)
    assert torch.backends.mha.get_fastpath_enabled()
