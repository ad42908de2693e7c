"""Products with repeated or scaled factors read these where they are repeated from, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

GROUP = 3


def _repeated(x: Tensor) -> Tensor:
    """Repeat matrices for their neighbours, as transformers' repeat_kv does."""
    *batch, heads, rows, columns = x.shape
    return x[..., None, :, :].expand(*batch, heads, GROUP, rows, columns).reshape(*batch, -1, rows, columns)


_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scores": lambda q, k: q @ _repeated(k).mT,
    "scaled scores": lambda q, k: (q * 0.5) @ (_repeated(k).mT * 0.5),
    "values": lambda q, k: q.exp() @ _repeated(k.mT.contiguous()),
    "of flat batches": lambda q, k: torch.bmm(q.flatten(0, 1), _repeated(k).mT.mul(0.25).flatten(0, 1)),
    "scaled only": lambda q, k: q[:, ::GROUP] @ (k.mT * 0.5),
    "repeated first": lambda q, k: q @ k[:, None].expand(-1, GROUP, -1, -1, -1).flatten(1, 2).mT,  # no groups
    "scaled by more": lambda q, k: q @ (_repeated(k).mT * 3.0),
}


def _tensors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 2 * GROUP, 1, 8), torch.randn(2, 2, 40, 8)


@pytest.mark.parametrize("name", _PRODUCTS)
def test_products_are_unchanged(name: str) -> None:
    output = compile_model(import_model(Apply(_PRODUCTS[name]), _tensors()))(*_tensors())
    torch.testing.assert_close(output, _PRODUCTS[name](*_tensors()), rtol=1e-4, atol=1e-5)


def _elements(name: str) -> list[int]:
    """Return the number of elements of each tensor that a kernel writes."""
    imported = import_model(Apply(_PRODUCTS[name]), _tensors())
    written = [list(imported.module[name].params)[-1] for names in imported.functions.values() for name in names]
    return [torch.Size([int(size) for size in buffer.shape]).numel() for buffer in written]


@pytest.mark.parametrize("name", ["scores", "scaled scores", "of flat batches", "scaled only"])
def test_keys_are_neither_repeated_nor_scaled(name: str) -> None:
    keys = _tensors()[1].numel()
    assert max(_elements(name)) < keys


def test_a_repetition_that_forms_no_groups_is_computed() -> None:
    assert max(_elements("repeated first")) >= GROUP * _tensors()[1].numel()


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch.export 2.11 refuses every dynamic length here")
def test_dynamic_lengths() -> None:
    length = fx.Dim("T", range(1, 65))
    queries, keys = _tensors()
    model: Any = Apply(_PRODUCTS["scaled scores"])
    fast = fx.optimize(model, (queries, keys), dynamic_shapes=(None, {2: length}), trials=0, progress=False)
    for size in (1, 17, 64):
        keys = torch.randn(2, 2, size, 8)
        torch.testing.assert_close(fast(queries, keys), model(queries, keys), rtol=1e-4, atol=1e-5)
