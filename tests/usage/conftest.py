"""Shared fixtures for tests of many ways to use felixlike. Each gives a right output or a named error with a remedy.

Each file has one theme, and each case one way of use. Models are tiny, and nothing is measured (rounds=0) unless the
case is about measuring. A way of use that turns out to be broken becomes a case here, next to similar ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import felixlike as fx


@pytest.fixture(scope="session")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).eval()


@pytest.fixture(scope="session")
def x() -> torch.Tensor:
    return torch.randn(2, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def fast(model: nn.Module, x: torch.Tensor) -> fx.Optimized:
    return fx.optimize(model, (x,), 0, progress=False)


@pytest.fixture(scope="session")
def saved(fast: fx.Optimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.flx"
    fast.save(path)
    return path
