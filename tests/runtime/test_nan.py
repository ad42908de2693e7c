"""Tests for NaN, infinities and signed zeros: outputs match PyTorch, untuned and with schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Apply
from torch.nn import functional

import felixlike as fx
from felixlike import _tvm, codegen
from felixlike._tvm import te, topi
from felixlike.frontend import import_model
from felixlike.frontend.task import make_task
from felixlike.hardware import imitated_target
from felixlike.runtime import compile_model
from felixlike.symbolic import sketches

_INF, _NAN = math.inf, math.nan
_ROWS = torch.tensor(
    [
        *([_NAN, 1, -2, 3], [1, _NAN, -1, 0], [_INF, 2, -_INF, 3], [-0.0, 0.0, -0.0, 0.0]),
        *([-_INF] * 4, [_INF] * 4, [3, 2, 1, _NAN], [_NAN] * 4),
    ]
)
_OTHERS = _ROWS.flip(0).contiguous()
_IMAGE = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
_IMAGE[0, 0, 3, 3], _IMAGE[0, 1, 0, 0] = _NAN, _INF
_IMAGE[0, 1, 4:, 4:] = _IMAGE[0, 1, :3, :3] = -_INF

_ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "leaky relu": functional.leaky_relu,
    "elu": functional.elu,
    "softshrink": functional.softshrink,
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp below": lambda x: x.clamp(min=0.0),
    "clamp above": lambda x: torch.clamp_max(x, 2.0),
    "clamp by tensors": lambda x: torch.clamp(x, min=_OTHERS),
    "maximum": lambda x: torch.maximum(x, _OTHERS),
    "minimum": lambda x: torch.minimum(x, _OTHERS),
    "larger number": lambda x: torch.fmax(x, _OTHERS),
    "smaller number": lambda x: torch.fmin(x, _OTHERS),
    "unequal": lambda x: x != x,
    "equal": lambda x: x == x,
    "not less": lambda x: ~(x < 1.0),
    "finite": torch.isfinite,
    "times 0": lambda x: x * 0,
    "0 times": lambda x: 0.0 * x,
    "sign of the product with 0": lambda x: 1 / (x * 0.0),
    "times -0": lambda x: 1 / (x * -0.0),
    "times a tensor that is 0": lambda x: x * torch.tensor(0.0),
    "leaky relu without a slope": lambda x: functional.leaky_relu(x, 0.0),
    "difference of multiples": lambda x: x * 3 - x * 2,
    "root as a power in float64": lambda x: (x.double() ** 0.5).float() - (x.double() ** -0.5).float(),
    "a tensor that is -0 times": lambda x: 1 / (torch.tensor(-0.0) * x),
    "an element times 0": lambda x: x[0, 0] * 0,
    "by 0": lambda x: x / 0.0,
    "by a tensor that is -0": lambda x: x / torch.tensor(-0.0),
    "an element by 0": lambda x: x[1, 0] / 0,
    "sign of the zero": lambda x: 1 / functional.relu(x),
}
_LARGE = torch.tensor([1e6, -3e5, 2e7, 1.0])
_NOT_REAL: dict[str, Callable[[Any], Any]] = {
    "equal after adding 0": lambda x: x + 0 == x,
    "unequal to itself": lambda x: x * 2 != x * 2,
    "not less": lambda x: ~(x * 2 < 1),
    "less or not": lambda x: (x < 1) | (x >= 1),
    "0 by x": lambda x: 0 / x,
    "minus itself": lambda x: -x - (-x),
    "one term": lambda x: (x + 1e8) - 1e8,
    "the other term": lambda x: (x.abs() + x) - x.abs(),
    "less a sum": lambda x: x - (x + 1e8),
    "compensation": lambda x: ((_LARGE + x) - _LARGE) - x,
    "sums to 0": lambda x: x + x - x - x,
    "extremes": lambda x: torch.maximum(x, x) - torch.minimum(x, x),
}
"""Expressions that are simpler for real numbers."""
_REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(),
    "max and place": lambda x: x.max(1),
    "min and place": lambda x: x.min(1),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(0, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "sort": lambda x: x.sort(1),
    "sort down": lambda x: x.sort(1, descending=True),
    "largest": lambda x: x.topk(2, 1)[0],
    "smallest": lambda x: x.topk(2, 1, largest=False)[0],
}
_POOLS: dict[str, Callable[[Any], Any]] = {
    "2d": lambda x: functional.max_pool2d(x, 2),
    "padded": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "ceil": lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    "1d": lambda x: functional.max_pool1d(x[0], 3, 2, 1),
    "3d": lambda x: functional.max_pool3d(x[None], (1, 3, 3), 2, (0, 1, 1)),
}


def _parts(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _assert_matches_pytorch(function: Callable[[Any], Any], x: torch.Tensor) -> None:
    outputs = compile_model(import_model(Apply(function), (x,)))(x)
    for got, want in zip(_parts(outputs), _parts(function(x)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", _ELEMENTWISE)
def test_elementwise_operators_match_pytorch(name: str) -> None:
    _assert_matches_pytorch(_ELEMENTWISE[name], _ROWS)


@pytest.mark.filterwarnings("ignore::felixlike.errors.UnverifiedWarning")  # in float64 they are other numbers
def test_expressions_are_not_simplified_as_those_of_real_numbers() -> None:
    model = Apply(lambda x: tuple(function(x) for function in _NOT_REAL.values()))
    fast = fx.optimize(model, (torch.rand(8, 4),), trials=0, progress=False)
    for x in (_ROWS, torch.rand(8, 4)):
        for name, got, want in zip(_NOT_REAL, fast(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=name)


def _before(x: torch.Tensor) -> torch.Tensor:
    """Return each column's predecessor, and the first column itself."""
    return torch.cat([x[..., :1], x[..., :-1]], -1)


_OF_PREDECESSORS: dict[str, Callable[[Any], Any]] = {
    "difference": lambda x: (x - _before(x)).abs(),
    "difference from the first": lambda x: (x - x[..., :1]).abs(),
    "sum less the predecessor": lambda x: (x + _before(x)) - _before(x),
    "at most": lambda x: (x <= _before(x)).float(),
    "at least": lambda x: (_before(x) >= x).float(),
    "equal": lambda x: (x == _before(x)).float(),
    "unequal": lambda x: (x != _before(x)).float(),
}
"""Expressions whose operands are the same element in the first iteration of a loop, where it is unrolled or split."""


@pytest.mark.parametrize("name", _OF_PREDECESSORS)
def test_operands_that_become_equal_are_not_simplified(name: str) -> None:
    function = _OF_PREDECESSORS[name]
    fast = fx.optimize(Apply(function), (torch.rand(2, 17, 16),), trials=0, progress=False)
    x = torch.rand(2, 17, 16)
    x[:, :8, 0] = _ROWS[:, 0]
    x[:, 8:12, :4] = _ROWS[:4]
    torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", _REDUCTIONS)
def test_reductions_match_pytorch(name: str) -> None:
    _assert_matches_pytorch(_REDUCTIONS[name], _ROWS)


def test_a_factor_that_is_computed_as_0() -> None:
    _assert_matches_pytorch(lambda x: (x * torch.zeros(()), x * (torch.ones(()) - 1)), _ROWS)


def test_constants_match_pytorch() -> None:
    functions = [*_ELEMENTWISE.values(), *_NOT_REAL.values(), *_REDUCTIONS.values()]
    constants = [part for function in functions for part in _parts(function(_ROWS))]

    def of_constants(x: Any) -> Any:
        return (x + 1, *(part for function in functions for part in _parts(function(_ROWS))))

    _, *outputs = compile_model(import_model(Apply(of_constants), (_ROWS,)))(_ROWS)
    for got, want in zip(outputs, constants, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", _POOLS)
def test_pooling_matches_pytorch(name: str) -> None:
    _assert_matches_pytorch(_POOLS[name], _IMAGE)


def test_finite_padding_values_are_not_replaced() -> None:
    lowest = torch.finfo(torch.float32).min
    _assert_matches_pytorch(lambda x: functional.pad(x, (1, 1), value=lowest).amax(1), torch.full((2, 3), -_INF))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_match_pytorch(dtype: torch.dtype) -> None:
    _assert_matches_pytorch(lambda x: (functional.relu(x), x.amax(1), x.argmax(1), x.sort(1)[0]), _ROWS.to(dtype))


def _product(n: int, k: int, m: int) -> Any:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def _rows(reduce: Callable[..., Any], n: int, m: int) -> Any:
    x = te.placeholder((n, m), name="X")
    return te.create_prim_func([x, reduce(x, axis=1)])


def _outputs_of_schedules(func: Any, *inputs: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return the outputs of two random schedules of each sketch of both spaces."""
    target = imitated_target("zen4")
    task = make_task(func, target, name="task", constants=())
    outputs = []
    for space in ("own", "default"):
        for sketch in sketches(task, space=space):
            for point in sketch.sample(2, seed=1).tolist():
                code = codegen.compile_primfuncs(sketch.schedule(point).mod, target)
                output = _tvm.runtime.tensor(np.zeros(shape, "float32"))
                code.jit()["main"](*map(_tvm.runtime.tensor, inputs), output)
                outputs.append(output.numpy())
    assert len(outputs) >= 4
    return outputs


def test_scheduled_epilogues_propagate_nan() -> None:
    a = np.random.default_rng(0).standard_normal((12, 16), np.float32)
    b = np.random.default_rng(1).standard_normal((16, 32), np.float32)
    a[3, 5] = b[2, 7] = _NAN
    for output in _outputs_of_schedules(_product(12, 16, 32), a, b, shape=(12, 32)):
        np.testing.assert_allclose(output, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("reduce", "truth", "end"), [(topi.max, np.max, -_INF), (topi.min, np.min, _INF)])
def test_scheduled_reductions_propagate_nan(reduce: Any, truth: Any, end: float) -> None:
    x = np.random.default_rng(0).standard_normal((5, 96), np.float32)
    x[1, 40], x[2, :], x[4, 95] = _NAN, end, _NAN
    for output in _outputs_of_schedules(_rows(reduce, 5, 96), x, shape=(5,)):
        np.testing.assert_array_equal(output, truth(x, axis=1))
