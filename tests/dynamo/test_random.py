"""Test graphs of torch.compile that draw random numbers: PyTorch draws them, in the order of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.random_models import RANDOM, Layer
from torch import Tensor, nn
from torch.nn import functional

from felixlike.errors import NotCompiledWarning

_X = torch.linspace(-2, 2, 24).reshape(3, 8)


@pytest.fixture(autouse=True)
def _no_captured_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(model: Any) -> Any:
    return torch.compile(model, backend="felixlike", options={"background": False, "seconds": 0})


def _seeded(model: Any, seed: int = 3) -> tuple[Any, Tensor]:
    """Return the outputs of a model for a seed, and the state of PyTorch's generator afterwards."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return model(_X), torch.get_rng_state()


def _assert_draws_like_eager(model: Any, *, exact: bool = False) -> None:
    """Compare a compiled model with eager PyTorch. The first call compiles it."""
    compiled = _compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        for seed in (3, 3, 4):
            got, state = _seeded(compiled, seed)
            want, expected = _seeded(model, seed)
            rtol, atol = (0.0, 0.0) if exact else (1e-4, 1e-5)
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol)
            assert torch.equal(state, expected)


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_draw_like_eager(name: str) -> None:
    function = RANDOM[name]
    _assert_draws_like_eager(Layer(lambda layer, x: function(layer, torch.tanh(x) * 2).float() * 0.5).eval())


def _several(x: Tensor) -> tuple[Tensor, ...]:
    """Draw independent and dependent numbers, of which none is first by its inputs alone."""
    kept = functional.dropout(x, 0.5, training=True)
    first, second = torch.rand(3, 8), torch.rand(3, 8)
    return torch.randn(2), kept, torch.bernoulli(second), first, torch.rand_like(kept), torch.relu(x)


def test_operators_draw_in_the_order_of_the_graph() -> None:
    _assert_draws_like_eager(_several, exact=True)


def test_operators_with_equal_arguments_draw_different_numbers() -> None:
    def difference(x: Tensor) -> Tensor:
        return torch.relu(torch.rand(3, 8) - torch.rand(3, 8)) + torch.relu(x)

    _assert_draws_like_eager(difference)
    got, _ = _seeded(_compiled(difference))
    assert (got != torch.relu(_X)).any()


def test_numbers_that_are_not_used_are_drawn() -> None:
    def model(x: Tensor) -> Tensor:
        torch.rand(5)
        y = torch.relu(x) + torch.rand_like(x)
        torch.rand(5)
        return y * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)  # of the last one
        got, state = _seeded(_compiled(model))
    want, expected = _seeded(model)
    torch.testing.assert_close(got, want)
    assert torch.equal(state, expected)


class _Layers(nn.Module):
    """A transformer layer in training mode, with dropout of attention and of an LSTM's layers, and one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
        self.drop = nn.Dropout(0.4, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x[None])
        result: Tensor = self.drop(torch.tanh(self.lstm(h)[0])) + h
        return result


def test_layers_in_training_mode_draw_like_eager() -> None:
    torch.manual_seed(0)
    _assert_draws_like_eager(_Layers().train())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x) + torch.rand(3, 8, generator=torch.Generator().manual_seed(1)),
        lambda x: functional.dropout(x, 0.5, training=True),
    ],
    ids=["its own generator", "nothing else"],
)
def test_other_graphs_are_run_by_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        warnings.filterwarnings("ignore", "Dynamo does not know how to trace")  # PyTorch 2.11, of a Generator
        got, state = _seeded(_compiled(function))
    want, expected = _seeded(function)
    assert torch.equal(got, want)
    assert torch.equal(state, expected)
