"""Measurements of a task correct the predictions of its other points."""

from __future__ import annotations

import numpy as np
import torch

from felixlike.costmodel import CostModel, Network
from felixlike.costmodel.correction import PROCESS, Correction, unmeasured
from felixlike.features import NAMES

COLUMN = NAMES.index("buffer0_bytes")


def logs(count: int, seed: int) -> torch.Tensor:
    """Return random features, float32[count, 2, columns], of which two columns of each store vary."""
    random = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed))
    features = torch.full((count, 2, len(NAMES)), 3.0)
    features[:, :, [COLUMN, COLUMN + 7]] = 2.0 + 8.0 * random
    return features


def truth(points: torch.Tensor) -> torch.Tensor:
    return torch.sin(points[:, 0, COLUMN] / 2.0) - 0.1 * points[:, 1, COLUMN + 7]


def fitted(points: torch.Tensor) -> Correction:
    correction = Correction.fit(points, truth(points), torch.zeros(len(points), 1), logs(200, seed=9))
    assert correction is not None
    return correction


def test_unmeasured_points_are_ordered_and_near_ones_have_less_spread() -> None:
    measured, rest = logs(48, seed=1), logs(100, seed=2)
    correction = fitted(measured)
    predicted, spread = correction.with_spread(rest, 0)
    assert np.corrcoef(predicted, truth(rest))[0, 1] > 0.8
    torch.testing.assert_close(correction.of(rest, 0), predicted)
    predicted_measured, spread_measured = correction.with_spread(measured, 0)
    assert np.corrcoef(predicted_measured, truth(measured))[0, 1] > 0.95
    assert float(spread_measured.max()) < float(spread.median())
    assert float(spread.max()) <= float(correction.sizes[0])
    error = (predicted - truth(rest)).abs()
    assert float(error[spread > spread.median()].mean()) > float(error[spread <= spread.median()].mean())


def test_each_member_of_the_network_has_its_own_correction() -> None:
    measured, rest = logs(32, seed=1), logs(50, seed=2)
    shared = torch.stack([torch.zeros(32), truth(measured)], dim=1)
    both = Correction.fit(measured, truth(measured), shared)
    assert both is not None
    assert float(both.of(rest, 0).std()) > 0.1
    assert float(both.of(rest, 1).abs().max()) < 1e-6  # this model has no errors to correct


def test_slopes_agree_with_finite_differences() -> None:
    correction = fitted(logs(24, seed=1))
    points = logs(5, seed=3).double().requires_grad_(True)
    correction.of(points, 0).sum().backward()  # type: ignore[no-untyped-call]
    assert points.grad is not None
    step = 0.05
    for store, column in ((0, COLUMN), (1, COLUMN + 7)):
        ahead, behind = points.detach().clone(), points.detach().clone()
        ahead[:, store, column] += step
        behind[:, store, column] -= step
        slope = (correction.of(ahead, 0) - correction.of(behind, 0)) / (2 * step)
        torch.testing.assert_close(points.grad[:, store, column], slope, rtol=0.1, atol=0.02)


def test_slopes_are_finite_for_smooth_features_below_zero() -> None:
    points = torch.full((3, 2, len(NAMES)), -0.9).double().requires_grad_(True)
    fitted(logs(24, seed=1)).of(points, 0).sum().backward()  # type: ignore[no-untyped-call]
    assert points.grad is not None
    assert bool(points.grad.isfinite().all())


def test_too_few_or_equal_points_give_no_correction() -> None:
    few, same = logs(PROCESS.fewest - 1, seed=1), logs(1, seed=1).expand(20, -1, -1)
    assert Correction.fit(few, truth(few), torch.zeros(len(few), 1)) is None
    assert Correction.fit(same, truth(same), torch.zeros(20, 1)) is None


def test_measurements_correct_their_task_immediately_and_no_other() -> None:
    model = CostModel(Network(seed=0, members=2, width=16), pretrained=True)
    measured, rest = (np.expm1(logs(count, seed).double().numpy()) for count, seed in ((48, 1), (100, 2)))
    expected = truth(logs(100, 2)).numpy()
    before, version = model.predict(rest, "t"), model.version()
    model.anchor("t", rest)
    model.remember("t", measured, np.exp(-truth(logs(48, 1)).numpy()).tolist())
    assert model.version() == version  # the network was not trained
    after = model.predict(rest, "t")
    assert np.corrcoef(after, expected)[0, 1] > max(0.7, np.corrcoef(before, expected)[0, 1] + 0.1)
    np.testing.assert_array_equal(model.predict(rest), before)
    np.testing.assert_array_equal(model.predict(rest, "another"), before)
    smooth = model.score(logs(100, 2), "t").mean(dim=0).detach().numpy()
    assert np.corrcoef(smooth, expected)[0, 1] > 0.7


def test_failures_lower_predictions() -> None:
    model = CostModel(Network(seed=0, members=1, width=16), pretrained=True)
    measured = np.expm1(logs(32, 1).double().numpy())
    slow = measured[:, 0, COLUMN] > np.median(measured[:, 0, COLUMN])
    model.remember("t", measured, [float("inf") if s else 1e-3 for s in slow])
    rest = np.expm1(logs(100, 2).double().numpy())
    change = model.predict(rest, "t") - model.predict(rest)
    failing = rest[:, 0, COLUMN] > np.median(measured[:, 0, COLUMN])
    assert change[~failing].mean() > change[failing].mean() + 0.5
    assert np.isfinite(change).all()


def test_errors_of_similar_points_are_correlated() -> None:
    measured, rest = logs(48, seed=1), logs(30, seed=2)
    correction = fitted(measured)
    mean, covariance = correction.with_covariance(rest, 0)
    predicted, spread = correction.with_spread(rest, 0)
    torch.testing.assert_close(mean, predicted)
    torch.testing.assert_close(covariance.diagonal().clamp(min=0.0).sqrt(), spread, rtol=1e-3, atol=1e-3)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-6
    assert float(torch.linalg.eigvalsh(unmeasured(rest)).min()) > -1e-6
    same = unmeasured(rest[:1].expand(4, -1, -1))  # the same point four times
    assert float(same.min()) == float(same.max()) > 0.0
