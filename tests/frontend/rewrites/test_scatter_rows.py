"""Scatters of whole rows agree with PyTorch, and those that the kernel cannot write are left to TVM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor
from torch.nn import functional

from felixlike.frontend import import_model
from felixlike.runtime import compile_model

ROWS = torch.tensor([3, 0, 3, 6, 3])


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)


def _compiled(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[bool, Tensor]:
    """Return whether the kernel is used, and the result."""
    imported = import_model(Apply(function), inputs)
    names = [variable.name_hint for variable in imported.module.get_global_vars()]
    return any(name.startswith("scatter_rows") for name in names), compile_model(imported)(*inputs)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        *((width, torch.float32) for width in (1, 5, 16, 40, 128, 272)),
        *((width, dtype) for width in (5, 40) for dtype in (torch.float64, torch.int32, torch.int64)),
    ],
)
def test_rows_are_added_in_order(width: int, dtype: torch.dtype) -> None:
    x, source = _x(7, width, dtype=dtype), _x(5, width, dtype=dtype)
    used, got = _compiled(lambda x, rows, y: torch.index_add(x, 0, rows, y), x, ROWS, source)
    assert used
    torch.testing.assert_close(got, torch.index_add(x, 0, ROWS, source), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_are_assigned_and_negative_indices_count_from_the_end(dtype: torch.dtype) -> None:
    x, source, rows = _x(7, 40), _x(3, 40), torch.tensor([-1, 0, -7 + 2], dtype=dtype)

    def assigned(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
        return x.index_put((rows,), y)

    used, got = _compiled(assigned, x, rows, source)
    assert used
    torch.testing.assert_close(got, assigned(x, rows.long(), source), rtol=0, atol=0)


def test_other_dimensions_are_moved_to_the_front() -> None:
    x, source = _x(3, 7, 20), _x(3, 5, 20)
    used, got = _compiled(lambda x, rows, y: torch.index_add(x, 1, rows, y, alpha=2), x, ROWS, source)
    assert used
    torch.testing.assert_close(got, torch.index_add(x, 1, ROWS, source, alpha=2))


@pytest.mark.parametrize("options", [{}, {"mode": "sum"}, {"padding_idx": 3}, {"mode": "max"}])
def test_bags_of_embeddings(options: dict[str, Any]) -> None:
    table = _x(7, 20)
    offsets = torch.tensor([0, 2, 2])
    _, got = _compiled(lambda rows, starts: functional.embedding_bag(rows, table, starts, **options), ROWS, offsets)
    torch.testing.assert_close(got, functional.embedding_bag(ROWS, table, offsets, **options))


def test_other_scatters_are_left_to_tvm() -> None:
    """These are scatters of single elements, along the last dimension, and of other reductions."""
    x, y, places = _x(3, 2), _x(2, 2), torch.tensor([[0, 1], [2, 0]])

    def by_element(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return torch.scatter_add(x, 0, i, y)

    def by_column(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return torch.scatter_add(x, 1, i[:, :1].expand(2, 2) % 2, y)

    def largest(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return torch.scatter_reduce(x, 0, i[:, :1].expand(2, 2), y, "amax")

    def of_bytes(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return torch.index_add(x.to(torch.int8), 0, i[0], y.to(torch.int8))

    for function in (by_element, by_column, largest, of_bytes):
        used, got = _compiled(function, x, places, y)
        assert not used
        torch.testing.assert_close(got, function(x, places, y))
