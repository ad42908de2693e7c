"""Layers that draw random numbers, by the name of the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """A module whose forward calls `function(layer, x)`."""

    def __init__(self, function: Callable[[Layer, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def attention(x: Tensor, dropout: float) -> Tensor:
    q = x[None]
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout)


RANDOM: dict[str, Callable[[Layer, Tensor], Any]] = {
    "randn_like": lambda _, x: x + torch.randn_like(x),
    "rand": lambda _, x: x + torch.rand(8),
    "bernoulli": lambda _, x: torch.bernoulli(x.sigmoid()),
    "dropout": lambda _, x: functional.dropout(x, 0.5, training=True),
    "alpha_dropout": lambda _, x: functional.alpha_dropout(x, 0.5, training=True),
    "feature_dropout": lambda _, x: functional.dropout1d(x[None], 0.5, training=True),
    "rrelu": lambda _, x: functional.rrelu(x, training=True),
    "exponential_": lambda _, x: functional.gumbel_softmax(x),
    "uniform_": lambda _, x: x + torch.empty_like(x).uniform_(),
    "bernoulli_": lambda _, x: x.clone().bernoulli_(0.0),
    "binomial": lambda _, x: torch.binomial(torch.ones_like(x) * 4, x.sigmoid()),
    "normal": lambda _, x: torch.normal(x, 1.0),
    "multinomial": lambda _, x: torch.multinomial(x.sigmoid(), 2),
    "randperm": lambda _, x: x[torch.randperm(3)],
    "scaled_dot_product_attention": lambda _, x: attention(x, 0.2),
}
