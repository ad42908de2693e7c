"""Format AdaTune's runs as tables and figures.

Input: runs of its variants on simulated devices, and the times of micro-batches in the stores of data/. Outputs:
Markdown, and pictures in docs/results/.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.results import FOLDER
from benchmarks.simulated_data import DATA, STORES
from felixlike.bench.searches import Trials
from felixlike.measure import EVALUATORS, Status
from felixlike.measure.evaluator import cumulative_variation
from felixlike.report.curves import Interval, Series, band, interval
from felixlike.report.picture import draw_band, new_figure, save_figure
from felixlike.training.packed import opened
from felixlike.training.samples import restored


@dataclass(frozen=True, slots=True)
class Run:
    """One search.

    Attributes:
        workload: Name of the operator or the network.
        variant: Name of the variant.
        seed: The seed.
        trials: The candidates.
        names: Names of the tasks.
        weights: Calls of each task in the network.
        flops: Floating-point operations of a call of the operator or the network.
        is_network: Whether it is a network.
    """

    workload: str
    variant: str
    seed: int
    trials: Trials
    names: tuple[str, ...]
    weights: tuple[float, ...]
    flops: float
    is_network: bool

    @property
    def series(self) -> Series:
        """Return the latency of the operator or the network over the seconds of the search."""
        return self.trials.series(self.weights)

    @property
    def has_schedule(self) -> frozenset[int]:
        """Return the indices of the tasks of which a candidate has a latency."""
        return frozenset(t for t, s in zip(self.trials.task, self.trials.latency, strict=True) if math.isfinite(s))

    @property
    def search_seconds(self) -> float:
        """Return the CPU seconds of the search itself."""
        return self.series.seconds - sum(self.trials.build) - sum(self.trials.run)

    def row(self) -> dict[str, Any]:
        """Return the run as JSON can hold it."""
        fields = {name: getattr(self, name) for name in ("workload", "variant", "seed", "names", "weights", "flops")}
        return {**fields, "is_network": self.is_network, "trials": self.trials.row()}

    @classmethod
    def of(cls, row: dict[str, Any]) -> Run:
        """Return what `row` returned."""
        return cls(
            row["workload"],
            row["variant"],
            row["seed"],
            Trials.of(row["trials"]),
            tuple(row["names"]),
            tuple(row["weights"]),
            row["flops"],
            row["is_network"],
        )

    def brief(self) -> dict[str, Any]:
        """Return the totals of the run, and its curve as (candidates, seconds, latency)."""
        steps = [(step.candidates, round(step.seconds, 2), step.latency) for step in self.series.steps()]
        return {
            "workload": self.workload,
            "variant": self.variant,
            "seed": self.seed,
            "candidates": len(self.trials),
            "search_seconds": self.search_seconds,
            "build_seconds": sum(self.trials.build),
            "run_seconds": sum(self.trials.run),
            "curve": steps,
        }


BASELINE, ADATUNE = "xgb+sa+de", "rfei+csa+ae"
VARIANTS = (BASELINE, "rfei+sa+de", "rfei+csa+de", ADATUNE)
"""The variants of figures 10 and 11; the first and the last one are those of figure 6."""

EPSILONS = {"ε = 0": 0.0, "ε = 0.5": 0.5}
"""Other fixed shares of random candidates than the baseline's 0.05, for figure 4."""

GOAL = (1.3, 3.9)
"""The paper's range of speedups."""

_BATCHES = (1, 2, 4, 8, 16)
"""Numbers of micro-batches whose mean figure 3 shows."""

_LONG = 10
"""Micro-batches of the deterministic evaluator."""

_POINTS = 120
"""Points of a curve. Chosen by hand, so that a picture stays below 300 kB."""


def variation_rows() -> list[dict[str, Any]]:
    """Return how much the micro-batches vary that the stores hold (figure 3), and what the adaptive evaluator does.

    Returns:
        A row for each device: "device"; "candidates"; "variation", the median over candidates of the coefficient of
        variation of means of n micro-batches, by n; "deviation", that of the standard deviation in seconds. With at
        least ten micro-batches also the mean number that the adaptive evaluator takes of ten ("taken"), and the median
        and 95 % quantile of |its mean ÷ the mean of ten − 1| ("error", "large_error").
    """
    return [_variation(device, list(_repeats(device))) for device in STORES]


def _repeats(device: str) -> Iterator[tuple[float, ...]]:
    """Yield the seconds per call of each micro-batch of every valid candidate in a device's store."""
    with opened(DATA / STORES[device]) as store:
        for stored in store.workloads():
            task = restored(stored)
            for record in store.measurements(task) if task is not None else ():
                if record.measurement.status is Status.OK and len(record.measurement.repeats) > 1:
                    yield record.measurement.repeats


def _variation(device: str, every: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the row of a device."""
    row: dict[str, Any] = {"device": device, "candidates": len(every), "variation": {}, "deviation": {}}
    for size in _BATCHES:
        means = [[statistics.fmean(one[i : i + size]) for i in range(0, len(one) - size + 1, size)] for one in every]
        means = [some for some in means if len(some) > 1]
        if means:
            row["variation"][str(size)] = statistics.median(statistics.stdev(s) / statistics.fmean(s) for s in means)
            row["deviation"][str(size)] = statistics.median(statistics.stdev(s) for s in means)
    long = [one[:_LONG] for one in every if len(one) >= _LONG]
    if long:
        taken = [_taken(one) for one in long]
        errors = sorted(
            abs(statistics.fmean(one[:count]) / statistics.fmean(one) - 1)
            for one, count in zip(long, taken, strict=True)
        )
        row["taken"] = statistics.fmean(taken)
        row["error"], row["large_error"] = errors[len(errors) // 2], errors[int(0.95 * (len(errors) - 1))]
    return row


def _taken(repeats: Sequence[float]) -> int:
    """Return how many micro-batches the adaptive evaluator would take of a candidate's."""
    timing = EVALUATORS["adaptive"]
    enough = (
        count
        for count in range(timing.min_batches, len(repeats))
        if cumulative_variation(repeats[:count]) < timing.spread
    )
    return next(enough, len(repeats))


def text(runs: Sequence[Run], batches: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Return the page.

    Args:
        runs: The runs.
        batches: Rows of `variation_rows`.
        names: Names of the pictures, in the order of the page.
    """
    operators = [run for run in runs if not run.is_network]
    networks = [run for run in runs if run.is_network]
    head = [
        "Simulated devices: seconds are the CPU seconds of the search plus the predicted ones of builds and calls. A",
        "simulated time has the same error whichever evaluator is used: what the adaptive evaluator loses is in the",
        "table of micro-batches. Cells: median over seeds [95 % confidence interval of the median; smallest and",
        "largest where there are fewer than 6 seeds].",
    ]
    lines = [
        *(head if runs else ["No searches yet, only what the stores in data/ hold."]),
        *_speedups(operators, "operator"),
        *_speedups(networks, "network"),
        *_left_out(networks),
        *_ends(operators),
        *_costs(operators, "operator (figure 9 of the paper, for operators)", "µs"),
        *_costs(networks, "network (figures 2 and 9)", "ms"),
        *_batch_lines(batches),
    ]
    for name in names:
        lines += ["", f"![{name}]({name})"]
    return "\n".join(lines)


def workloads(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Return the runs of each variant of each operator or network."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.workload, {}).setdefault(run.variant, []).append(run)
    return found


def speedups(by_variant: dict[str, list[Run]], variant: str, share: float = 1.0) -> list[float]:
    """Return, for each seed, the baseline's seconds to a share of its own best ÷ a variant's to the same latency.

    A variant that never arrives counts 0.
    """
    others = {run.seed: run.series for run in by_variant.get(variant, ())}
    ratios = []
    for run in by_variant.get(BASELINE, ()):
        if run.seed in others:
            goal = run.series.best / share * (1 + 1e-9)
            first, second = run.series.reached(goal), others[run.seed].reached(goal)
            ratios.append(0.0 if first is None or second is None else first.seconds / second.seconds)
    return ratios


def comparable(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with weight 0 for tasks for which no run of their network found a schedule.

    A simulated device fails some candidates, in every run the same ones, and some tasks have only one candidate.
    """
    having: dict[str, frozenset[int]] = {}
    for run in runs:
        having[run.workload] = having.get(run.workload, frozenset()) | run.has_schedule
    return [
        replace(run, weights=tuple(w if i in having[run.workload] else 0.0 for i, w in enumerate(run.weights)))
        for run in runs
    ]


def _left_out(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each network some of whose tasks have no schedule."""
    for run in {run.workload: run for run in runs}.values():
        names = [name for name, weight in zip(run.names, run.weights, strict=True) if not weight]
        if names:
            yield from ("", f"No run found a schedule for these tasks of {run.workload}: {', '.join(names)}.")


def _speedups(runs: Sequence[Run], what: str) -> Iterator[str]:
    """Yield the table of speedups."""
    if not runs:
        return
    variants = [v for v in VARIANTS[1:] if any(run.variant == v for run in runs)]
    yield from (
        "",
        f"## {what.capitalize()}s: seconds of the baseline ÷ of a variant",
        "",
        "To the best latency that the baseline (XGBoost, simulated annealing, deterministic evaluator) finds, and to",
        "95 % of it, seed by seed; 0: never. A candidate: seconds that one takes in the baseline ÷ in AdaTune. The",
        f"paper's range is {GOAL[0]}–{GOAL[1]}.",
        "",
        f"| {what} | seeds | {' | '.join(f'{v}, best | {v}, 95 %' for v in variants)} | a candidate |",
        "| --- |" + " --- |" * (2 + 2 * len(variants)),
    )
    for name, by_variant in workloads(runs).items():
        cells = [_cell([*speedups(by_variant, v, share)], ".2f") for v in variants for share in (1.0, 0.95)]
        costs = {run.seed: run.series.seconds / len(run.trials) for run in by_variant.get(ADATUNE, ())}
        last = [
            run.series.seconds / len(run.trials) / costs[run.seed]
            for run in by_variant.get(BASELINE, ())
            if run.seed in costs
        ]
        yield f"| {name} | {len(by_variant.get(BASELINE, ()))} | {' | '.join(cells)} | {_cell(last, '.2f')} |"


def _ends(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table of the best latency of each variant."""
    if not runs:
        return
    variants = [v for v in (*VARIANTS, *EPSILONS) if any(run.variant == v for run in runs)]
    yield from (
        "",
        "## Best latency, µs (figures 4, 6, 10 and 11)",
        "",
        f"| operator | candidates | {' | '.join(variants)} |",
        "| --- | --- |" + " --- |" * len(variants),
    )
    for name, by_variant in workloads(runs).items():
        counts = sorted({len(run.trials) for some in by_variant.values() for run in some})
        cells = [_cell([run.series.best * 1e6 for run in by_variant.get(v, ())], ".4g") for v in variants]
        yield f"| {name} | {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} | {' | '.join(cells)} |"


def _costs(runs: Sequence[Run], what: str, unit: str) -> Iterator[str]:
    """Yield the table of what a search spends its seconds on."""
    scale = {"µs": 1e6, "ms": 1e3}[unit]
    if not runs:
        return
    yield from (
        "",
        f"## Seconds by {what}",
        "",
        "Medians over seeds of the search itself, of builds, and of calls. The paper counts no builds.",
        "",
        f"| name | variant | candidates | search | builds | calls | calls, share | best, {unit} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for name, by_variant in workloads(runs).items():
        for variant in (BASELINE, ADATUNE):
            some = by_variant.get(variant, [])
            if some:
                parts = [statistics.median(part(run) for run in some) for part in _PARTS.values()]
                best = _cell([run.series.best * scale for run in some], ".4g")
                seconds = " | ".join(f"{part:.0f}" for part in parts)
                count = statistics.median_low(len(run.trials) for run in some)
                yield f"| {name} | {variant} | {count} | {seconds} | {parts[-1] / sum(parts):.0%} | {best} |"


_PARTS: dict[str, Callable[[Run], float]] = {
    "search": lambda run: run.search_seconds,
    "builds": lambda run: sum(run.trials.build),
    "calls": lambda run: sum(run.trials.run),
}
"""What a search spends its seconds on."""


def _batch_lines(batches: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of micro-batches."""
    if not batches:
        return
    yield from (
        "",
        "## Micro-batches of real measurements (figure 3)",
        "",
        "From the stores in data/: median coefficient of variation of means of n micro-batches of 0.5 ms or more; of",
        f"{_LONG} micro-batches, how many the adaptive evaluator takes, and how far its mean is from that of all.",
        "",
        f"| device | candidates | {' | '.join(f'n = {n}' for n in _BATCHES)} | taken | error | 95 % below |",
        "| --- | --- |" + " --- |" * (len(_BATCHES) + 3),
    )
    for row in batches:
        cells = [f"{row['variation'][str(n)]:.2%}" if str(n) in row["variation"] else "–" for n in _BATCHES]
        ends = [f"{row['taken']:.1f}", f"{row['error']:.2%}", f"{row['large_error']:.2%}"] if "taken" in row else "–––"
        yield f"| {row['device']} | {row['candidates']} | {' | '.join([*cells, *ends])} |"


def _cell(values: Sequence[float], form: str) -> str:
    """Return a median with its interval, as a cell of a table."""
    if not values:
        return "–"
    one = interval(values)
    median = format(one.median, form)
    return median if one.low == one.high else f"{median} [{one.low:{form}}, {one.high:{form}}]"


def draw(runs: Sequence[Run], batches: Sequence[dict[str, Any]], page: str = "adatune") -> list[str]:
    """Draw the figures of a page into docs/results. Return the names of the files."""
    operators = workloads([run for run in runs if not run.is_network])
    networks = workloads([run for run in runs if run.is_network])
    names = []
    if operators:
        epsilons = {"ε = 0": "ε = 0", BASELINE: "ε = 0.05", "ε = 0.5": "ε = 0.5"}
        names.append(_curves(f"{page}-4.svg", operators, epsilons, seconds=False))
        names.append(_curves(f"{page}-6.svg", operators, {BASELINE: "AutoTVM", ADATUNE: "AdaTune"}, seconds=True))
        every = {variant: variant for variant in VARIANTS}
        names.append(_curves(f"{page}-10.svg", operators, every, seconds=False))
        names.append(_curves(f"{page}-11.svg", operators, every, seconds=True))
    if networks:
        names.append(_bars(f"{page}-2-9.svg", networks, "seconds", _PARTS))
        names.append(_bars(f"{page}-7.svg", networks, "ms per call", {"latency": lambda run: run.series.best * 1e3}))
        names.append(_bars(f"{page}-8.svg", networks, "seconds", {"in all": lambda run: run.series.seconds}))
    if batches:
        names.append(_draw_variation(f"{page}-3.svg", batches))
    return names


def _curves(name: str, operators: dict[str, dict[str, list[Run]]], labels: dict[str, str], *, seconds: bool) -> str:
    """Draw the median speed so far, with its interval, of some variants: a panel for each operator."""
    figure = new_figure(4.0 * len(operators), 3.2)
    panels = figure.subplots(1, len(operators), squeeze=False)[0]
    for panel, (workload, by_variant) in zip(panels, operators.items(), strict=True):
        for variant, label in labels.items():
            some = by_variant.get(variant, [])
            if some:
                end = max(run.series.seconds if seconds else len(run.trials) for run in some)
                at = [end * (i + 1) / _POINTS for i in range(_POINTS)]
                if not seconds:
                    at = sorted({math.ceil(count) for count in at})
                speeds = [_gigaflops(one, some[0].flops) for one in band([r.series for r in some], at, seconds=seconds)]
                draw_band(panel, at, speeds, label=label)
        panel.set_title(workload, fontsize="small")
        panel.set_xlabel("seconds" if seconds else "candidates", fontsize="small")
        panel.set_ylabel("GFLOPS", fontsize="small")
    handles, labels_shown = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels_shown, loc="outside upper center", ncols=4, frameon=False)
    save_figure(figure, FOLDER / name)
    return name


def _gigaflops(one: Interval, flops: float) -> Interval:
    """Return an interval of speeds for one of latencies; latencies of inf have no speed."""
    return Interval(
        *(flops / x * 1e-9 if math.isfinite(x) else (math.inf if x is one.median else 0.0) for x in _ends_of(one))
    )


def _ends_of(one: Interval) -> tuple[float, float, float]:
    """Return the median, and the ends in the order of speeds."""
    return one.median, one.high, one.low


def _bars(
    name: str, networks: dict[str, dict[str, list[Run]]], words: str, parts: dict[str, Callable[[Run], float]]
) -> str:
    """Draw stacked bars of medians for both sides on each network, with the interval of their sum."""
    figure = new_figure(1.0 + 1.8 * len(networks), 3.2)
    panel = figure.subplots()
    colors = dict(zip(parts, ("C0", "C1", "C2"), strict=False))
    labels: list[tuple[float, str]] = []
    for place, (network, by_variant) in enumerate(networks.items()):
        for offset, (variant, label) in enumerate(((BASELINE, "AutoTVM"), (ADATUNE, "AdaTune"))):
            some = by_variant.get(variant, [])
            if some:
                x, bottom = place * 3 + offset, 0.0
                for part, value in parts.items():
                    height = statistics.median(map(value, some))
                    panel.bar(x, height, bottom=bottom, color=colors[part], label=part if not labels else None)
                    bottom += height
                whole = interval(sum(value(run) for value in parts.values()) for run in some)
                panel.vlines(x, whole.low, whole.high, color="black", linewidth=0.8)
                labels.append((x, f"{network}\n{label}"))
    panel.set_xticks([x for x, _ in labels], [label for _, label in labels], fontsize="x-small")
    panel.set_ylabel(words, fontsize="small")
    if len(parts) > 1:
        figure.legend(loc="outside upper center", ncols=len(parts), frameon=False)
    save_figure(figure, FOLDER / name)
    return name


def _draw_variation(name: str, batches: Sequence[dict[str, Any]]) -> str:
    """Draw the coefficient of variation (curves) and the standard deviation (dashed) over n."""
    figure = new_figure(6.0, 3.2)
    panel = figure.subplots()
    beside = panel.twinx()
    for number, row in enumerate(batches):
        counts = [int(n) for n in row["variation"]]
        panel.plot(counts, list(row["variation"].values()), marker="o", color=f"C{number}", label=row["device"])
        beside.plot(counts, [s * 1e6 for s in row["deviation"].values()], linestyle="--", color=f"C{number}")
    panel.set_xlabel("micro-batches")
    panel.set_ylabel("coefficient of variation")
    beside.set_ylabel("standard deviation, µs (dashed)")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    beside.set_yscale("log")
    panel.legend(frameon=False)
    save_figure(figure, FOLDER / name)
    return name
