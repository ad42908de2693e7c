"""The built-in functions compute what their names say."""

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
"""Where functions are defined; elsewhere -3.3 to 3.3."""

_INVERSE = {"erfinv": "erf", "erfcinv": "erfc", "normcdfinv": "normcdf"}
"""Functions that are checked by the one that undoes them."""


def _series(order: int, x: float, sign: float) -> float:
    """J_n (sign -1) or I_n (sign 1) of x, n = order."""
    return math.fsum(
        sign**k * (x / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order)) for k in range(60)
    )


def _y(order: int, x: float) -> float:
    """Y_n(x) by its integral: (1/π) ∫ sin(x sin t - n t) dt - (1/π) ∫ (e^{nt} + (-1)^n e^{-nt}) e^{-x sinh t} dt."""
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
def test_built_in_functions_compute_what_they_are_named_for(dtype: str) -> None:
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
    found = fx.tc.define(source)(*map(torch.from_numpy, inputs))
    tolerance = {"float": 3e-6, "double": 3e-7}[dtype]  # the Bessel functions are good to 2e-7
    given = iter(inputs)
    for (name, arity), output in zip(ARITY.items(), found, strict=True):
        arguments = [next(given).astype(np.float64) for _ in range(arity)]
        result = output.numpy().astype(np.float64)
        if name == "nextafter":
            wanted = np.nextafter(*(argument.astype(kind) for argument in arguments)).astype(np.float64)
        elif name in _INVERSE:
            wanted, result = arguments[0], KNOWN[_INVERSE[name]](result)
        else:
            wanted = (KNOWN.get(name) or _MORE[name])(*arguments)
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance, err_msg=name)


def test_extremes_of_numbers_and_nan_are_those_of_c() -> None:
    source = "def f(float(N) A, float(N) B) -> (O, P) { O(i) = fmax(A(i), B(i)) P(i) = fmin(A(i), B(i)) }"
    nan = math.nan
    a, b = torch.tensor([1.0, nan, 2.0, nan]), torch.tensor([nan, 1.0, 3.0, nan])
    greater, less = fx.tc.define(source)(a, b)
    torch.testing.assert_close(greater, torch.tensor([1.0, 1.0, 3.0, nan]), equal_nan=True)
    torch.testing.assert_close(less, torch.tensor([1.0, 1.0, 2.0, nan]), equal_nan=True)
