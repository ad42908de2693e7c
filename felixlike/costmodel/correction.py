"""What a model of many tasks gets wrong about one of them: a Gaussian process on the residuals of what was measured.

    score(x) = shared(x) + o + k(x)ᵀ (K + ν I)⁻¹ e        e = y − shared − o at the measured points, o its median
    spread(x) = s · (1 − k(x)ᵀ (K + ν I)⁻¹ k(x))^½        s² = mean e²
    k(x, x') = exp( −|r(x) − r(x')|² / (2 ℓ² · columns) ) (Rasmussen & Williams 2006, algorithm 2.1)

In: measured candidates as rows of numbers (`summary.rows`), brought to mean 0 and variance 1 over what is known of the
task; their labels; what shared models say of them. Out: what to add to a score, differentiable, and how sure it is.
It takes milliseconds, forgets nothing that the shared model knows, and is exact about what it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from felixlike.costmodel.summary import rows

_LENGTH, _NOISE = 0.35, 0.3
"""ℓ and ν: of 0.25 to 1 and 0.1 to 1 those that order the rest of unseen workloads best after 16 and 32 of their
candidates (`python -m benchmarks.costmodel`, online learning)."""

_FLAT = 0.05
"""Standard deviation under which a column says nothing."""

_FAR = 2.0
"""Residuals beyond this are cut: one outlier should not bend everything near it."""

_ERROR = 0.35
"""Mean distance of scores from the truth where nothing was measured, about (`python -m benchmarks.costmodel`)."""

FEWEST, MOST = 4, 512
"""Measured candidates that a correction is made of."""


@dataclass(frozen=True, slots=True)
class Correction:
    """columns: int64[c], those that vary.  mean, scale: float64[c], of these.  known: float64[m, c], the measured
    candidates.  weights: float64[m, models], (K + ν I)⁻¹ e of each shared model.  offsets: float64[models].  sizes:
    float64[models], s of each.  lower: float64[m, m], Cholesky factor of K + ν I."""

    columns: Tensor
    mean: Tensor
    scale: Tensor
    known: Tensor
    weights: Tensor
    offsets: Tensor
    sizes: Tensor
    lower: Tensor

    @staticmethod
    def fit(measured: Tensor, labels: Tensor, shared: Tensor, around: Tensor | None = None) -> Correction | None:
        """From float32[m, stores, columns] of log(1 + feature), float[m] labels, float[m, models] scores of them.

        around: float32[n, stores, columns] of points that were not measured, which tell how columns vary. None where
        they are too few, or all alike."""
        if len(measured) < FEWEST:
            return None
        known = rows(measured).double()
        everything = known if around is None else torch.cat([known, rows(around).double()])
        deviation = everything.std(dim=0)
        columns = (deviation > _FLAT).nonzero()[:, 0]
        if not len(columns):
            return None
        mean, scale = everything.mean(dim=0)[columns], 1.0 / deviation[columns]
        known = (known[:, columns] - mean) * scale
        residuals = labels.double()[:, None] - shared.double()
        offsets = residuals.median(dim=0).values
        errors = (residuals - offsets).clamp(-_FAR, _FAR)
        lower = torch.linalg.cholesky(_kernel(known, known) + _NOISE * torch.eye(len(known), dtype=torch.float64))
        weights = torch.cholesky_solve(errors, lower)
        return Correction(columns, mean, scale, known, weights, offsets, errors.square().mean(dim=0).sqrt(), lower)

    def of(self, log_features: Tensor, model: int) -> Tensor:
        """float64[n], what to add to the scores of float32[n, stores, columns] by one of the shared models."""
        return self.offsets[model] + self._near(log_features) @ self.weights[:, model]

    def with_spread(self, log_features: Tensor, model: int) -> tuple[Tensor, Tensor]:
        """The same, and float64[n], the standard deviation of the corrected scores."""
        near = self._near(log_features)
        told = torch.linalg.solve_triangular(self.lower, near.T, upper=False).square().sum(dim=0)
        spread = self.sizes[model] * (1.0 - told).clamp(min=0.0).sqrt()
        return self.offsets[model] + near @ self.weights[:, model], spread

    def with_covariance(self, log_features: Tensor, model: int) -> tuple[Tensor, Tensor]:
        """What to add, and float64[n, n], the covariance of the corrected scores."""
        here = self._scaled(log_features)
        near = _kernel(here, self.known)
        told = torch.linalg.solve_triangular(self.lower, near.T, upper=False)
        covariance = self.sizes[model].square() * (_kernel(here, here) - told.T @ told)
        return self.offsets[model] + near @ self.weights[:, model], covariance

    def _near(self, log_features: Tensor) -> Tensor:
        """float64[n, m]: the kernel between points and the measured candidates."""
        return _kernel(self._scaled(log_features), self.known)

    def _scaled(self, log_features: Tensor) -> Tensor:
        return (rows(log_features).double()[:, self.columns] - self.mean) * self.scale


def unmeasured(log_features: Tensor) -> Tensor:
    """float64[n, n]: the covariance of the errors of scores where nothing was measured, of float32[n, stores,
    columns]."""
    every = rows(log_features).double()
    deviation = every.std(dim=0, correction=0)
    columns = (deviation > _FLAT).nonzero()[:, 0]
    if not len(columns):
        return torch.full((len(every), len(every)), _ERROR**2, dtype=torch.float64)
    scaled = (every[:, columns] - every.mean(dim=0)[columns]) / deviation[columns]
    return _ERROR**2 * _kernel(scaled, scaled)


def _kernel(ones: Tensor, others: Tensor) -> Tensor:
    """float64[n, m] for float64[n, c] and float64[m, c]."""
    squares = ones.square().sum(dim=1)[:, None] + others.square().sum(dim=1) - 2.0 * ones @ others.T
    return torch.exp(-squares.clamp(min=0.0) / (2.0 * _LENGTH**2 * ones.shape[1]))
