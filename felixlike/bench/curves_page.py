"""Format runs of networks over time as tables and pictures: Felix's Tables 1 and 2 and Figures 7 to 10.

Inputs: rows of `over_time.row_of` and of `scores.score_rows`, and the latencies of libraries. Outputs: Markdown text,
and pictures if matplotlib is installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from felixlike.bench.over_time import STOCK, STRATEGIES
from felixlike.bench.page import table
from felixlike.bench.results import geometric_mean
from felixlike.errors import MissingDependency
from felixlike.report.curves import QUALITIES, Interval, Series, band, best_known, combined, interval, times_to
from felixlike.training.samples import operator_of

_MS = 1e3
"""Milliseconds per second."""

_POINTS = 150
"""Points of a curve. Chosen by hand, so that pictures of several networks stay small."""

GOALS = {("ansor", "felix"): 2.0, ("felix", "gradient"): 1.5}
"""Goals of ratios of seconds, of the first strategy to the second."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one network with one batch size in one design space.

    Attributes:
        network: Name of the network.
        batch: Batch size.
        space: Name of the design space.
        target: Name of the target.
        tasks: Name, calls and operations of each task.
        weights: Calls of each task; 0 for a task for which no run found a schedule.
        runs: The rows of each strategy.
    """

    network: str
    batch: int
    space: str
    target: str
    tasks: Sequence[Row]
    weights: tuple[float, ...]
    runs: Mapping[str, Sequence[Row]]

    @property
    def title(self) -> str:
        """Return the network's name, with the batch size unless it is 1."""
        return self.network if self.batch == 1 else f"{self.network}, batch {self.batch}"

    @property
    def seconds(self) -> float:
        """Return the limit of the longest run."""
        return max(float(row["seconds"]) for rows in self.runs.values() for row in rows)

    def series(self, strategy: str) -> list[Series]:
        """Return the network's latency over the seconds of each run of a strategy."""
        return [_series(row, self.weights) for row in self.runs[strategy]]

    @property
    def known(self) -> float:
        """Return the best latency of all runs, in seconds."""
        return best_known(series for strategy in self.runs for series in self.series(strategy))


def _series(row: Row, weights: Sequence[float]) -> Series:
    """Return the network's latency over the seconds of one run."""
    columns = list(zip(*row["curve"], strict=True)) or [(), (), (), ()]
    return combined(columns[1], columns[2], columns[3], weights)


def groups(rows: Sequence[Row]) -> list[Group]:
    """Sort rows by network, batch, space and target. Runs of stock MetaSchedule are in the group of its space."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["target"], row["space"], row["batch"], row["network"]), []).append(row)
    return [_group(some) for some in found.values()]


def _group(rows: Sequence[Row]) -> Group:
    """Return the group of rows of one network."""
    tasks = rows[0]["tasks"]
    has_schedule = {entry[2] for row in rows for entry in row["curve"]}
    weights = tuple(task["calls"] if index in has_schedule else 0.0 for index, task in enumerate(tasks))
    names = [*STRATEGIES, *sorted({row["strategy"] for row in rows} - set(STRATEGIES))]
    runs = {name: [row for row in rows if row["strategy"] == name] for name in names}
    first = rows[0]
    runs = {name: some for name, some in runs.items() if some}
    return Group(first["network"], first["batch"], first["space"], first["target"], tasks, weights, runs)


def text(rows: Sequence[Row], libraries: Sequence[Row], scores: Sequence[Row], pictures: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        rows: Runs.
        libraries: "network", "batch", "name" and "seconds" of the fastest library for each network.
        scores: Rows of `scores.score_rows`.
        pictures: Names of the pictures' files, by what they show.
    """
    every = groups(rows)
    lines = [
        "Seconds of the search alone, from the tasks of an imported network on. The latency of a network is Σ calls ×",
        "best latency of each task so far, as in Felix: what a call adds to its kernels is not in it. Each run has its",
        "own process. Cells: median over seeds [95 % confidence interval of the median; smallest and largest where",
        "there are fewer than 6 seeds]. stock: TVM's `tune_relax` with its defaults, on the same tasks and in its own",
        "space; its latencies are by its own timing. >: the run ended before.",
    ]
    if any(group.target != "cpu" for group in every):
        lines += [
            "On simulated devices, seconds are the CPU seconds of the search plus predicted ones of builds and calls.",
        ]
    for space in dict.fromkeys((group.target, group.space) for group in every):
        members = [group for group in every if (group.target, group.space) == space]
        lines += ["", f"## {_space_title(*space)}", *_runs(members), *_table_1(members, libraries)]
        lines += [*_table_2(members), *_picture(pictures, space), *_operators(members), *_scores(members, scores)]
    return "\n".join(lines)


def _space_title(target: str, space: str) -> str:
    """Return the title of a chapter."""
    name = {"own": "Our space", "metaschedule": "MetaSchedule's space"}[space]
    return name if target == "cpu" else f"{name} on {target}"


def _runs(members: Sequence[Group]) -> Iterator[str]:
    """Yield a table of what the runs did."""
    yield from ("", "Candidates of a run, and the latency at its end:", "")
    strategies = _strategies(members)

    def cell(group: Group, strategy: str) -> str:
        if strategy not in group.runs:
            return "–"
        counts = interval(row["candidates"] for row in group.runs[strategy])
        ends = interval(series.best * _MS for series in group.series(strategy))
        return f"{counts.median:.0f}; {_shown(ends, '.3g')} ms"

    header = ("network", "seeds", "seconds", *strategies)
    yield from table(
        header,
        (
            [group.title, _seeds(group), f"{group.seconds:g}", *(cell(group, strategy) for strategy in strategies)]
            for group in members
        ),
    )
    for group in members:
        left_out = [task["name"] for task, weight in zip(group.tasks, group.weights, strict=True) if not weight]
        if left_out:
            yield from ("", f"No run found a schedule for these tasks of {group.title}: {', '.join(left_out)}.")
        interrupted = sum(row["interrupted"] for rows in group.runs.values() for row in rows)
        if interrupted:
            yield from ("", f"Runs of {group.title} were interrupted {interrupted} times and continued.")


def _seeds(group: Group) -> str:
    """Return the number of seeds, or the numbers if strategies have different ones."""
    counts = sorted({len(rows) for rows in group.runs.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _strategies(members: Sequence[Group]) -> list[str]:
    """Return the strategies of several networks, in the order of tables."""
    return list(dict.fromkeys(strategy for group in members for strategy in group.runs))


def _table_1(members: Sequence[Group], libraries: Sequence[Row]) -> Iterator[str]:
    """Yield the seconds to pass the best library."""
    known = {(row["network"], row["batch"]): row for row in libraries}
    having = [group for group in members if (group.network, group.batch) in known and group.target == "cpu"]
    if not having:
        return
    yield from ("", "### Seconds to pass the best library (Felix, Table 1)", "")
    strategies = _strategies(having)
    lines = []
    for group in having:
        library = known[group.network, group.batch]
        cells = [_reached(group, s, library["seconds"]) if s in group.runs else "–" for s in strategies]
        lines.append(
            [
                group.title,
                library["name"],
                f"{library['seconds'] * _MS:.3g}",
                *cells,
            ]
        )
    yield from table(("network", "library", "ms", *strategies), lines)


def _table_2(members: Sequence[Group]) -> Iterator[str]:
    """Yield the seconds to shares of the best known performance, and their ratios."""
    yield from ("", "### Seconds to shares of the best known (Felix, Table 2)", "")
    strategies = _strategies(members)
    lines = []
    for group in members:
        if not math.isfinite(group.known):
            continue
        for share in QUALITIES:
            cells = [_reached(group, s, group.known / share) if s in group.runs else "–" for s in strategies]
            lines.append([group.title, f"{share:.0%}", f"{group.known * _MS:.3g}", *cells])
    yield from table(("network", "share", "best known, ms", *strategies), lines)
    yield from _ratios(members, strategies)


def _ratios(members: Sequence[Group], strategies: Sequence[str]) -> Iterator[str]:
    """Yield ratios of seconds, geometric means over networks."""
    pairs = [pair for pair in (*GOALS, ("evolutionary", "gradient"), (STOCK, "gradient")) if set(pair) <= {*strategies}]
    if not pairs:
        return
    yield from (
        "",
        "Ratios of the median seconds, geometric means over the networks on which half of the runs of either arrive; a",
        "run that ended before counts as twice its length. In parentheses: candidates in place of seconds.",
        "",
    )
    lines = []
    for slow, fast in pairs:
        having = [group for group in members if {slow, fast} <= group.runs.keys() and math.isfinite(group.known)]
        if not having:
            continue
        cells = []
        for share in QUALITIES:
            arrived = [g for g in having if _arrives(g, slow, share) or _arrives(g, fast, share)]
            if not arrived:
                cells.append("–")
                continue
            seconds = geometric_mean([_median(g, slow, share)[0] / _median(g, fast, share)[0] for g in arrived])
            counts = geometric_mean([_median(g, slow, share)[1] / _median(g, fast, share)[1] for g in arrived])
            cells.append(f"{seconds:.2f} ({counts:.2f})")
        goal = GOALS.get((slow, fast))
        lines.append([f"{slow} ÷ {fast}", *cells, "–" if goal is None else f"{goal:g}"])
    yield from table(("ratio", *(f"to {share:.0%}" for share in QUALITIES), "goal"), lines)


def _arrives(group: Group, strategy: str, share: float) -> bool:
    """Return whether at least half of a strategy's runs reach a share of the best known."""
    reached = [times_to(series, group.known, (share,))[0][1] is not None for series in group.series(strategy)]
    return 2 * sum(reached) >= len(reached)


def _median(group: Group, strategy: str, share: float) -> tuple[float, float]:
    """Return the median seconds and candidates to a share of the best known; twice the length for runs that ended."""
    seconds, counts = [], []
    for series, row in zip(group.series(strategy), group.runs[strategy], strict=True):
        ((_, reached),) = times_to(series, group.known, (share,))
        seconds.append(2.0 * row["seconds"] if reached is None else max(reached.seconds, 1e-3))
        counts.append(2.0 * row["candidates"] if reached is None else row["curve"][reached.candidates - 1][0])
    return interval(seconds).median, max(1.0, interval(counts).median)


def _reached(group: Group, strategy: str, goal: float) -> str:
    """Return the seconds until a latency, as a cell of a table."""
    seconds = []
    for series in group.series(strategy):
        reached = series.reached(goal * (1 + 1e-9))
        seconds.append(math.inf if reached is None else reached.seconds)
    return _shown(interval(seconds), ".3g", never=f">{group.seconds:g}")


def _shown(value: Interval, form: str, never: str = "–") -> str:
    """Return a median with its interval; `never` in place of inf."""
    median, low, high = (format(x, form) if math.isfinite(x) else never for x in (value.median, value.low, value.high))
    return median if low == high else f"{median} [{low}, {high}]"


def _picture(pictures: Mapping[str, str], space: tuple[str, str]) -> Iterator[str]:
    """Yield the picture of a space's curves."""
    for batch, name in ((b, pictures.get(picture_key(*space, b), "")) for b in _BATCHES):
        if name:
            figure = "Fig. 7" if batch == "1" else "Fig. 10"
            yield from ("", f"![Latency of the networks over seconds and candidates (Felix, {figure})]({name})")


_BATCHES = ("1", "more")
"""Kinds of batch sizes: 1, which Felix's Fig. 7 shows, and larger ones, which Fig. 10 shows."""


def picture_key(target: str, space: str, batch: str) -> str:
    """Return the key of a picture, which is a part of its file's name."""
    return f"{space}-{batch}" if target == "cpu" else f"{target.replace(':', '-')}-{space}-{batch}"


def _operators(members: Sequence[Group]) -> Iterator[str]:
    """Yield how near to the best known each strategy came, by kind of operator."""
    shares: dict[str, dict[str, list[float]]] = {}
    for group in members:
        bests = {strategy: _task_bests(rows, len(group.tasks)) for strategy, rows in group.runs.items()}
        for index, task in enumerate(group.tasks):
            known = min(best[index] for best in bests.values())
            if math.isfinite(known) and task["flops"] > 0:
                for strategy, best in bests.items():
                    by_operator = shares.setdefault(operator_of(task["name"]), {})
                    by_operator.setdefault(strategy, []).append(
                        known / best[index] if math.isfinite(best[index]) else 0
                    )
    strategies = _strategies(members)
    yield from (
        "",
        "### Operators (Felix, Fig. 9)",
        "",
        "Best known latency of a task ÷ the median over seeds at the end of the runs, arithmetic means over the tasks",
        "of each kind of operator; 0 for tasks without a schedule. The paper also times operators of PyTorch and",
        "TensorFlow, which networks do not show one by one: see [space](space.md).",
        "",
    )
    lines = [
        [operator, str(max(map(len, by.values()))), *(f"{np.mean(by[s]):.2f}" if s in by else "–" for s in strategies)]
        for operator, by in sorted(shares.items())
    ]
    yield from table(("operator", "tasks", *strategies), lines)


def _task_bests(rows: Sequence[Row], count: int) -> list[float]:
    """Return the median over runs of each task's best latency; inf without a schedule."""
    bests = np.full((len(rows), count), np.inf)
    for place, row in enumerate(rows):
        for _, _, task, latency in row["curve"]:
            bests[place, task] = min(bests[place, task], latency)
    return [interval(column).median for column in bests.T.tolist()]


def _scores(members: Sequence[Group], scores: Sequence[Row]) -> Iterator[str]:
    """Yield the distribution of predicted scores."""
    having = [row for row in scores if row["scored"] > 1 and any(_belongs(row, group) for group in members)]
    if not having:
        return
    yield from (
        "",
        "### Predicted scores of all points that a search looks at (Felix, Fig. 8)",
        "",
        "In the first round of each of the heaviest tasks, with the shipped weights, before anything is measured.",
        "Shares are predicted speeds by the networks alone ÷ that of the best point of any strategy: quantiles of all",
        "points of a round, how many are above a share, the best in the batch that is measured. Means over tasks that",
        "have more than one point.",
        "",
    )
    lines = []
    for strategy in dict.fromkeys(row["strategy"] for row in having):
        shares = [(row, _shares(row, having)) for row in having if row["strategy"] == strategy]
        quantiles = [float(np.mean([values[place] for _, values in shares])) for place in (25, 50, 75, 95, 100)]
        fast = [float(np.mean([np.mean(values >= limit) for _, values in shares])) for limit in (0.5, 0.9)]
        chosen = [math.exp(row["measured"] - _top(row, having)) for row, _ in shares if row["measured"] is not None]
        lines.append(
            [
                strategy,
                f"{np.mean([row['scored'] for row, _ in shares]):.0f}",
                *(f"{quantile:.2f}" for quantile in quantiles),
                *(f"{share:.0%}" for share in fast),
                f"{np.mean(chosen):.2f}" if chosen else "–",
            ]
        )
    header = ("strategy", "points", "25 %", "median", "75 %", "95 %", "best", "≥ 0.5", "≥ 0.9", "best in the batch")
    yield from table(header, lines)


def _belongs(row: Row, group: Group) -> bool:
    """Return whether a row of scores is of a group's network."""
    return all(row[name] == getattr(group, name) for name in ("network", "batch", "space", "target"))


def _top(row: Row, rows: Sequence[Row]) -> float:
    """Return the best score of any strategy on a row's task."""
    names = ("network", "batch", "space", "target", "task")
    return max(float(other["scores"][-1]) for other in rows if all(other[name] == row[name] for name in names))


def _shares(row: Row, rows: Sequence[Row]) -> Any:
    """Return the quantiles of predicted speed ÷ that of the best point of any strategy, float64[QUANTILES]."""
    return np.exp(np.array(row["scores"]) - _top(row, rows))


def draw(rows: Sequence[Row], libraries: Sequence[Row], path: Path) -> dict[str, str]:
    """Draw the curves of each space: a panel over seconds and one over candidates for each network.

    Args:
        rows: Runs.
        libraries: As for `text`.
        path: Path of the pictures; their names get the space's name before the suffix.

    Returns:
        Names of the files by `picture_key`; empty without matplotlib.

    Raises:
        OutputNotWritable: A file cannot be written.
    """
    from felixlike.report.picture import new_figure, save_figure

    known = {(row["network"], row["batch"]): row["seconds"] * _MS for row in libraries}
    pictures: dict[str, list[Group]] = {}
    for group in groups(rows):
        batch = _BATCHES[0] if group.batch == 1 else _BATCHES[1]
        pictures.setdefault(picture_key(group.target, group.space, batch), []).append(group)
    names = {}
    for key, members in pictures.items():
        try:
            figure = new_figure(9.0, 0.7 + 2.6 * len(members))
        except MissingDependency:
            return {}
        panels = figure.subplots(len(members), 2, squeeze=False)
        for group, (over_seconds, over_candidates) in zip(members, panels, strict=True):
            _draw_group(group, over_seconds, over_candidates)
            if group.target == "cpu" and (group.network, group.batch) in known:
                over_seconds.axhline(known[group.network, group.batch], color="black", linewidth=0.8, linestyle="--")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
        picture = path.with_name(f"{path.stem}-{key}{path.suffix}")
        save_figure(figure, picture)
        names[key] = picture.name
    return names


def _draw_group(group: Group, over_seconds: Any, over_candidates: Any) -> None:
    """Draw a network's medians and intervals over seconds and over candidates."""
    from felixlike.report.picture import draw_band

    most = max(row["candidates"] for rows in group.runs.values() for row in rows)
    for strategy in group.runs:
        at = np.linspace(0.0, group.seconds, _POINTS).tolist()
        draw_band(over_seconds, at, _milliseconds(band(group.series(strategy), at)), label=strategy)
        counts = np.unique(np.linspace(1, max(1, most), _POINTS).astype(int)).tolist()
        by_count = [_over_candidates(row, group.weights) for row in group.runs[strategy]]
        draw_band(over_candidates, counts, _milliseconds(band(by_count, counts)), label=strategy)
    for panel, words in ((over_seconds, "seconds"), (over_candidates, "candidates")):
        panel.set_yscale("log")
        panel.set_title(group.title, fontsize="small")
        panel.set_xlabel(words, fontsize="small")
        panel.set_ylabel("ms", fontsize="small")


def _over_candidates(row: Row, weights: Sequence[float]) -> Series:
    """Return the network's latency with numbers of candidates in place of seconds."""
    columns = list(zip(*row["curve"], strict=True)) or [(), (), (), ()]
    return combined(columns[0], columns[2], columns[3], weights)


def _milliseconds(intervals: Sequence[Interval]) -> list[Interval]:
    """Return intervals of seconds in milliseconds."""
    return [Interval(one.median * _MS, one.low * _MS, one.high * _MS) for one in intervals]
