"""Tests for operators by dtype: they match PyTorch in dtype and precision, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import nn
from torch.nn import functional

from felixlike.errors import InvalidModel, InvalidShape, UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_TYPES = (torch.float64, torch.float16, torch.bfloat16)


def _many(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute elementwise operators, reductions and data movements in one model."""
    y = x.flip(0)
    return (
        *(x + y, x * 2.5, x / 3, x**2, x.abs().sqrt(), x.exp(), x.tanh(), x.sigmoid(), torch.sin(x)),
        *(functional.gelu(x), functional.silu(x), functional.elu(x), functional.softplus(x)),
        *(x.softmax(-1), x.log_softmax(-1), x.sum(-1), x.mean(0), x.var(-1), x.cumsum(-1), x.logsumexp(-1)),
        *(x.amax(-1), x.argmax(-1), x > 0.3, torch.where(x > 0, x, 0.0), x.sum(-1, dtype=torch.float32)),
        *(torch.cat([x, y]), x.t().contiguous(), functional.pad(x, (1, 1)), x.float() * 1.5, x.double() + 1),
        *(x + torch.ones(8), x * torch.arange(8), x * torch.tensor(2.5, dtype=torch.float64), torch.zeros_like(x) + x),
    )


def _products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch = torch.stack([x, x + 1])
    return x @ x.t(), torch.bmm(batch, batch.mT), torch.addmm(x[:, :4], x, x.t(), alpha=0.5, beta=2), x @ x[0]


_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 16), (4, 8)),
    "linear without bias": (lambda: nn.Linear(8, 16, bias=False), (4, 8)),
    "products": (lambda: Apply(_products), (4, 8)),
    "many": (lambda: Apply(_many), (4, 8)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (1, 4, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 4, 2, 1), (1, 4, 6, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 8, 3), (1, 4, 8)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.ConvTranspose3d(4, 2, 2)), (1, 2, 4, 4, 4)),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.LayerNorm(6)), (1, 8, 6, 6)),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)), (1, 4, 12, 12)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (1, 5, 16)),
}


def _assert_same(outputs: Any, expected: Any) -> None:
    pairs = [(outputs, expected)] if isinstance(expected, torch.Tensor) else zip(outputs, expected, strict=True)
    for got, want in pairs:
        assert got.dtype == want.dtype
        unit = torch.finfo(want.dtype).eps if want.dtype.is_floating_point else 0.0
        allowed = (4 if unit > 1e-4 else 64) * unit * max(1.0, float(want.double().abs().max()))
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("name", _MODELS)
def test_outputs_match_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shape = _MODELS[name]
    model, x = make().to(dtype).eval(), torch.randn(shape).to(dtype)
    with torch.no_grad():
        _assert_same(compile_model(import_model(model, (x,)))(x), model(x))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_under_autocast_have_the_types_of_pytorch(make: Callable[..., nn.Module]) -> None:
    """PyTorch's export loses autocast's casts of their products."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = make(8, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.autocast("cpu", torch.bfloat16):
                steps, state = self.layer(x)
                states = state if isinstance(state, tuple) else (state,)
                return steps, *states, self.last(steps), steps + steps.mean()

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        try:
            expected = model(x)
        except RuntimeError as error:
            if "could not create a primitive descriptor" not in str(error):
                raise
            pytest.skip("PyTorch has no LSTM in bfloat16 on this CPU")
    for got, want in zip(compile_model(import_model(model, (x,)))(x), expected, strict=True):
        assert got.dtype == want.dtype
        assert (got - want).abs().max() <= 2.0**-5 * want.abs().max()


def test_products_under_autocast_have_the_types_of_pytorch() -> None:
    """PyTorch's export loses autocast's casts of operators that consist of products."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.layer = nn.RNNCell(8, 4), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.autocast("cpu", torch.bfloat16):
                products = torch.einsum("bik,bjk->bij", x, x), torch.einsum("bik,bjk->bij", self.layer(x), x)
                others = torch.inner(x, x), torch.tensordot(x[0], x[1], 1), torch.linalg.multi_dot([x[0], x[1], x[0]])
                return *products, *others, self.cell(x[0]), torch.einsum("bik->bk", x), torch.outer(x[0, 0], x[0, 0])

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(2, 8, 8)
    with torch.no_grad():
        expected = model(x)
    for got, want in zip(compile_model(import_model(model, (x,)))(x), expected, strict=True):
        assert got.dtype == want.dtype
        assert (got - want).abs().max() <= 2.0**-6 * want.abs().max()


def test_float16_sums_accumulate_in_float32() -> None:
    x = torch.ones(1, 5000, dtype=torch.float16)  # in float16, 2048 + 1 is 2048
    assert float(compile_model(import_model(Apply(lambda x: x.sum(-1)), (x,)))(x)) == 5000


_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda x: torch.sort(x)[0],
    "summed up": lambda x: torch.cumsum(x, -1),
    "multiplied": lambda x: x @ x.mT,
    "in a chain": lambda x: torch.cumsum(torch.softmax(x, -1).bfloat16().float(), -1).bfloat16().float() + 1,
}


@pytest.mark.parametrize("name", _ROUNDED)
def test_a_float32_model_rounds_where_it_says(name: str) -> None:
    model, x = Apply(lambda x: _ROUNDED[name]((x * 1.37).bfloat16().float())), torch.randn(7, 33)
    torch.testing.assert_close(compile_model(import_model(model, (x,)))(x), model(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("numbers", [(9, -1, -1), (9, -2, -3), (1.5, -1.0, -0.3), (2, 2, -1)])
def test_ranges_that_fall(numbers: tuple[float, float, float]) -> None:
    model, x = Apply(lambda x: (x + torch.arange(*numbers).sum(), torch.arange(*numbers))), torch.randn(3)
    for got, want in zip(compile_model(import_model(model, (x,)))(x), model(x), strict=True):
        torch.testing.assert_close(got, want)


_MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "cat": lambda a, b: torch.cat([a, b]),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "add": torch.add,
    "compared": lambda a, b: (a > b, a == b, a > 0.5),
}


@pytest.mark.parametrize("name", _MIXED)
def test_mixed_operands_are_promoted(name: str) -> None:
    a, b = torch.arange(-3, 5), torch.tensor([2, 1, -1, 3, 0, 2, 1, 5.5])
    for first, second in ((a.short(), b), (b, a), (b.half(), b.double()), (b.bfloat16(), b.half())):
        model = Apply(_MIXED[name])
        _assert_same(compile_model(import_model(model, (first, second)))(first, second), model(first, second))


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "uint16", "uint32", "uint64"])
def test_other_types_are_refused_by_name(dtype: str) -> None:
    unsupported = torch.zeros(3, 4).to(getattr(torch, dtype))
    with pytest.raises(InvalidShape, match=rf"^shapes\[0\]: .*\b{dtype}\b.*float32"):
        import_model(Apply(lambda x: x + x), (unsupported,))
    model = Apply(lambda x: x)
    model.register_buffer("table", unsupported)
    if not unsupported.is_complex():  # PyTorch computes with complex weights
        with pytest.raises(InvalidModel, match=rf"^Apply: table .*\b{dtype}\..*float32"):
            import_model(model, (torch.zeros(3, 4),))
    reason = "TVM cannot import .*" if unsupported.is_complex() else ""
    named = "" if unsupported.is_complex() else rf" .*\b{dtype}\..*float32"
    with pytest.raises(UnsupportedOperator, match=rf"^Apply: {reason}aten\._to_copy\.default{named}"):
        import_model(Apply(lambda x: x.to(unsupported.dtype).float()), (torch.zeros(3, 4),))


def test_operators_that_tvm_computes_in_float32_only_are_refused() -> None:
    model = nn.Upsample(scale_factor=2, mode="bilinear")
    with pytest.raises(UnsupportedOperator, match=r"upsample_bilinear2d\.vec .*float64.*float32"):
        import_model(model, (torch.zeros(1, 1, 4, 4, dtype=torch.float64),))
    places = Apply(lambda x: functional.max_pool2d(x, 2, return_indices=True)[1])
    with pytest.raises(UnsupportedOperator, match=r"aten\.max_pool2d_with_indices\.default\b.*no other operators"):
        import_model(places, (torch.zeros(1, 1, 4, 4),))
