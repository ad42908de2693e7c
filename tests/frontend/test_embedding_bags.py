"""Bags of embeddings are one kernel on CPUs and agree with PyTorch; other cases are decomposed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor
from torch.nn import functional

from felixlike.frontend import import_model
from felixlike.frontend.importers.input_shapes import Example, Given, Input
from felixlike.runtime import compile_model

ROWS = torch.tensor([3, 0, 3, 6, 3, 1, 1])
OFFSETS = torch.tensor([0, 2, 2, 3, 7])


def _table(width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(7, width, generator=torch.Generator().manual_seed(0)).to(dtype)


def _assert_agrees(table: Tensor, *inputs: Tensor, kernel: bool = True, **options: Any) -> None:
    def model(rows: Tensor, offsets: Tensor, *factors: Tensor) -> Tensor:
        return functional.embedding_bag(rows, table, offsets, per_sample_weights=next(iter(factors), None), **options)

    imported = import_model(Apply(model), inputs)
    assert any(task.name == "embedding_bag" for task in imported.tasks) == kernel
    got, want = compile_model(imported)(*inputs), model(*inputs)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("width", [1, 5, 16, 31, 128, 300])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_widths_of_tables(width: int, mode: str) -> None:
    _assert_agrees(_table(width), ROWS, OFFSETS, mode=mode)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype, index: torch.dtype) -> None:
    _assert_agrees(_table(20, dtype), ROWS.to(index), OFFSETS.to(index))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [3, 1, -1])
def test_rows_that_are_skipped(mode: str, padding: int) -> None:
    _assert_agrees(_table(20), ROWS, OFFSETS, mode=mode, padding_idx=padding)


def test_skipped_and_weighted_infinities_do_not_count() -> None:
    table = _table(20)
    table[3, 4], table[0, 2] = math.inf, math.nan
    _assert_agrees(table, ROWS, OFFSETS, mode="sum", padding_idx=3)
    _assert_agrees(table, ROWS, OFFSETS, torch.linspace(-1, 1, 7), mode="sum")


def test_factors_and_the_end_of_the_last_bag() -> None:
    _assert_agrees(_table(20), ROWS, OFFSETS, torch.linspace(-1, 1, 7), mode="sum")
    _assert_agrees(_table(20), ROWS, OFFSETS, mode="mean", include_last_offset=True)
    _assert_agrees(_table(20), ROWS, torch.tensor([0]), mode="mean")


def test_bags_of_one_length() -> None:
    table, rows = _table(20), torch.arange(12).reshape(4, 3) % 7
    got = compile_model(import_model(Apply(lambda rows: functional.embedding_bag(rows, table)), (rows,)))(rows)
    torch.testing.assert_close(got, functional.embedding_bag(rows, table))


def test_rows_outside_of_the_table_give_nan() -> None:
    """PyTorch raises an error, which a kernel cannot."""
    table = _table(20)
    model = Apply(lambda rows, offsets: functional.embedding_bag(rows, table, offsets, mode="sum"))
    compiled = compile_model(import_model(model, (ROWS, OFFSETS)))
    rows = ROWS.clone()
    rows[0], rows[3] = -1, 7
    got, want = compiled(rows, OFFSETS), model(ROWS, OFFSETS)
    assert got[[0, 3]].isnan().all()
    torch.testing.assert_close(got[[1, 2, 4]], want[[1, 2, 4]])


@pytest.mark.parametrize("mode", ["max"])
def test_other_bags_are_decomposed(mode: str) -> None:
    _assert_agrees(_table(20), ROWS, OFFSETS, mode=mode, kernel=False)


def test_inputs_can_be_drawn_from_shapes_alone() -> None:
    table = _table(20)
    model = Apply(lambda rows, offsets: functional.embedding_bag(rows, table, offsets))
    drawn = Given(positional=tuple(Input((Example((size,), "int64"),)) for size in (9, 4)))
    imported = import_model(model, drawn)
    rows, offsets = imported.examples
    assert len(rows.unique()) > 1
    torch.testing.assert_close(compile_model(imported)(rows, offsets), model(rows, offsets))
