"""The best schedules by prediction alone, for tasks of which nothing will be measured.

In: a space and a cost model. Out: candidates, the most promising first. Random points of every understood sketch, all
of them where a sketch has few, are scored by the exact formulas; no smooth formulas are made, and no gradient. The
weights are trained on measurements of one core, so what several cores cost is reckoned here:

    latency = predicted · ( uneven + launch · cores ÷ seconds on one core )
    uneven  = Σ stores' iterations · (⌈parallel ÷ cores⌉ · cores ÷ parallel)  ÷  Σ iterations
    launch  = what it takes to hand work to other threads, where any loop is parallel
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.costmodel.bottleneck import Bottlenecks
from felixlike.features import NAMES, FeatureArray
from felixlike.hardware import kind_of, target_device
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Observations, Strategy, draw

_POOL = 2048
"""Points drawn of each sketch: nearly all where there are a few hundred."""

_PATHS = 3
"""Most combinations of compute locations among them; each needs formulas of its own."""

_LAUNCH = 2e-6
"""Seconds until TVM's waiting threads have got their shares of a loop, and the last has said that it is done: 1 to 3 µs
where each has a core of its own."""

_CYCLES = 1.2e10
"""Of those that the bottlenecks count, in a second: cores run at 3 to 4 GHz, and wide ones begin several vectors a
cycle where all that they need is at hand."""


class Predicted(Strategy):
    """Proposes what a cost model likes best."""

    def __init__(self, model: CostModel) -> None:
        self.model = model

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """See `Strategy.propose`: the best first. What cannot be predicted, by a model that knows nothing or for a
        sketch that is not understood, is drawn at random and comes last. After the run's deadline one structure is
        scored, and no more."""
        scored = _scored(space, self.model, rng) if self.model.trained else []
        scored = [c for c in scored if c.key not in known.seen]
        found = sorted(scored, key=lambda c: -c.score)[:count]
        seen = known.seen | {c.key for c in found}
        return [*found, *draw(space, count - len(found), seen, rng, origin="random")]


def _scored(space: Space, model: CostModel, rng: np.random.Generator) -> list[Candidate]:
    cores = target_device(space.task.target).cores if kind_of(space.task.target).on_host else 1
    found: list[Candidate] = []
    for sketch in space.understood:
        late = space.deadline.passed
        if late and found:
            break
        points = np.unique(sketch.sample(_POOL, int(rng.integers(2**31)), paths=1 if late else _PATHS), axis=0)
        features = space.features(sketch, points)
        if features is not None:
            scores = model.predict(features, space.task.key)
            if cores > 1:
                scores = scores - np.log(sharing(features, cores))
            found += [
                Candidate(sketch, tuple(p), float(s), "predicted") for p, s in zip(points.tolist(), scores, strict=True)
            ]
    return found


def sharing(features: FeatureArray, cores: int) -> npt.NDArray[np.float64]:
    """float64[n] ≥ 1: how many times as long as a perfect share of the work each of float64[n, stores, columns] takes.

    TVM gives each core as many consecutive iterations of a parallel loop, the last one fewer."""
    iterations = features[..., NAMES.index("iterations")]
    parallel = np.maximum(features[..., NAMES.index("parallel_extent")], 1.0)
    waiting = np.ceil(parallel / cores) * cores / parallel
    uneven = (iterations * waiting).sum(axis=1) / np.maximum(iterations.sum(axis=1), 1.0)
    launched = (parallel > 1.0).any(axis=1)
    times: npt.NDArray[np.float64] = np.maximum(uneven, 1.0) + launched * _LAUNCH * cores / _seconds(features)
    return times


@default_modes(gradients=False)
def _seconds(features: FeatureArray) -> npt.NDArray[np.float64]:
    """float64[n]: about what one core takes, by the bottlenecks in cycles as they are before any training."""
    logs = torch.from_numpy(np.log1p(features)).to(torch.float32)
    with torch.no_grad():
        cycles = Bottlenecks()(logs, (logs.abs().amax(dim=-1) > 0).to(logs.dtype)).exp()
    seconds: npt.NDArray[np.float64] = np.asarray(cycles.double().numpy() / _CYCLES)
    return seconds
