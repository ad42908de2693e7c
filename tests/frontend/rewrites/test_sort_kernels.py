"""Sorts and selections of long rows agree with PyTorch, for all dtypes, orders and ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor

from felixlike.frontend import import_model
from felixlike.frontend.rewrites.sort_kernels import LEAST, MOST_INSERTED
from felixlike.runtime import compile_model


def _assert_equal(function: Callable[[Tensor], Any], x: Tensor) -> None:
    got, want = compile_model(import_model(Apply(function), (x,)))(x), function(x)
    for ours, theirs in zip(*((y,) if isinstance(y, Tensor) else y for y in (got, want)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def _rows(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _special() -> Tensor:
    x = _rows(5, 300)
    x[0, [3, 70]], x[1, 4], x[1, 5], x[2, 5] = math.nan, -math.nan, math.inf, -math.inf
    x[3, :100], x[3, 50], x[4] = 0.0, -0.0, 1.0
    return x


@pytest.mark.parametrize("descending", [False, True])
def test_sorts_are_stable_and_treat_nan_as_largest(descending: bool) -> None:
    _assert_equal(lambda x: tuple(torch.sort(x, dim=-1, stable=True, descending=descending)), _special())


@pytest.mark.parametrize(("shape", "dim"), [((300, 7), 0), ((3, 100, 5), 1), ((500,), 0), ((2, LEAST), -1)])
def test_sorts_along_other_dimensions(shape: tuple[int, ...], dim: int) -> None:
    _assert_equal(lambda x: tuple(torch.sort(x, dim)), _rows(*shape))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_values_alone_are_sorted_without_positions(dtype: torch.dtype, descending: bool) -> None:
    x = _special() if dtype.is_floating_point else _rows(5, 300) * 50
    x = x.to(dtype)
    model = Apply(lambda x: torch.sort(x, -1, descending)[0])
    imported = import_model(model, (x,))
    assert not any(name.startswith("gather") for name in (task.name for task in imported.tasks))
    got = compile_model(imported)(x)
    torch.testing.assert_close(got, model(x), rtol=0, atol=0, equal_nan=True)
    assert got[3].signbit().sum() == x[3].signbit().sum()


def test_values_that_are_read_with_their_positions() -> None:
    _assert_equal(lambda x: (lambda ordered: ordered[0] * 2 + ordered[1])(torch.sort(x, -1)), _rows(3, 200))
    _assert_equal(lambda x: torch.sort(x, 0)[0] + 1, _rows(200, 3))
    _assert_equal(lambda x: x.gather(1, x.argsort(1)) + x.argsort(1), _rows(3, 200))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64, torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = (_rows(3, 200) * 50).to(dtype)
    _assert_equal(lambda x: tuple(torch.sort(x, dim=-1, stable=True)), x)
    _assert_equal(lambda x: (torch.topk(x, 9)[0], torch.topk(x, 9, largest=False)[0]), x)
    _assert_equal(lambda x: (*torch.sort(x, stable=True), torch.topk(x, 2)[0]), x[:, :5].contiguous())


@pytest.mark.parametrize("count", [1, 10, MOST_INSERTED, MOST_INSERTED + 1, 300])
@pytest.mark.parametrize("largest", [True, False])
def test_selections(count: int, largest: bool) -> None:
    _assert_equal(lambda x: tuple(torch.topk(x, count, largest=largest)), _rows(3, 300))
    _assert_equal(lambda x: torch.topk(x, count, largest=largest)[0], _special())


@pytest.mark.parametrize("order", [torch.sort, lambda x: (torch.sort(x, descending=True)[0],)])
def test_selections_from_ordered_rows(order: Callable[[Tensor], Any]) -> None:
    _assert_equal(lambda x: tuple(torch.topk(x, 7)), order(_rows(2, 333))[0])


def test_kth_values() -> None:
    _assert_equal(lambda x: tuple(torch.kthvalue(x, 10)), _rows(4, 500))
    _assert_equal(lambda x: tuple(torch.kthvalue(x, 3, 0, True)), _rows(9, 5))


@pytest.mark.parametrize("size", [9, 300])
def test_medians(size: int) -> None:
    x = _rows(4, size)
    _assert_equal(lambda x: tuple(torch.median(x, 1)), x)
    _assert_equal(lambda x: tuple(torch.median(x, 0, True)), x)
    x[1, 3] = math.nan
    _assert_equal(lambda x: tuple(torch.median(x, 1)), x)


def test_short_rows_are_sorted_by_tvm() -> None:
    def calls(size: int) -> int:
        module = import_model(Apply(lambda x: torch.sort(x)[0]), (_rows(2, size),)).module
        return sum("positions" in variable.name_hint for variable in module.get_global_vars())

    assert (calls(LEAST - 1), calls(LEAST)) == (0, 1)


@pytest.mark.parametrize("size", [LEAST - 1, LEAST])
@pytest.mark.parametrize("function", [lambda x: tuple(x.topk(5, 0)), lambda x: tuple(x.sort(0))], ids=["topk", "sort"])
def test_elements_are_gathered_without_checks_of_their_positions(function: Callable[[Tensor], Any], size: int) -> None:
    x = _rows(size, 3)
    names = {variable.name_hint for variable in import_model(Apply(function), (x,)).module.get_global_vars()}
    assert "gather" in names
    assert not any("minimum" in name for name in names)
    _assert_equal(function, x)
