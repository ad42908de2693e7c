"""Gradient search against random search: python -m benchmarks.gradient_vs_random [--untrained].

On the five heaviest tasks of ResNet-18, for each of three seeds, both measure 64 candidates under the same
conditions; then the two winners are timed again, interleaved. The table gives random ÷ gradient: above 1, gradient
search found the faster schedule. Writes docs/results/gradient_vs_random.json and .md (with --untrained: …_untrained).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, dataclass

from benchmarks.results import geometric_mean, write
from felixlike import Task, extract_tasks, records
from felixlike.costmodel import CostModel, load
from felixlike.measure import MeasurePool
from felixlike.search import Candidate, make_strategy
from felixlike.testing.models import resnet18
from felixlike.tuning import Budget, Session, one_thread

TASKS = 5
CANDIDATES = 64
SEEDS = (0, 1, 2)
RETIMED = 9


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of the two winners, timed again, and what each search cost."""

    task: str
    seed: int
    gradient: float
    random: float
    gradient_wall: float
    random_wall: float

    @property
    def ratio(self) -> float:
        """Random ÷ gradient."""
        return self.random / self.gradient


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--untrained", action="store_true", help="start without the shipped weights")
    arguments = parser.parse_args()

    rows: list[Row] = []
    with one_thread():
        for task in extract_tasks(*resnet18())[:TASKS]:
            for seed in SEEDS:
                rows.append(_compare(task, seed, untrained=arguments.untrained))
                print(f"{rows[-1].task} seed {seed}: {rows[-1].ratio:.2f}", flush=True)
    name = "gradient_vs_random_untrained" if arguments.untrained else "gradient_vs_random"
    data = {"rows": [asdict(r) | {"ratio": r.ratio} for r in rows], "mean": _mean(rows)}
    write(name, data, _text(rows), command=name.replace("_untrained", " --untrained"))


def _compare(task: Task, seed: int, *, untrained: bool) -> Row:
    winners: dict[str, Candidate] = {}
    walls: dict[str, float] = {}
    with MeasurePool(task.target, reuse=False) as pool:
        for strategy in ("gradient", "random"):
            started = time.monotonic()
            winners[strategy] = _search(task, strategy, seed, pool, untrained=untrained)
            walls[strategy] = time.monotonic() - started
        again: dict[str, list[float]] = {name: [] for name in winners}
        for _ in range(RETIMED):
            for name, candidate in winners.items():
                (found,) = pool.measure(task, [candidate], verify=False)
                again[name].append(found.seconds)
    best = {name: statistics.median(times) for name, times in again.items()}
    name = task.name
    return Row(name, seed, best["gradient"], best["random"], walls["gradient"], walls["random"])


def _search(task: Task, strategy: str, seed: int, pool: MeasurePool, *, untrained: bool) -> Candidate:
    model = CostModel(seed=seed) if untrained else load(seed=seed)
    with records.open() as store:
        session = Session(
            [task],
            strategy=make_strategy(strategy),
            model=model,
            pool=pool,
            store=store,
            seed=seed,
        )
        session.run(Budget(trials=CANDIDATES))
    best = session.states[0].best
    assert best is not None
    return best[1]


def _mean(rows: list[Row]) -> float:
    return geometric_mean([r.ratio for r in rows])


def _text(rows: list[Row]) -> str:
    lines = [
        f"Best of {CANDIDATES} measured candidates each, winners timed again {RETIMED} times in turn (medians).",
        "",
        "| task | seed | random ms | gradient ms | random ÷ gradient | search s (random, gradient) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.task} | {r.seed} | {r.random * 1e3:.3f} | {r.gradient * 1e3:.3f} | {r.ratio:.2f} "
        f"| {r.random_wall:.0f}, {r.gradient_wall:.0f} |"
        for r in rows
    ]
    low, high = min(r.ratio for r in rows), max(r.ratio for r in rows)
    return "\n".join([*lines, "", f"Geometric mean **{_mean(rows):.2f}** ({low:.2f} to {high:.2f})."])


if __name__ == "__main__":
    main()
