"""Kernels write into the inputs and buffers that a model changes where that is safe, and states are eager's."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx


class Cache(nn.Module):
    """A buffer that a function changes, given the new rows and their places.

    Args:
        change: Changes the buffer and returns the output.
    """

    def __init__(self, change: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.change = change
        self.cache: Tensor
        self.register_buffer("cache", torch.arange(2.0 * 6 * 16).reshape(2, 6, 16))

    def forward(self, rows: Tensor, at: Tensor) -> Any:
        return self.change(self.cache, rows, at)


def _one_place(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, rows)
    return cache.sum(1)


def _old_and_new(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    before = cache * 2
    cache.index_copy_(1, at, rows)
    return before + cache


def _where(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    cache.copy_(torch.where(rows > 0.5, rows, cache))
    return cache.sum(1)


def _last_place(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    cache[..., at] = rows[..., :1]
    return cache.sum(1)


def _every_place(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    cache.add_(rows)
    return cache.sum(1)


def _moved(cache: Tensor, rows: Tensor, at: Tensor) -> Tensor:
    cache.copy_(torch.where(rows > 0.5, rows, cache.flip(1)))
    return cache.sum(1)


_CHANGES = {change.__name__: change for change in (_one_place, _old_and_new, _where, _last_place, _every_place, _moved)}

_IN_PLACE = {"_one_place", "_where", "_last_place"}
"""Changes that kernels write in place. The others need the old tensor after the new one, or elsewhere."""


def _kernels(optimized: Any) -> list[str]:
    lowered = optimized.compiled.lowered if hasattr(optimized, "compiled") else optimized._compiled.lowered
    return [str(name.name_hint) for name in lowered.get_global_vars() if "in_place" in str(name.name_hint)]


@pytest.mark.parametrize("name", _CHANGES)
def test_states_are_eagers(name: str) -> None:
    model = Cache(_CHANGES[name]).eval()
    fast = fx.optimize(deepcopy(model), (torch.rand(2, 1, 16), torch.tensor([3])), trials=0, progress=False)
    assert bool(_kernels(fast)) == (name in _IN_PLACE)
    buffer = fast.state["cache"]
    for step in range(20):
        rows, at = torch.rand(2, 1, 16), torch.tensor([step % 6])
        torch.testing.assert_close(fast(rows, at), model(rows, at), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(buffer, model.cache, rtol=0, atol=1e-5)


def test_a_saved_model_writes_in_place(tmp_path: Any) -> None:
    model = Cache(_one_place).eval()
    example = (torch.rand(2, 1, 16), torch.tensor([3]))
    fx.optimize(deepcopy(model), example, trials=0, progress=False).save(tmp_path / "model.flx")
    loaded = fx.load(tmp_path / "model.flx")
    for step in range(6):
        rows, at = torch.rand(2, 1, 16), torch.tensor([step])
        torch.testing.assert_close(loaded(rows, at), model(rows, at), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loaded.state["cache"], model.cache, rtol=0, atol=0)


def test_inputs_that_are_not_contiguous_are_written() -> None:
    def put(cache: Tensor, rows: Tensor) -> Tensor:
        cache.index_copy_(1, torch.tensor([2]), rows)
        return cache.sum(1)

    class Put(nn.Module):
        def forward(self, cache: Tensor, rows: Tensor) -> Tensor:
            return put(cache, rows)

    fast = fx.optimize(Put(), (torch.zeros(2, 6, 16), torch.ones(2, 1, 16)), trials=0, progress=False)
    assert _kernels(fast)
    cache = torch.zeros(6, 2, 16).transpose(0, 1)
    assert not cache.is_contiguous()
    result = fast(cache, torch.ones(2, 1, 16))
    wanted = torch.zeros(2, 6, 16)
    torch.testing.assert_close(result, put(wanted, torch.ones(2, 1, 16)))
    torch.testing.assert_close(cache, wanted)
