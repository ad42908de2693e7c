"""Select schedules by prediction alone, for tasks that are not measured.

Inputs: a space and a cost model. Output: candidates, best first. Random points of every symbolic sketch are scored by
the exact formulas, without smooth formulas or gradients. A sketch with few points is nearly enumerated. The weights are
trained on measurements on one core, so this module adds the cost of several cores:

    latency = predicted · ( uneven + launch · cores ÷ seconds on one core )
    uneven  = Σ stores' iterations · (⌈parallel ÷ cores⌉ · cores ÷ parallel)  ÷  Σ iterations
    launch  = the time to hand work to other threads, if any loop is parallel
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from felixlike._util.spent import on
from felixlike._util.torch_modes import default_modes
from felixlike.costmodel import CostModel
from felixlike.costmodel.bottleneck import Bottlenecks
from felixlike.features import NAMES, FeatureArray
from felixlike.hardware import kind_of, target_device
from felixlike.search.candidate import Candidate
from felixlike.search.space import Space
from felixlike.search.strategy import Observations, Strategy, draw

_POOL = 2048
"""Points sampled per sketch: nearly all of them if there are a few hundred. Chosen by hand."""

_PATHS = 3
"""Maximum number of combinations of compute locations per sketch; each needs its own formulas. Chosen by hand."""

_LAUNCH = 2e-6
"""Seconds to distribute a loop to TVM's waiting threads and to collect their completion: 1 to 3 µs if each thread has
its own core."""

_CYCLES = 1.2e10
"""Cycles of the bottleneck model per second. Cores run at 3 to 4 GHz, and wide ones start several vector operations a
cycle if their operands are available."""


class Predicted(Strategy):
    """Propose the candidates with the best predicted scores."""

    def __init__(self, model: CostModel) -> None:
        self.model = model

    def propose(self, space: Space, known: Observations, count: int, rng: np.random.Generator) -> list[Candidate]:
        """Return candidates, best first; see `Strategy.propose`.

        If the model is untrained or a sketch is not symbolic, candidates are sampled at random and come last. After the
        run's deadline only one structure is scored."""
        with on("ranking"):
            scored = _scored(space, self.model, rng) if self.model.trained else []
        scored = [c for c in scored if c.key not in known.seen]
        on_host = kind_of(space.task.target).on_host
        best = _ranked(scored, count, on_host=on_host)
        seen = known.seen | {c.key for c in best}
        others = draw(space, count - len(best), seen, rng, origin="random")
        if on_host:  # as for the ranked ones: rules offer sketches that round only where they are faster
            others.sort(key=lambda c: c.is_exact)
        return [*best, *others]


def _ranked(candidates: list[Candidate], count: int, *, on_host: bool) -> list[Candidate]:
    """Return at most `count` candidates, best first.

    On CPUs, candidates that round factors are first, whatever their scores. Rules offer them only where they are
    estimated to be faster. The scores of attention preferred float32 in five of nine measured shapes, where it took up
    to 1.5 times as long. One float32 candidate is kept for tasks whose rounded answers are wrong.
    """
    ranked = sorted(candidates, key=lambda c: -c.score)
    if not on_host:
        return ranked[:count]
    exact = [c for c in ranked if c.is_exact]
    rounded = [c for c in ranked if not c.is_exact]
    return [*rounded[: max(1, count - 1) if exact else count], *exact][:count]


def _scored(space: Space, model: CostModel, rng: np.random.Generator) -> list[Candidate]:
    """Sample points of the symbolic sketches and score them by the exact formulas."""
    cores = target_device(space.task.target).cores if kind_of(space.task.target).on_host else 1
    candidates: list[Candidate] = []
    for sketch in space.symbolic:
        late = space.deadline.passed
        if late and candidates:
            break
        points = np.unique(sketch.sample(_POOL, int(rng.integers(2**31)), paths=1 if late else _PATHS), axis=0)
        features = space.features(sketch, points)
        if features is not None:
            scores = model.predict(features, space.task.key)
            if cores > 1:
                scores = scores - np.log(sharing(features, cores))
            candidates += [
                Candidate(sketch, tuple(p), float(s), "predicted") for p, s in zip(points.tolist(), scores, strict=True)
            ]
    return candidates


def sharing(features: FeatureArray, cores: int) -> npt.NDArray[np.float64]:
    """Return float64[n] ≥ 1, the time relative to a perfect division of work among cores.

    TVM gives each core the same number of consecutive iterations of a parallel loop, and fewer to the last.

    Args:
        features: float64[n, stores, columns].
        cores: Number of cores.
    """
    iterations = features[..., NAMES.index("iterations")]
    parallel = np.maximum(features[..., NAMES.index("parallel_extent")], 1.0)
    waiting = np.ceil(parallel / cores) * cores / parallel
    uneven = (iterations * waiting).sum(axis=1) / np.maximum(iterations.sum(axis=1), 1.0)
    launched = (parallel > 1.0).any(axis=1)
    times: npt.NDArray[np.float64] = np.maximum(uneven, 1.0) + launched * _LAUNCH * cores / _seconds(features)
    return times


@default_modes(gradients=False)
def _seconds(features: FeatureArray) -> npt.NDArray[np.float64]:
    """Return float64[n], the estimated seconds on one core, by the bottleneck model with its initial costs."""
    logs = torch.from_numpy(np.log1p(features)).to(torch.float32)
    with torch.no_grad():
        cycles = Bottlenecks()(logs, (logs.abs().amax(dim=-1) > 0).to(logs.dtype)).exp()
    seconds: npt.NDArray[np.float64] = np.asarray(cycles.double().numpy() / _CYCLES)
    return seconds
