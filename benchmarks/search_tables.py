"""Format search results and their convergence as tables and curves.

Input: runs of strategies on subgraphs. Outputs: Markdown, and an image.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from benchmarks.results import FOLDER, geometric_mean
from felixlike.report.curves import Series, quality, times_to

STOCK = "stock tune_tir"

LOOKS = (16, 32, 64, 128)
SHARES = (0.90, 0.95, 0.99)

_FIRST = 16
"""Candidates of a first round, or more: their predicted scores have an arbitrary constant."""

_DEFAULT, _FEWEST, _BOOTSTRAP = "gradient", 5, 10_000
"""Strategy that others are compared with, fewest subgraphs for an interval, and number of samples drawn for it."""

_BY_MODEL = ("gradient", "evolutionary", "felix", "ansor")
"""First words of the strategies whose scores are logarithms of speeds."""


@dataclass(slots=True)
class Run:
    """One search.

    `seconds` and `elapsed` hold each candidate's latency (inf for failures) and the seconds from the start of the
    search to its result. `sketch` and `point` describe the winner. `again` is the winner's latency, timed together
    with all other winners of the subgraph; nan until then. `predicted` and `origins` hold each candidate's score (nan
    if unknown) and what proposed it.
    """

    space: str
    task: str
    seed: int
    strategy: str
    seconds: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    sketch: str = ""
    point: list[int] = field(default_factory=list)
    again: float = math.nan
    predicted: list[float] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    @property
    def name(self) -> tuple[str, str, int, str]:
        """Return the key that identifies the run."""
        return self.space, self.task, self.seed, self.strategy

    @property
    def series(self) -> Series:
        """Return the measurements as a curve."""
        return Series(self.elapsed, self.seconds)

    @property
    def comparable(self) -> Run:
        """Return the run with latencies as in the joint timing of all winners, unchanged without it.

        The speed of a machine differs by several percent between runs, more than the shares that are compared.
        """
        best = self.series.best
        factor = self.again / best if math.isfinite(self.again) and math.isfinite(best) else 1.0
        return replace(self, seconds=[factor * seconds for seconds in self.seconds])


def text(runs: Sequence[Run]) -> str:
    """Return, for each space, the distance to the best known latency, the speed of convergence, and the winners."""
    parts = []
    stocks = [run for run in runs if run.strategy == STOCK and run.seconds]
    for space in dict.fromkeys(run.space for run in runs):
        members = [run.comparable for run in runs if run.space == space and run.seconds and run.strategy != STOCK]
        parts.append(f"## space: {space}\n\n" + _space_text(members, stocks))
    return "\n\n".join(parts)


def _space_text(runs: Sequence[Run], stocks: Sequence[Run]) -> str:
    known = {task: _best_known(runs, task) for task in dict.fromkeys(run.task for run in runs)}
    strategies = list(dict.fromkeys(run.strategy for run in runs))
    longest = max(len(run.seconds) for run in runs)
    checkpoints = [checkpoint for checkpoint in LOOKS if checkpoint <= longest] or [longest]
    lines = [
        f"{len(known)} subgraphs, {len({run.seed for run in runs})} seeds, up to {longest} candidates. "
        "Latencies of a run are multiplied by its winner's in the joint timing of all winners ÷ in the run, since the "
        "machine's speed differs between runs. Best known ÷ best found after so many candidates, geometric means; "
        "of candidates and seconds until within a share of the best "
        "known: geometric means, runs that never were count as twice their length; first: subgraphs whose mean over "
        "seeds, after so many candidates, is the best or within 3 % of it.",
        "",
        "| strategy | "
        + " | ".join(f"after {checkpoint}" for checkpoint in checkpoints)
        + " | "
        + " | ".join(f"candidates to {share:.0%}" for share in SHARES)
        + " | "
        + " | ".join(f"s to {share:.0%}" for share in SHARES)
        + " | "
        + " | ".join(f"first at {checkpoint}" for checkpoint in checkpoints)
        + " | winners again |",
        "| --- |" + " --- |" * (2 * len(checkpoints) + 2 * len(SHARES) + 1),
    ]
    for strategy in strategies:
        strategy_runs = [run for run in runs if run.strategy == strategy]
        qualities = [
            f"{geometric_mean([_share(run, checkpoint, known) for run in strategy_runs]):.3f}"
            for checkpoint in checkpoints
        ]
        counts = [f"{geometric_mean([_until(run, s, known)[0] for run in strategy_runs]):.1f}" for s in SHARES]
        seconds = [f"{geometric_mean([_until(run, s, known)[1] for run in strategy_runs]):.1f}" for s in SHARES]
        first = [
            f"{sum(_leads(runs, strategy, t, checkpoint) for t in known)}/{len(known)}" for checkpoint in checkpoints
        ]
        retimed = [known[r.task] / r.again for r in strategy_runs if math.isfinite(r.again)]
        cells = [*qualities, *counts, *seconds, *first, f"{geometric_mean(retimed):.3f}" if retimed else "–"]
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Best after {checkpoints[-1]} candidates, µs, geometric mean over seeds (winners timed again in turns):",
        "",
    ]
    lines += [f"| subgraph | {' | '.join(strategies)} |", "| --- |" + " --- |" * len(strategies)]
    for task in known:
        cells = []
        for strategy in strategies:
            times = [r.again for r in runs if r.task == task and r.strategy == strategy and math.isfinite(r.again)]
            cells.append(microseconds(geometric_mean(times)) if times else "–")
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    lines += _ratio_lines(runs, known)
    lines += _origin_lines(runs, known)
    return "\n".join([*lines, *(_stock_lines(runs, stocks, strategies) if stocks else ())])


def _ratio_lines(runs: Sequence[Run], known: dict[str, float]) -> list[str]:
    """Compare every strategy with the default one, with confidence intervals; empty without the default."""
    by_strategy: dict[str, dict[tuple[str, int], Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy, {})[run.task, run.seed] = run
    default = by_strategy.pop(_DEFAULT, {})
    lines = []
    for strategy, others in by_strategy.items():
        both = [(others[key], default[key]) for key in default if key in others]
        if len({run.task for run, _ in both}) < _FEWEST:
            continue
        by_share = [_log_ratios(both, share, known) for share in SHARES]
        cells = [_interval(logs[:, what]) for what in (0, 1) for logs in by_share]
        lines.append(f"| {strategy} | {len(both)} | " + " | ".join(cells) + " |")
    if not lines:
        return []
    return [
        "",
        f"Candidates and seconds of a strategy ÷ those of {_DEFAULT}, geometric means over subgraphs of the runs that "
        "both have [95 % confidence interval, bootstrap over subgraphs]; above 1, the default needs fewer.",
        "",
        "| strategy | runs | "
        + " | ".join(f"{what} to {share:.0%}" for what in ("candidates", "s") for share in SHARES)
        + " |",
        "| --- |" + " --- |" * (1 + 2 * len(SHARES)),
        *lines,
    ]


def _log_ratios(pairs: Sequence[tuple[Run, Run]], share: float, known: dict[str, float]) -> npt.NDArray[np.float64]:
    """Return float64[subgraphs, 2], means of ln(candidates ÷ the other run's) and of the same of seconds."""
    by_task: dict[str, list[npt.NDArray[np.float64]]] = {}
    for run, other in pairs:
        ratio = np.divide(_until(run, share, known), _until(other, share, known))
        by_task.setdefault(run.task, []).append(np.log(ratio))
    return np.array([np.mean(logs, axis=0) for logs in by_task.values()])


def _interval(logs: npt.NDArray[np.float64]) -> str:
    """Return the geometric mean of numbers with its confidence interval, from their logarithms."""
    drawn = np.random.default_rng(0).choice(logs, (_BOOTSTRAP, len(logs))).mean(axis=1)
    low, middle, high = np.exp([np.quantile(drawn, 0.025), logs.mean(), np.quantile(drawn, 0.975)])
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _origin_lines(runs: Sequence[Run], known: dict[str, float]) -> list[str]:
    """Compare predicted with measured log speeds, by what proposed the candidates; empty without such runs."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run in (run for run in runs if run.strategy.startswith(_BY_MODEL)):
        rows = list(zip(run.seconds, run.predicted, run.origins, strict=False))
        for latency, score, origin in rows[_FIRST:]:
            if math.isfinite(latency) and math.isfinite(score):
                pairs.setdefault((run.strategy, origin), []).append((score, math.log(known[run.task] / latency)))
    if not pairs:
        return []
    lines = [
        "",
        f"Candidates after the first {_FIRST} by what proposed them: means of the predicted and of the measured "
        "ln(best known ÷ latency), their difference, and the share within 10 % of the best known.",
        "",
        "| strategy | proposed by | candidates | predicted | measured | too optimistic by | within 10 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (strategy, origin), both in pairs.items():
        predicted, measured = (statistics.fmean(column) for column in zip(*both, strict=True))
        good = statistics.fmean(value > math.log(0.9) for _, value in both)
        numbers = f"{len(both)} | {predicted:.2f} | {measured:.2f} | {predicted - measured:.2f} | {good:.0%}"
        lines.append(f"| {strategy} | {origin} | {numbers} |")
    return lines


def _stock_lines(runs: Sequence[Run], stocks: Sequence[Run], strategies: Sequence[str]) -> list[str]:
    """Compare stock MetaSchedule with each strategy: seconds to the same latency, and the best of both."""
    most = max(len(run.seconds) for run in stocks)
    lines = [
        "",
        f"Stock `tune_tir`, {most} candidates: its seconds to a share of its own best ÷ a strategy's to the same "
        "latency, geometric means over subgraphs (runs that never were count as twice their length); and its best, by "
        "its own timing, ÷ ours.",
        "",
        "| strategy | " + " | ".join(f"to {share:.0%}" for share in SHARES) + " | best ÷ best |",
        "| --- |" + " --- |" * (len(SHARES) + 1),
    ]
    for strategy in strategies:
        pairs = [(s, r) for s in stocks for r in runs if r.task == s.task and r.strategy == strategy]
        cells = []
        for share in SHARES:
            ratios = []
            for theirs, ours in pairs:
                goal = {theirs.task: theirs.series.best}
                ratios.append(_until(theirs, share, goal)[1] / _until(ours, share, goal)[1])
            cells.append(f"{geometric_mean(ratios):.1f}" if ratios else "–")
        best = [s.series.best / r.series.best for s, r in pairs]
        lines.append(f"| {strategy} | " + " | ".join([*cells, f"{geometric_mean(best):.2f}" if best else "–"]) + " |")
    return lines


def _best_known(runs: Sequence[Run], task: str) -> float:
    """Return the best winner's latency of a subgraph, from the joint timing if there is one."""
    task_runs = [run for run in runs if run.task == task]
    retimed = [run.again for run in task_runs if math.isfinite(run.again)]
    return min(retimed) if retimed else min(min(run.seconds) for run in task_runs)


def _share(run: Run, count: int, known: dict[str, float]) -> float:
    return max(1e-3, min(1.0, quality(run.series.after(count), known[run.task])))


def _until(run: Run, share: float, known: dict[str, float]) -> tuple[float, float]:
    """Return candidates and seconds until a latency within a share of the best known was measured."""
    ((_, reached),) = times_to(run.series, known[run.task], (share,))
    return (
        (2.0 * len(run.seconds), 2.0 * run.series.seconds) if reached is None else (reached.candidates, reached.seconds)
    )


def _leads(runs: Sequence[Run], strategy: str, task: str, count: int) -> bool:
    """Return whether a strategy's mean over seeds is the best of a subgraph or within 3 % of it."""
    means = {}
    for name in {run.strategy for run in runs}:
        latencies = [r.series.after(count) for r in runs if r.task == task and r.strategy == name]
        latencies = [seconds for seconds in latencies if math.isfinite(seconds)]
        if latencies:
            means[name] = geometric_mean(latencies)
    return strategy in means and means[strategy] <= 1.03 * min(means.values())


def plot(runs: Sequence[Run], name: str) -> None:
    """Plot best known ÷ best so far over candidates, the geometric mean over subgraphs and seeds, one panel per
    space.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    spaces = list(dict.fromkeys(run.space for run in runs if run.seconds))
    if not spaces:
        return
    figure, axes = plt.subplots(1, len(spaces), figsize=(6 * len(spaces), 4), squeeze=False)
    for axis, space in zip(axes[0], spaces, strict=True):
        members = [run.comparable for run in runs if run.space == space and run.seconds]
        known = {task: _best_known(members, task) for task in {run.task for run in members}}
        longest_run = max(len(run.seconds) for run in members)
        for strategy in dict.fromkeys(run.strategy for run in members):
            strategy_runs = [run for run in members if run.strategy == strategy]
            curve = [
                geometric_mean([_share(run, n, known) for run in strategy_runs]) for n in range(1, longest_run + 1)
            ]
            axis.plot(range(1, longest_run + 1), curve, label=strategy)
        axis.set(
            title=f"space: {space}", xlabel="measured candidates", ylabel="best known ÷ best found", ylim=(0.4, 1.02)
        )
        axis.grid(alpha=0.3)
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


def microseconds(seconds: float) -> str:
    """Format seconds as microseconds for a table."""
    return f"{seconds * 1e6:.1f}"
