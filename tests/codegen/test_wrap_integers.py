"""Integers of kernels wrap as PyTorch's do, where TVM and LLVM would take them not to exceed their type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor

import felixlike as fx
from felixlike import _tvm
from felixlike.codegen.passes import wrap_integers
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a hash": lambda x: (x * 1000003 + 12345) % 97,
    "a hash as an index": lambda x: torch.arange(97)[((x ^ 77) * 40503).long() % 97],
    "the sum of a hash": lambda x: (x * 1000003).sum(),
    "a wider product": lambda x: (x * 1000003).to(torch.int64),
    "a wider difference": lambda x: (x - 2000000000).to(torch.int64),
    "a square": lambda x: (x * x).to(torch.int64),
    "a negative": lambda x: (-x).to(torch.int64),
    "an absolute value": lambda x: x.abs() % 5,
    "a negative absolute value": lambda x: x.abs() < 0,
    "the next number": lambda x: x + 1 > x,
    "the sign of a product": lambda x: x * 3 < 0,
    "a halved double": lambda x: x * 2 // 2,
    "a halved sum": lambda x: (x * 4 + 2) // 2,
    "a truncated quotient": lambda x: torch.div(x * 1000003, 7, rounding_mode="trunc"),
    "the larger neighbour": lambda x: torch.maximum(x + 1, x),
    "running sums": lambda x: x.cumsum(0, dtype=x.dtype).to(torch.int64),
    "a sum of squares": lambda x: (x * x).sum(dtype=x.dtype) % 7,
    "a large number": lambda x: (x + 300) * 77777,
    "a comparison with a large number": lambda x: x > 300,
    "limits": lambda x: x.clamp(min=-3),
    "bits": lambda x: x & 300,
}


def numbers(dtype: torch.dtype) -> Tensor:
    """Return numbers of all sizes, the least and the largest first."""
    limits = torch.iinfo(dtype)
    drawn = torch.randint(limits.min, limits.max, (61,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    return torch.cat([torch.tensor([limits.min, limits.max, 0]), drawn]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_integers_wrap_as_in_pytorch(name: str, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    expected = EXPRESSIONS[name](x)
    compiled = compile_model(import_model(Apply(EXPRESSIONS[name]), torch.zeros_like(x), "cpu"))
    result = compiled(x)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


def test_tuned_kernels_wrap(own_cache: object) -> None:
    x = numbers(torch.int64).repeat(64).reshape(64, 64)
    model = Apply(lambda x: ((x * 6364136223846793005 + 1) % 1009).sum(-1))
    tuned = fx.optimize(model, torch.zeros_like(x), trials=4, strategy="random", progress=False)
    assert torch.equal(tuned(x), model(x))


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (lambda x: x[0] % 7 * 3 + 1, False),  # the remainder is less than 7
        (lambda x: x[0].astype("int64") + 1, False),
        (lambda x: x[x[0] % 4 + 1], False),
        (lambda x: x[0] + 1, True),
        (lambda x: x[x[0] + 1], True),
        (lambda x: x[0].astype("float32") * _tvm.tirx.const(3, "float32"), False),
    ],
)
def test_only_what_may_exceed_its_type_is_changed(value: Callable[[Any], Any], changed: bool) -> None:
    x = _tvm.te.placeholder((8,), "int32", name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((8,), lambda _: value(x), name="y")])
    module = _tvm.IRModule({"main": func})
    assert _tvm.structural_equal(wrap_integers(module), module) is not changed


def test_floats_and_indices_stay() -> None:
    x = _tvm.te.placeholder((8, 8), name="x")
    func = _tvm.te.create_prim_func(
        [x, _tvm.te.compute((8, 4), lambda i, j: x[7 - i, j * 2 + 1] * 3.0 - 1.0, name="y")]
    )
    module = _tvm.IRModule({"main": func})
    assert _tvm.structural_equal(wrap_integers(module), module)
