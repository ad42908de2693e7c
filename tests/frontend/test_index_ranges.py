"""Tests for the limits of index inputs, which follow from the tables that they index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.faulty import te
from support.models import Apply
from torch import Tensor, nn

from felixlike.frontend.importers.importer import _read
from felixlike.frontend.index_ranges import UNKNOWN, index_limits

TABLE = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.zeros(2, 6, dtype=torch.int64)
F = nn.functional


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        (lambda i: F.embedding(i, TABLE), 50),
        (lambda i: F.embedding(i.int(), TABLE), 50),
        (lambda i: F.embedding(i.T.reshape(3, 4)[1:], TABLE), 50),
        (lambda i: F.embedding(torch.cat((i, i)), TABLE[:20]) + F.embedding(i, TABLE).repeat(2, 1, 1), 20),
        (lambda i: TABLE[i], 50),
        (lambda i: TABLE[:, i], 16),
        (lambda i: TABLE[i, i] * 2, 16),
        (lambda i: torch.take(TABLE, i) * 2, 800),
        (lambda i: torch.gather(TABLE, 1, i) * 2, 16),
        (lambda i: torch.scatter(TABLE, 0, i, 1.5), 50),
        (lambda i: F.embedding(i + 3, TABLE), 47),
        (lambda i: F.embedding(i - 3, TABLE), 50),
        (lambda i: F.embedding(i * 3 + 2, TABLE), 16),
        (lambda i: F.embedding(i + torch.arange(6), TABLE), 25),
        (lambda i: F.embedding(torch.cumsum(i, 1), TABLE), 9),
        (lambda i: F.embedding(i + i.flip(0), TABLE), 25),
        (lambda i: F.embedding(torch.where(i > 3, i, 0), TABLE), 50),
        (lambda i: F.embedding(torch.bitwise_xor(i, i.T.reshape(2, 6)), TABLE), UNKNOWN),
        (lambda i: F.embedding(i.clamp(0, 10), TABLE), None),
        (lambda i: F.embedding((i != 1).long(), TABLE), None),
        (lambda i: i * 2.5, None),
    ],
)
def test_limits_in_pytorch_models(function: Callable[[Tensor], Tensor], limit: int | None) -> None:
    assert index_limits(_read(Apply(function), (IDS,)).module).get(0) == limit


def test_limits_in_onnx_models() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["w", "ids"], ["y"]),
            helper.make_node("GatherElements", ["x", "j"], ["z"], axis=1),
        ],
        "net",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, [3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 9]),
            helper.make_tensor_value_info("j", TensorProto.INT64, [4, 2]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b"]) for name in "yz"],
        [numpy_helper.from_array(np.ones((30, 5), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert index_limits(_read(model, None).module) == {0: 30, 2: 9}


def test_limits_in_a_primfunc() -> None:
    table, ids = te.placeholder((7, 4), name="T"), te.placeholder((3,), "int32", name="I")
    rows: Any = te.compute((3, 4), lambda i, j: table[ids[i], j] * 2, name="R")
    assert index_limits(_read(te.create_prim_func([table, ids, rows]), None).module) == {1: 7}
