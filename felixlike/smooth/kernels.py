"""Define smooth replacements for operators with corners or jumps, each with an error bound.

Input: tensors of any shape in log units (natural logarithm), and a width w > 0 in the same unit. Output: the same
shape. All are differentiable any number of times for finite arguments.

The step and the maximum are convolutions of [x ≥ 0] and max(x, 0) with the kernel k(t) = w² / (2 (t² + w²)^(3/2)),
whose integral is 1. Felix §3.3 uses φ(t) = 1/(1 + t²). The convolution of φ with the step exists and is `cauchy_step`,
but that with max diverges: its integrand decays as 1/|t|. k decays as 1/|t|³, so both integrals exist. Like those of φ,
the gradients decay as powers of 1/x, so a distant corner still has a gradient. docs/concepts/smoothing.md has proofs.

The error bounds follow from r = √(x² + w²). The maximum is off by (r − |x|) / 2 = w² / (2 (r + |x|)), which is largest
at x = 0, where it is w / 2. The step is off by (1 − |x| / r) / 2 = w² / (2 r (r + |x|)), which is less than w² / (4 x²)
because r > |x|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FLOOR = 1e-4
"""Approximate lower bound of 1 − e^(b−a) where relaxation leaves the domain of `log_diff_exp`; chosen by hand."""


def smooth_step(x: Tensor, width: float) -> Tensor:
    """Approximate the gate [x ≥ 0] by ½ + x / (2 √(x² + w²)).

    The error is less than w² / (4 x²) for x ≠ 0.
    """
    return 0.5 + 0.5 * x * torch.rsqrt(x * x + width * width)


def cauchy_step(x: Tensor, width: float) -> Tensor:
    """Approximate the gate [x ≥ 0] by ½ + arctan(x / w) / π, its convolution with Felix's kernel scaled to width w.

    The error is less than w / (π |x|) for x ≠ 0.
    """
    return 0.5 + torch.atan(x / width) / math.pi


STEPS: dict[str, Callable[[Tensor, float], Tensor]] = {"algebraic": smooth_step, "cauchy": cauchy_step}
"""Approximations of the gate [x ≥ 0] by name."""


def smooth_maximum(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Approximate max(a, b) by (a + b + √((a − b)² + w²)) / 2.

    The result is greater by at most w / 2, at a = b.
    """
    d = a - b
    return 0.5 * (a + b + torch.sqrt(d * d + width * width))


def smooth_minimum(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Approximate min(a, b) by (a + b − √((a − b)² + w²)) / 2.

    The result is less by at most w / 2, at a = b.
    """
    d = a - b
    return 0.5 * (a + b - torch.sqrt(d * d + width * width))


def mix(gates: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Evaluate a chain of selects: values[i] at the first gate that is 1, or the last value if no gate is 1.

    The result is exact for gates of 0 or 1. In between, each gate passes on the fraction that it does not take. Values
    are logarithms, so large numbers do not hide small ones.

    Args:
        gates: n tensors with values in [0, 1].
        values: n + 1 tensors in log units.
    """
    *chosen, result = values
    for gate, value in zip(reversed(gates), reversed(chosen), strict=True):
        result = torch.lerp(result, value, gate)
    return result


def log_diff_exp(a: Tensor, b: Tensor) -> Tensor:
    """Compute log(e^a − e^b) for a > b, continued smoothly where the relaxation leaves that domain.

    d = 1 − e^(b−a) is replaced by its smooth maximum with 0 of width 2·FLOOR, so the result's exponential is off by a
    factor of at most 1 + (FLOOR / d)².
    """
    d = -torch.expm1(torch.clamp(b - a, max=20.0))
    root = torch.sqrt(d * d + 4 * FLOOR * FLOOR)
    # (d + root) / 2 in two forms: each loses digits where the other keeps them. A divisor that rounds to 0 would make
    # the gradient NaN even where its quotient is not selected.
    divisor = torch.where(d > 0, 1.0, root - d)
    return a + torch.log(torch.where(d > 0, 0.5 * (d + root), 2 * FLOOR * FLOOR / divisor))


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + e^x), exactly."""
    return torch.nn.functional.softplus(x, threshold=30.0)


def log_one_plus(x: Tensor) -> Tensor:
    """Compute log(1 + x) of gates and their sums, for x ≥ 0; exact."""
    return torch.log1p(torch.clamp(x, min=0.0))
