"""The cost model a search talks to: predict, score relaxed features, learn from measurements.

In: features. Out: log(1 / latency) up to a constant for each task.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from felixlike._util import option_checks
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel.correction import FEWEST, MOST, Correction, unmeasured
from felixlike.costmodel.dataset import Dataset, TaskSamples, stack
from felixlike.costmodel.mlp import Network
from felixlike.costmodel.train import Training, train
from felixlike.costmodel.weights import load_weights, shipped
from felixlike.errors import InvalidWeights
from felixlike.features import FeatureArray
from felixlike.hardware import KINDS

Scores = npt.NDArray[np.float64]

_ROUND = Training(steps=20, tasks=2, samples=48)
"""After a round of a search: 0.25 s on one core of a Zen 5. Twice the steps with more tasks and samples took 0.68 s and
ordered the rest of unseen workloads no better after 32 of their candidates (0.82 both, 0.81 before them)."""

_MOST_ANCHORS = 512
"""Unmeasured points remembered of one task."""

_EXACT, _SMOOTH = 0, 1
"""The models that a correction corrects: of exact points, and the differentiable one."""


class CostModel:
    """A network with the samples it learns from.  pretrained: whether it knew something before any measurement."""

    @default_modes()
    def __init__(self, network: Network | None = None, *, seed: int = 0, pretrained: bool = False) -> None:
        self.network = network if network is not None else Network(seed=seed)
        self.pretrained = pretrained
        self._pretrained = copy.deepcopy(self.network) if pretrained else None
        self.dataset = Dataset()
        self._rng = np.random.default_rng(seed)
        self._corrections: dict[str, tuple[tuple[int, int], Correction | None]] = {}
        self._trainings = 0

    def version(self) -> str:
        """The same for networks with the same weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        for array in self.network.trees.to_arrays("trees").values() if self.network.trees is not None else ():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def trained(self) -> bool:
        """Whether predictions mean anything."""
        return self.pretrained or self.learned

    @property
    def learned(self) -> bool:
        """Whether it knows measurements of this run, or of a store."""
        return len(self.dataset) > 0

    def predict(self, features: FeatureArray, task: str | None = None) -> Scores:
        """float64[n] for float64[n, stores, columns]: log(1 / latency) up to a constant per task; higher is faster.

        task: whose points they are; what was measured of it then corrects what is known of all tasks."""
        return self.predict_with_spread(features, task)[0]

    @default_modes()
    def predict_with_spread(self, features: FeatureArray, task: str | None = None) -> tuple[Scores, Scores]:
        """Mean and standard deviation, float64[n] each: of the ensemble, or, for a task with measurements, as they tell
        (`Correction`)."""
        logs = torch.from_numpy(np.log1p(features)).to(torch.float32)
        scores = self.network.exact(logs).double()
        mean, spread = scores.mean(dim=0), scores.std(dim=0, correction=min(1, len(scores) - 1))
        correction = self._correction(task)
        if correction is not None and len(logs):
            more, spread = correction.with_spread(logs, _EXACT)
            mean = mean + more
        return mean.numpy(), spread.numpy()

    @default_modes()
    def joint(self, features: Sequence[FeatureArray], task: str | None = None) -> tuple[Scores, Scores]:
        """Mean float64[n] and covariance float64[n, n] of the scores of points of several sketches, one after the
        other: how alike their errors are."""
        logs = stack([x for some in features for x in torch.from_numpy(np.log1p(some)).to(torch.float32)])
        with torch.no_grad():
            mean = self.network.exact(logs).double().mean(dim=0)
            correction = self._correction(task)
            if correction is None:
                covariance = unmeasured(logs)
            else:
                more, covariance = correction.with_covariance(logs, _EXACT)
                mean = mean + more
        return mean.numpy(), covariance.numpy()

    @default_modes(gradients=False)
    def score(self, log_features: Tensor, task: str | None = None) -> Tensor:
        """float32[members, n] for log(1 + feature) [n, stores, columns]; differentiable, hence of the network alone,
        and of what corrects it for a task."""
        log_features = log_features.to(torch.float32)
        scores: Tensor = self.network(log_features)
        correction = self._correction(task)
        return scores if correction is None else scores + correction.of(log_features, _SMOOTH).to(scores.dtype)

    def _correction(self, task: str | None) -> Correction | None:
        """What the measurements of a task say of the network as it is."""
        if task is None or task not in self.dataset.tasks():
            return None
        samples = self.dataset.samples(task)
        state = (len(samples.seconds), self._trainings)
        found = self._corrections.get(task)
        if found is None or found[0] != state:
            found = self._corrections[task] = state, self._corrected(samples)
        return found[1]

    def _corrected(self, samples: TaskSamples) -> Correction | None:
        chosen = samples.fastest(MOST)
        if len(chosen) < FEWEST:
            return None
        with torch.no_grad():
            logs = stack([samples.log_features[i] for i in chosen])
            exact, smooth = self.network.exact(logs).mean(dim=0), self.network(logs).mean(dim=0)
            around = stack(samples.anchors) if samples.anchors else None
            return Correction.fit(logs, samples.labels()[chosen], torch.stack([exact, smooth], dim=1), around)

    @default_modes()
    def anchor(self, task: str, features: FeatureArray) -> None:
        """Remember what a pretrained model thinks of unmeasured points of a task, so that training on the few measured
        ones does not make it forget the rest. Without effect on a model that knew nothing, and on a task that has
        enough."""
        if self._pretrained is None or not len(features):
            return
        have = len(self.dataset.samples(task).anchors) if task in self.dataset.tasks() else 0
        features = features[: max(0, _MOST_ANCHORS - have)]
        if not len(features):
            return
        with torch.no_grad():
            scores: Tensor = self._pretrained(torch.from_numpy(np.log1p(features)).to(torch.float32))
        self.dataset.add_anchors(task, features, scores)

    @default_modes()
    def refresh(self, focus: str | None = None, *, options: Training | None = None) -> float:
        """Train on all samples there are, more often on those of `focus`; returns the loss.

        options: None for a quarter of a second's worth."""
        self._trainings += 1
        return train(self.network, self.dataset, self._rng, options=options or _ROUND, focus=focus)

    @default_modes()
    def remember(self, task: str, features: FeatureArray, seconds: Sequence[float]) -> None:
        """Add measurements of a task (inf seconds for failures), without training yet."""
        first = len(self.dataset) == 0
        self.dataset.add(task, features, seconds)
        if first and not self.pretrained:
            self.network.standardise(torch.from_numpy(np.log1p(features)).to(torch.float32))


@default_modes()
def load(target: str = "cpu", path: str | Path | None = None, *, seed: int = 0) -> CostModel:
    """The cost model for a kind of target: weights from `path`, else those shipped with the package, else untrained.

    target: "cpu" or "cuda".  seed: of the initial weights where there are none, and of training. Raises InvalidWeights,
    InvalidOption."""
    seed = option_checks.seed(seed, where="costmodel.load")
    target = option_checks.one_of(
        target, "costmodel.load", [kind.device for kind in KINDS.values()], what="a kind of target"
    )
    if path is None:
        found = shipped(target)
    else:
        found = option_checks.path(path, "weights", error=InvalidWeights, otherwise="None for those shipped")
    network = Network(seed=seed) if found is None else load_weights(found)
    return CostModel(network, seed=seed, pretrained=found is not None)
