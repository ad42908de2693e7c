"""States that models change are eager's after many calls, under torch.compile and with optimize, save and load."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike.errors import NotCompiledWarning

CALLS = 20


class Stateful(nn.Module):
    """A counter, a ring buffer of the latest inputs, a running mean, and a table that is written in places."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Tensor
        self.ring: Tensor
        self.mean: Tensor
        self.table: Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ring", torch.zeros(5, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("table", torch.zeros(7, 8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        row = self.linear(x).mean(0)
        self.ring.index_copy_(0, (self.count % 5)[None], row[None])
        self.mean.mul_(0.9).add_(row, alpha=0.1)
        self.table[rows] = x[: rows.shape[0]]
        self.count += 1
        return self.ring.sum(0) + self.mean + self.table.amax(0)


def _inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8), torch.randperm(7)[:3]


def _agree(model: Any, state: Any, original: nn.Module) -> None:
    """Check outputs and every buffer after each of many calls."""
    with torch.no_grad():
        for _ in range(CALLS):
            x, rows = _inputs()
            torch.testing.assert_close(model(x, rows), original(x, rows))
            for name, buffer in original.named_buffers():
                torch.testing.assert_close(state[name], buffer)


def test_buffers_of_an_optimized_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = Stateful().eval()
    fast = fx.optimize(deepcopy(original), _inputs(), trials=0, progress=False)
    fast.save(tmp_path / "model.flx")
    for model in (fast, fx.load(tmp_path / "model.flx")):
        _agree(model, model.state, deepcopy(original))


def test_buffers_of_a_compiled_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = Stateful().eval()
    mine = deepcopy(original)
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        _agree(torch.compile(mine, backend="felixlike", options=options), dict(mine.named_buffers()), original)
    torch._dynamo.reset()


def test_running_statistics_of_training_mode(tmp_path: Path) -> None:
    """Under `no_grad` a batch norm in training mode normalizes by the batch, and changes its running statistics."""
    torch.manual_seed(0)
    original = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).train()
    mine = deepcopy(original)
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    compiled = torch.compile(mine, backend="felixlike", options=options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", NotCompiledWarning)
        for _ in range(CALLS):
            x = torch.randn(2, 3, 9, 9)
            torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-5)
            for buffer, wanted in zip(mine.buffers(), original.buffers(), strict=True):
                torch.testing.assert_close(buffer, wanted, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
