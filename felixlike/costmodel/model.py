"""Define `CostModel`, which predicts scores, scores relaxed features, and learns from measurements.

Input: features. Output: log(1 / latency) up to a constant of the task.
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
from felixlike.costmodel.correction import PROCESS, Correction, unmeasured
from felixlike.costmodel.dataset import Dataset, TaskSamples, stack
from felixlike.costmodel.mlp import Network
from felixlike.costmodel.ratios import limits_of
from felixlike.costmodel.train import Training, train
from felixlike.costmodel.weights import load_weights, shipped
from felixlike.errors import InvalidWeights
from felixlike.features import FeatureArray
from felixlike.hardware import KINDS, Device

Scores = npt.NDArray[np.float64]

_ROUND = Training(steps=20, tasks=2, samples=48)
"""Training after a round of a search: 0.25 s on one core of a Zen 5. Twice the steps with more tasks and samples took
0.68 s and did not rank the rest of unseen workloads better after 32 of their candidates (0.82 both, 0.81 before)."""

_MOST_ANCHORS = 512
"""Maximum number of unmeasured points stored per task. Chosen by hand."""

_EXACT, _SMOOTH = 0, 1
"""Indices of the shared models of a correction: the one for exact points, and the differentiable one."""


class CostModel:
    """A network with its training samples.

    Args:
        network: The network; None for a new one.
        seed: Seed of a new network's weights, and of training.
        pretrained: Whether the network has been trained before.
    """

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
        """Return a hash of the weights, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        for array in self.network.trees.to_arrays("trees").values() if self.network.trees is not None else ():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def trained(self) -> bool:
        """Return whether the model has been trained, or has measurements to train on."""
        return self.pretrained or self.learned

    @property
    def learned(self) -> bool:
        """Return whether the model has measurements of this run or of a store."""
        return len(self.dataset) > 0

    def predict(self, features: FeatureArray, task: str | None = None) -> Scores:
        """Predict scores.

        Args:
            features: float64[n, stores, columns].
            task: Key of the points' task. Its measurements correct the prediction. None applies no correction.

        Returns:
            float64[n], log(1 / latency) up to a constant of the task; higher is faster.
        """
        return self.predict_with_spread(features, task)[0]

    @default_modes()
    def predict_with_spread(
        self, features: FeatureArray, task: str | None = None, *, trees: bool = True
    ) -> tuple[Scores, Scores]:
        """Predict the mean and standard deviation of scores.

        Args:
            features: float64[n, stores, columns].
            task: As for `predict`.
            trees: Whether the trees contribute to scores, if the network has any.

        Returns:
            Mean and standard deviation, float64[n] each. The standard deviation is the ensemble's, or that of the
            task's `Correction` if it has one.
        """
        logs = torch.from_numpy(np.log1p(features)).to(torch.float32)
        scores = self.network.exact(logs, trees=trees).double()
        mean, spread = scores.mean(dim=0), scores.std(dim=0, correction=min(1, len(scores) - 1))
        correction = self._correction(task)
        if correction is not None and len(logs):
            more, spread = correction.with_spread(logs, _EXACT)
            mean = mean + more
        return mean.numpy(), spread.numpy()

    @default_modes()
    def joint(
        self, features: Sequence[FeatureArray], task: str | None = None, *, trees: bool = True
    ) -> tuple[Scores, Scores]:
        """Predict the joint distribution of scores of points of several sketches.

        Args:
            features: float64[n, stores, columns] for each sketch.
            task: As for `predict`.
            trees: Whether the trees contribute to scores, if the network has any.

        Returns:
            Mean float64[n] and covariance of the errors float64[n, n], for the concatenated points.
        """
        logs = stack([x for some in features for x in torch.from_numpy(np.log1p(some)).to(torch.float32)])
        with torch.no_grad():
            mean = self.network.exact(logs, trees=trees).double().mean(dim=0)
            correction = self._correction(task)
            if correction is None:
                covariance = unmeasured(logs)
            else:
                more, covariance = correction.with_covariance(logs, _EXACT)
                mean = mean + more
        return mean.numpy(), covariance.numpy()

    @default_modes(gradients=False)
    def score(self, log_features: Tensor, task: str | None = None) -> Tensor:
        """Return differentiable scores by the network and the task's correction, without the trees.

        Args:
            log_features: log(1 + feature), [n, stores, columns].
            task: As for `predict`.

        Returns:
            float32[members, n].
        """
        log_features = log_features.to(torch.float32)
        scores: Tensor = self.network(log_features)
        correction = self._correction(task)
        return scores if correction is None else scores + correction.of(log_features, _SMOOTH).to(scores.dtype)

    def _correction(self, task: str | None) -> Correction | None:
        """Return the task's correction of the current network; None without enough measurements."""
        if task is None or task not in self.dataset.tasks():
            return None
        samples = self.dataset.samples(task)
        state = (len(samples.seconds), self._trainings)
        entry = self._corrections.get(task)
        if entry is None or entry[0] != state:
            entry = self._corrections[task] = state, self._corrected(samples)
        return entry[1]

    def _corrected(self, samples: TaskSamples) -> Correction | None:
        """Fit a correction to a task's fastest samples."""
        chosen = samples.fastest(PROCESS.most)
        if len(chosen) < PROCESS.fewest:
            return None
        with torch.no_grad():
            logs = stack([samples.log_features[i] for i in chosen])
            exact, smooth = self.network.exact(logs).mean(dim=0), self.network(logs).mean(dim=0)
            around = stack(samples.anchors) if samples.anchors else None
            return Correction.fit(logs, samples.labels()[chosen], torch.stack([exact, smooth], dim=1), around)

    @default_modes()
    def anchor(self, task: str, features: FeatureArray) -> None:
        """Store the pretrained model's scores of unmeasured points, which training then preserves (`anchor_loss`).

        Without a pretrained model, or once the task has 512 such points, this has no effect.

        Args:
            task: The task's key.
            features: float64[n, stores, columns].
        """
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
        """Train on all samples and return the loss.

        Args:
            focus: Key of a task that is drawn more often.
            options: Training options; None for a short training of about 0.25 s.
        """
        self._trainings += 1
        return train(self.network, self.dataset, self._rng, options=options or _ROUND, focus=focus)

    @default_modes()
    def remember(self, task: str, features: FeatureArray, seconds: Sequence[float]) -> None:
        """Add measurements of a task, without training.

        Args:
            task: The task's key.
            features: float64[n, stores, columns].
            seconds: Seconds per call; inf for failures.
        """
        first = len(self.dataset) == 0
        self.dataset.add(task, features, seconds)
        if first and not self.pretrained:
            self.network.standardise(torch.from_numpy(np.log1p(features)).to(torch.float32))


@default_modes()
def load(
    target: str = "cpu", path: str | Path | None = None, *, seed: int = 0, device: Device | None = None
) -> CostModel:
    """Load the cost model for a kind of target.

    Args:
        target: "cpu" or "cuda".
        path: Path of the weights; None for the shipped ones. Without shipped ones the model is untrained.
        seed: Seed of an untrained model's weights, and of training.
        device: The GPU that kernels are for, which sets how many of their blocks run at once. None for an H100, on
            which the shipped weights were measured.

    Raises:
        InvalidWeights: The weights cannot be read, or are for other features.
        InvalidOption: `target` or `seed` is invalid.
    """
    seed = option_checks.seed(seed, where="costmodel.load")
    target = option_checks.one_of(
        target, "costmodel.load", [kind.device for kind in KINDS.values()], what="a kind of target"
    )
    if path is None:
        file = shipped(target)
    else:
        file = option_checks.path(path, "weights", error=InvalidWeights, otherwise="None for the shipped weights")
    network = Network(seed=seed) if file is None else load_weights(file)
    network.gpu = limits_of(device)
    return CostModel(network, seed=seed, pretrained=file is not None)
