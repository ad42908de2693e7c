"""Smooth stand-ins for the operators that have corners or jumps, each with a bound on how far off it is.

In: tensors of any shape in log units (natural logarithm), a width w > 0 in the same unit. Out: the same shape. All
come from heavy-tailed kernels like φ(t) = 1/(1 + t²) (Felix §3.3): their gradients fade as 1/x² or 1/x³ instead of
vanishing, so that a far-away corner still pulls. All are differentiable any number of times for finite arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-4
"""Where a difference of exponentials is relaxed out of its domain, 1 − e^(b−a) is kept above about this."""


def smooth_step(x: Tensor, width: float) -> Tensor:
    """½ + x / (2 √(x² + w²)): the gate [x ≥ 0].  Off by less than w² / (4 x²) for x ≠ 0."""
    return 0.5 + 0.5 * x * torch.rsqrt(x * x + width * width)


def smooth_maximum(a: Tensor, b: Tensor, width: float) -> Tensor:
    """(a + b + √((a − b)² + w²)) / 2: max(a, b).  Above it by at most w / 2, at a = b."""
    d = a - b
    return 0.5 * (a + b + torch.sqrt(d * d + width * width))


def smooth_minimum(a: Tensor, b: Tensor, width: float) -> Tensor:
    """(a + b − √((a − b)² + w²)) / 2: min(a, b).  Below it by at most w / 2, at a = b."""
    d = a - b
    return 0.5 * (a + b - torch.sqrt(d * d + width * width))


def mix(gates: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """A chain of selects: values[i] at the first gate that is 1, the last value where none is.

    gates: n, in [0, 1].  values: n + 1.  Exact for gates of 0 or 1; between, each gate passes on what it does not take.
    Values are logarithms, so that large numbers do not drown small ones."""
    *chosen, result = values
    for gate, value in zip(reversed(gates), reversed(chosen), strict=True):
        result = torch.lerp(result, value, gate)
    return result


def log_diff_exp(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a − e^b) for a > b, continued smoothly where the relaxation leaves that domain.

    With d = 1 − e^(b−a), d becomes its smooth maximum with 0 of width 2·FLOOR: off by a factor of at most
    1 + (FLOOR / d)²."""
    d = -torch.expm1(torch.clamp(b - a, max=20.0))
    root = torch.sqrt(d * d + 4 * FLOOR * FLOOR)
    # Two ways to write (d + root) / 2: each loses its digits where the other keeps them. A divisor that is rounded to 0
    # would make the gradient nan even where its quotient is not chosen.
    divisor = torch.where(d > 0, 1.0, root - d)
    return a + torch.log(torch.where(d > 0, 0.5 * (d + root), 2 * FLOOR * FLOOR / divisor))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact."""
    return torch.nn.functional.softplus(x, threshold=30.0)


def log_one_plus(x: Tensor) -> Tensor:
    """log(1 + x) of gates and their sums, x ≥ 0; exact."""
    return torch.log1p(torch.clamp(x, min=0.0))
