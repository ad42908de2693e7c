"""Tests for the effects of the graph passes, and for lookups with indices outside of their tables."""

from typing import Any

import pytest
import torch
from support.models import OPERATORS, Apply

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.runtime import compile_model


def task_names(imported: Any) -> list[str]:
    return [task.name for task in imported.tasks]


def test_batch_norm_is_folded_into_its_convolution() -> None:
    model, inputs = OPERATORS["conv2d_batch_norm_relu"]()
    assert [name.replace("_strided_slice", "") for name in task_names(import_model(model, inputs))] == [
        "fused_conv2d_add_relu"
    ]


def test_constants_are_computed_at_import() -> None:
    weight = torch.randn(3, 4)
    model = Apply(lambda x: x @ (weight.t() * 2 + 1))
    assert task_names(import_model(model, (5, 3 + 1))) == ["matmul"]


def test_equal_expressions_are_computed_once() -> None:
    imported = import_model(Apply(lambda x, w: (x @ w) + (x @ w)), ((2, 3), (3, 4)))
    assert sum(task.weight for task in imported.tasks) == 1


@pytest.mark.parametrize("last", [True, False])
def test_a_reshape_is_a_view(last: bool) -> None:
    model = Apply(lambda x: torch.softmax(x, -1).reshape(-1) if last else torch.softmax(x.reshape(2, -1), -1))
    imported = import_model(model, (4, 6))
    assert task_names(imported) == ["softmax"]
    names = {str(var.name_hint) for var in imported.module.get_global_vars()}
    assert names == {"main", "softmax"}


def test_negative_indices_count_from_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    table, indices = torch.randn(5, 3), torch.tensor([-1, 0, -5])
    compiled = compile_model(import_model(Apply(lambda x, i: x[i]), (table, indices)))
    assert torch.equal(compiled(table, indices), table[indices])
    assert "segfault" not in capfd.readouterr().err


def test_an_index_outside_an_embedding_gives_nan() -> None:
    model, (ids,) = OPERATORS["embedding"]()
    compiled = compile_model(import_model(model, ids))
    ids = ids.clone()
    ids[0, 1], ids[1, 2] = 10**9, -1
    got = compiled(ids)
    assert got.isnan().all(dim=-1).nonzero().tolist() == [[0, 1], [1, 2]]
    assert int(got.isnan().sum()) == 2 * got.shape[-1]


def test_sorting_uses_tvms_kernels() -> None:
    imported = import_model(Apply(lambda x: torch.sort(x)[0]), (4, 6))
    assert all(isinstance(imported.module[name], _tvm.PrimFunc) for name in task_names(imported))
    assert task_names(imported)
