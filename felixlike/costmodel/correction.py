"""Correct a shared model for one task by a Gaussian process on the residuals of its measurements.

    score(x) = shared(x) + o + k(x)ᵀ (K + ν I)⁻¹ e        e = y − shared − o at the measured points, o its median
    spread(x) = s · (1 − k(x)ᵀ (K + ν I)⁻¹ k(x))^½        s² = mean e²
    k(x, x') = exp( −|r(x) − r(x')|² / (2 ℓ² · columns) ) (Rasmussen & Williams 2006, algorithm 2.1)

Inputs: measured candidates as rows of numbers (`summary.rows`), standardized over the task's known points, with their
labels and the shared models' scores. Outputs: a differentiable correction of a score, and its standard deviation.
Fitting takes milliseconds. The shared model is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from felixlike.costmodel.summary import rows


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """Options of the Gaussian process.

    `length`, `noise` and `error` come from `python -m benchmarks.costmodel`; the other values are chosen by hand.

    Attributes:
        length: ℓ, in standard deviations of a column. Of the values from 0.25 to 1, it best ranks the rest of unseen
            workloads after 16 and 32 of their candidates (online learning).
        noise: ν, variance of the noise relative to that of the process. Selected like `length`, from 0.1 to 1.
        error: Approximate mean error of scores without measurements, in log units.
        flat: Minimum standard deviation of a column to be used.
        far: Limit to which residuals are clipped, in log units, so that one outlier does not distort its neighbourhood.
        fewest: Minimum number of measured candidates that a correction is fitted to.
        most: Maximum number of them.
    """

    length: float = 0.35
    noise: float = 0.3
    error: float = 0.35
    flat: float = 0.05
    far: float = 2.0
    fewest: int = 4
    most: int = 512


PROCESS = GaussianProcess()


@dataclass(frozen=True, slots=True)
class Correction:
    """A fitted correction.

    Attributes:
        columns: int64[c], columns that vary.
        mean: float64[c], their means.
        scale: float64[c], inverses of their standard deviations.
        known: float64[m, c], the measured candidates, standardized.
        weights: float64[m, models], (K + ν I)⁻¹ e of each shared model.
        offsets: float64[models], o of each.
        sizes: float64[models], s of each.
        lower: float64[m, m], Cholesky factor of K + ν I.
    """

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
        """Fit a correction to measured candidates.

        Args:
            measured: float32[m, stores, columns] of log(1 + feature).
            labels: float[m].
            shared: float[m, models], scores of the shared models.
            around: float32[n, stores, columns] of unmeasured points, used for the statistics of columns.

        Returns:
            The correction; None if there are fewer than `GaussianProcess.fewest` candidates, or no column varies.
        """
        if len(measured) < PROCESS.fewest:
            return None
        known = rows(measured).double()
        everything = known if around is None else torch.cat([known, rows(around).double()])
        deviation = everything.std(dim=0)
        columns = (deviation > PROCESS.flat).nonzero()[:, 0]
        if not len(columns):
            return None
        mean, scale = everything.mean(dim=0)[columns], 1.0 / deviation[columns]
        known = (known[:, columns] - mean) * scale
        residuals = labels.double()[:, None] - shared.double()
        offsets = residuals.median(dim=0).values
        errors = (residuals - offsets).clamp(-PROCESS.far, PROCESS.far)
        noise = PROCESS.noise * torch.eye(len(known), dtype=torch.float64)
        lower = torch.linalg.cholesky(_kernel(known, known) + noise)
        weights = torch.cholesky_solve(errors, lower)
        return Correction(columns, mean, scale, known, weights, offsets, errors.square().mean(dim=0).sqrt(), lower)

    def of(self, log_features: Tensor, model: int) -> Tensor:
        """Return float64[n], the correction of a shared model's scores of float32[n, stores, columns]."""
        return self.offsets[model] + self._near(log_features) @ self.weights[:, model]

    def with_spread(self, log_features: Tensor, model: int) -> tuple[Tensor, Tensor]:
        """Return the correction, float64[n], and the standard deviation of the corrected scores, float64[n]."""
        near = self._near(log_features)
        explained = torch.linalg.solve_triangular(self.lower, near.T, upper=False).square().sum(dim=0)
        spread = self.sizes[model] * (1.0 - explained).clamp(min=0.0).sqrt()
        return self.offsets[model] + near @ self.weights[:, model], spread

    def with_covariance(self, log_features: Tensor, model: int) -> tuple[Tensor, Tensor]:
        """Return the correction, float64[n], and the covariance of the corrected scores, float64[n, n]."""
        here = self._scaled(log_features)
        near = _kernel(here, self.known)
        explained = torch.linalg.solve_triangular(self.lower, near.T, upper=False)
        covariance = self.sizes[model].square() * (_kernel(here, here) - explained.T @ explained)
        return self.offsets[model] + near @ self.weights[:, model], covariance

    def _near(self, log_features: Tensor) -> Tensor:
        """Return float64[n, m], the kernel between points and the measured candidates."""
        return _kernel(self._scaled(log_features), self.known)

    def _scaled(self, log_features: Tensor) -> Tensor:
        """Return the standardized rows of points, float64[n, c]."""
        return (rows(log_features).double()[:, self.columns] - self.mean) * self.scale


def unmeasured(log_features: Tensor) -> Tensor:
    """Return float64[n, n], the covariance of score errors without measurements, for float32[n, stores, columns]."""
    every = rows(log_features).double()
    deviation = every.std(dim=0, correction=0)
    columns = (deviation > PROCESS.flat).nonzero()[:, 0]
    if not len(columns):
        return torch.full((len(every), len(every)), PROCESS.error**2, dtype=torch.float64)
    scaled = (every[:, columns] - every.mean(dim=0)[columns]) / deviation[columns]
    return PROCESS.error**2 * _kernel(scaled, scaled)


def _kernel(ones: Tensor, others: Tensor) -> Tensor:
    """Return the kernel k, float64[n, m], for float64[n, c] and float64[m, c]."""
    squares = ones.square().sum(dim=1)[:, None] + others.square().sum(dim=1) - 2.0 * ones @ others.T
    return torch.exp(-squares.clamp(min=0.0) / (2.0 * PROCESS.length**2 * ones.shape[1]))
