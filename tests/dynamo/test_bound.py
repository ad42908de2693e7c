"""Tests for graphs bound to their weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn

from felixlike.dynamo.bound import Bound


class Scaled(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(x) * weight


class Counting(nn.Module):
    """A graph of it has an attribute, which a call changes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * self.seen.add_(x.sum()) * weight


def test_copies_share_a_graph_without_attributes() -> None:
    bound = Bound(fx.symbolic_trace(Scaled()), [torch.ones(3), torch.full((3,), 2.0)], [0])
    copied = copy.deepcopy(bound).double()
    assert copied._graph is bound._graph
    assert copied(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert torch.equal(bound(torch.ones(3)), torch.tanh(torch.ones(3)) * 2)


def test_copies_of_a_graph_with_attributes_have_their_own() -> None:
    bound = Bound(fx.symbolic_trace(Counting()), [torch.ones(3), torch.ones(3)], [0])
    copied = copy.deepcopy(bound)
    copied(torch.ones(3))
    assert copied._graph.seen == 3
    assert bound._graph.seen == 0
