"""Test the values of the built-in functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tc_interpreter import _FUNCTIONS as KNOWN

import felixlike as fx
from felixlike.tc.functions import ARITY

_DOMAINS = {
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (-0.95, 0.95)),
    **dict.fromkeys(("acosh",), (1.1, 9.0)),
    **dict.fromkeys(("log", "log10", "log2", "logb", "lgamma", "tgamma", "sqrt", "rsqrt", "y0", "y1"), (0.3, 9.0)),
    **dict.fromkeys(("rcbrt", "rhypot", "rnorm3d", "rnorm4d", "pow", "fdivide"), (0.3, 3.0)),
    "log1p": (-0.5, 9.0),
    "erfcinv": (0.02, 1.98),
    "normcdfinv": (0.02, 0.98),
}
"""Domains of functions; the domain of all others is -3.3 to 3.3."""

_INVERSE = {"erfinv": "erf", "erfcinv": "erfc", "normcdfinv": "normcdf"}
"""Functions that are tested by applying their inverse to the result."""


def _series(order: int, x: float, sign: float) -> float:
    """Compute J_n(x) (sign -1) or I_n(x) (sign 1) for n = order."""
    return math.fsum(
        sign**k * (x / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order)) for k in range(60)
    )


def _y(order: int, x: float) -> float:
    """Compute Y_n(x) by its integral: (1/π) ∫ sin(x sin t - n t) dt - (1/π) ∫ (e^{nt} + (-1)^n e^{-nt}) e^{-x sinh t}
    dt.
    """
    t = np.linspace(0, math.pi, 20_001)
    first = np.trapezoid(np.sin(x * np.sin(t) - order * t), t)
    u = np.linspace(0, 8, 200_001)
    second = np.trapezoid((np.exp(order * u) + (-1) ** order * np.exp(-order * u)) * np.exp(-x * np.sinh(u)), u)
    return float((first - second) / math.pi)


_MORE = {
    "cyl_bessel_i1": np.vectorize(lambda x: _series(1, x, 1.0)),
    "j0": np.vectorize(lambda x: _series(0, x, -1.0)),
    "j1": np.vectorize(lambda x: _series(1, x, -1.0)),
    "y0": np.vectorize(lambda x: _y(0, x)),
    "y1": np.vectorize(lambda x: _y(1, x)),
    "erfcx": np.vectorize(lambda x: math.exp(x * x) * math.erfc(x)),
}


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_built_in_functions_equal_reference_implementations(dtype: str) -> None:
    random = np.random.default_rng(3)
    kind = {"float": "float32", "double": "float64"}[dtype]
    outputs: list[str] = []
    statements: list[str] = []
    inputs: list[Any] = []
    parameters: list[str] = []
    for name, arity in ARITY.items():
        low, high = _DOMAINS.get(name, (-3.3, 3.3))
        for place in range(arity):
            parameters.append(f"{dtype}(N) X_{name}_{place}")
            inputs.append(random.uniform(low, high, 64).astype(kind))
        outputs.append(f"O_{name}")
        written = ", ".join(f"X_{name}_{place}(i)" for place in range(arity))
        statements.append(f"O_{name}(i) = {name}({written})")
    source = f"def f({', '.join(parameters)}) -> ({', '.join(outputs)}) {{ {' '.join(statements)} }}"
    results = fx.tc.define(source)(*map(torch.from_numpy, inputs))
    tolerance = {"float": 3e-6, "double": 3e-7}[dtype]  # Bessel functions have an error below 2e-7
    remaining_inputs = iter(inputs)
    for (name, arity), output in zip(ARITY.items(), results, strict=True):
        arguments = [next(remaining_inputs).astype(np.float64) for _ in range(arity)]
        result = output.numpy().astype(np.float64)
        if name == "nextafter":
            expected = np.nextafter(*(argument.astype(kind) for argument in arguments)).astype(np.float64)
        elif name in _INVERSE:
            expected, result = arguments[0], KNOWN[_INVERSE[name]](result)
        else:
            expected = (KNOWN.get(name) or _MORE[name])(*arguments)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=name)


def test_fmax_and_fmin_treat_nan_as_in_c() -> None:
    source = "def f(float(N) A, float(N) B) -> (O, P) { O(i) = fmax(A(i), B(i)) P(i) = fmin(A(i), B(i)) }"
    nan = math.nan
    a, b = torch.tensor([1.0, nan, 2.0, nan]), torch.tensor([nan, 1.0, 3.0, nan])
    greater, less = fx.tc.define(source)(a, b)
    torch.testing.assert_close(greater, torch.tensor([1.0, 1.0, 3.0, nan]), equal_nan=True)
    torch.testing.assert_close(less, torch.tensor([1.0, 1.0, 2.0, nan]), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_takes_halves_away_from_zero(dtype: torch.dtype) -> None:
    name = {torch.float32: "float", torch.float64: "double"}[dtype]
    below = math.nextafter(0.5, 0) if dtype is torch.float64 else 0.49999997
    values = [0.5, 1.5, 2.5, below, 0.0, 8388609.0, 4194304.5, 2.0**60, math.inf]
    expected = [1.0, 2.0, 3.0, 0.0, 0.0, 8388609.0, 4194305.0, 2.0**60, math.inf]
    result = fx.tc.define(f"def f({name}(N) A) -> (O) {{ O(i) = round(A(i)) }}")(
        torch.tensor([*values, *(-value for value in values)], dtype=dtype)
    )
    assert result.tolist() == [*expected, *(-value for value in expected)]


@pytest.mark.parametrize("function", ["asinh", "atanh", "erf", "expm1", "log1p", "sin", "sinh", "tan", "tanh"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_functions_keep_small_numbers(function: str, dtype: str) -> None:
    small = torch.tensor([1e-3, -1e-4, 1e-8, -1e-20], dtype={"float": torch.float32, "double": torch.float64}[dtype])
    result = fx.tc.define(f"def f({dtype}(N) A) -> (O) {{ O(i) = {function}(A(i)) }}")(small)
    torch.testing.assert_close(result, getattr(torch, function)(small), rtol=1e-6, atol=0.0)
