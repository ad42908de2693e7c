"""Decompose divisions and elementary functions that TVM's importer computes imprecisely for some numbers.

Input: the operator's arguments. Output: its result in terms of operators that can be imported, or NotImplemented for
dtypes that TVM computes right. float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

_SMALL = 0.5
"""Limit of |x| from which e^x - 1 loses at most one digit."""


_LARGEST = 20.0
"""Limit of x from which mish(x) is x in float64, too."""


def _of_floats(function: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """Call a function of tensors and numbers if their common dtype is one of floats, else return NotImplemented."""
    import torch

    dtype = torch.result_type(*operands) if len(operands) > 1 else operands[0].dtype
    if not dtype.is_floating_point:
        return NotImplemented
    wide = torch.float32 if dtype.itemsize < torch.float32.itemsize else dtype
    first, *rest = operands
    if not isinstance(first, torch.Tensor):
        first = torch.full((), first, dtype=dtype)
    if wide != dtype:  # PyTorch rounds numbers, too
        rest = [o if isinstance(o, torch.Tensor) else torch.full((), o, dtype=dtype) for o in rest]
    result = function(*(o.to(wide) if isinstance(o, torch.Tensor) else o for o in (first, *rest)), **named)
    return result if result is NotImplemented or wide == dtype else result.to(dtype)


def remainder(x: Any, y: Any) -> Any:
    """Decompose x % y, which has the sign of y. TVM computes x - ⌊x / y⌋ y, which is off by y where x / y rounds up."""
    import torch

    rest = torch.fmod(x, y)
    return rest + torch.where(_differ_in_sign(rest, y), y, torch.zeros_like(rest))


def floor_quotient(x: Any, y: Any, *, rounding_mode: str = "floor") -> Any:
    """Decompose ⌊x / y⌋. TVM rounds x / y first, up to the next integer where it is just below it: 1 // 0.1 is 9."""
    import torch

    if rounding_mode != "floor":
        return NotImplemented
    rest = torch.fmod(x, y)
    quotient = torch.round((x - rest) / y - _differ_in_sign(rest, y).to(rest.dtype))
    if isinstance(y, torch.Tensor):
        return torch.where(y == 0, x / y, quotient)
    return quotient if y else x / y


def _differ_in_sign(rest: Any, y: Any) -> Any:
    """Return where a remainder is not 0 and has another sign than the divisor."""
    import torch

    if not isinstance(y, torch.Tensor):
        return rest < 0 if y > 0 else rest > 0
    return ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))


def hypot(x: Any, y: Any) -> Any:
    """Decompose √(x² + y²) such that the squares do not overflow. It is infinite if x or y is, even beside NaN."""
    import torch

    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / large
    length = torch.where(large == 0, large, large * torch.sqrt(1 + ratio * ratio))
    return torch.where((x == math.inf) | (y == math.inf), math.inf, length)


def log1p(x: Any) -> Any:
    """Decompose log(1 + x). What the sum loses by rounding is added again, divided by it: log'(u) = 1 / u."""
    import torch

    u = 1 + x
    logarithm = torch.log(u)
    # A choice by whether the sum is exact would be another one in float64, in which kernels are checked.
    return torch.where(logarithm.abs() < math.inf, logarithm + (x - (u - 1)) / u, logarithm)


def expm1(x: Any) -> Any:
    """Decompose e^x - 1. Near 0 it is x (u - 1) / log u with u = e^x, whose error cancels out (W. Kahan)."""
    import torch

    u = torch.exp(x)
    near = torch.where(u == 1, x, x * ((u - 1) / torch.log(u)))
    return torch.where(x.abs() < _SMALL, near, u - 1)


def tanh(x: Any) -> Any:
    """Decompose tanh x of float64, which TVM computes from e^-2|x| alone, so that small numbers become 0."""
    import torch

    if x.dtype != torch.float64:
        return NotImplemented
    shrunk = torch.expm1(-2 * x.abs())
    size = -shrunk / (2 + shrunk)
    return torch.where(x < 0, -size, size)


def atanh(x: Any) -> Any:
    """Decompose artanh x = ± ½ log(1 + 2 |x| / (1 - |x|))."""
    import torch

    size = x.abs()
    result = 0.5 * torch.log1p(2 * size / (1 - size))
    return torch.where(x < 0, -result, result)


def mish(x: Any) -> Any:
    """Decompose x tanh(log(1 + e^x)) = x n / (n + 2), n = e^x (e^x + 2): one function of the three, without a loss."""
    import torch

    power = torch.exp(torch.clamp(x, max=_LARGEST))
    n = power * (power + 2)
    return torch.where(x > _LARGEST, x, x * (n / (n + 2)))


def elementary() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of this module, by operator."""
    import torch

    aten: Any = torch.ops.aten
    functions: dict[Any, Callable[..., Any]] = {
        **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), remainder),
        **dict.fromkeys((aten.floor_divide.default, aten.div.Tensor_mode), floor_quotient),
        aten.hypot.default: hypot,
        aten.log1p.default: log1p,
        aten.expm1.default: expm1,
        aten.atanh.default: atanh,
        aten.mish.default: mish,
    }
    wrapped = {operator: functools.partial(_of_floats, function) for operator, function in functions.items()}
    return {**wrapped, aten.tanh.default: tanh}
