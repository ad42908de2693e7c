"""Evaluate and fit the simulated devices: python -m benchmarks.simulated [--fit] [--folds 5].

The benchmark measures how well the surrogate models agree with the measured devices on unseen workloads, and writes
docs/results/simulated.json and .md. With --fit it fits the trees that the package ships to all stores in data/. The
features of 20,000 schedules take ten minutes the first time and are cached in out/simulated/.
`benchmarks.simulated_real` compares with the host.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.results import write
from benchmarks.simulated_data import Measured, measured, together
from felixlike.costmodel.boosted_trees import Trees
from felixlike.hardware import SIMULATED
from felixlike.measure.simulated.surrogate import DEVICES, FOLDER, scale_of
from felixlike.training.scores import Quality, judged, mean_quality
from felixlike.training.split import FOLDS, fold_of_identity
from felixlike.training.tables import summary_table

_CALL = {"max_iter": 300, "learning_rate": 0.06, "max_leaf_nodes": 31, "min_samples_leaf": 10, "max_features": 0.3}
_BUILD = {**_CALL, "max_iter": 100, "learning_rate": 0.1}
_TOO_LONG = 20.0
"""Seconds assigned to a build or a call that was stopped after ten seconds."""
_QUANTILES = 201
_OF_ONE = {"zen5": 0.5, "emerald-rapids": 0.5, "h100": 0.474}
"""Ratio of the standard deviation of a candidate's time to that of the log-ratio in `Measured.noise`.

The log-ratio of two halves has √2 times the deviation of a half, and a half √2 times that of all batches. With three
batches the median is used, whose deviation is 0.67 of one batch's, and one batch has 1/√2 of that of the log-ratio of
two.
"""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of one device on unseen workloads.

    `seconds` is the median |log(predicted ÷ measured seconds)|, `builds` the same for builds (nan if not recorded).
    `failed` counts candidates that exceeded a time limit, `found` how many of these were predicted to, and `wrongly`
    how many were predicted to but did not. `noise` is the median relative error of the measurements.
    """

    device: str
    candidates: int
    seconds: float
    builds: float
    failed: int
    found: int
    wrongly: int
    noise: float


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="also write the trees that the package ships")
    parser.add_argument("--folds", type=int, default=FOLDS, help="of five, so many are held out in turn")
    arguments = parser.parse_args()
    texts: list[str] = []
    data: dict[str, Any] = {}
    agreements: list[Agreement] = []
    for kind, devices in DEVICES.items():
        parts = [measured(device) for device in devices]
        column = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        all_measured = together(parts)
        all_measured.rows[:, -1] = column
        unseen, shipped = _unseen(all_measured, arguments.folds), _fitted(all_measured)
        limits = [_limits(all_measured, shipped, column == number) for number in range(len(devices))]
        for number, device in enumerate(devices):
            held_out = (column == number) & np.isfinite(unseen[0])
            predictions, held_out_measured = [guess[held_out] for guess in unseen], all_measured.some(held_out)
            tables = _qualities(held_out_measured, predictions[0])
            agreements.append(_agreement(device, held_out_measured, predictions, limits[number]))
            texts.append(_text(device, held_out_measured, tables))
            data[device] = {name: [(row[0], row[1], asdict(row[2])) for row in rows] for name, rows in tables.items()}
        if arguments.fit:
            _ship(kind, all_measured, column, shipped, limits)
    data["agreement"] = [asdict(agreement) for agreement in agreements]
    write("simulated", data, "\n\n".join([_agreement_text(agreements), *texts]))


def _unseen(every: Measured, folds: int) -> tuple[Values, Values]:
    """Return log(seconds) and log(build seconds) of each candidate from trees that were not fitted to its workload;
    nan if its fold was not held out.
    """
    fold = np.array([fold_of_identity(identity) for identity in every.identity.tolist()])
    calls, builds = np.full(len(every), np.nan), np.full(len(every), np.nan)
    for out in range(folds):
        held = fold == out
        call, build = _fitted(every.some(~held))
        calls[held] = call.predict(every.rows[held]) + np.log(scale_of(every.flops[held]))
        builds[held] = build.predict(every.rows[held])
        print(f"fold {out}: {int(held.sum())} candidates held out", flush=True)
    return calls, builds


def _fitted(every: Measured) -> tuple[Trees, Trees]:
    """Fit the trees of calls and of builds."""
    ran, built = np.isfinite(every.builds), every.builds > 0
    calls = np.log(np.minimum(every.seconds[ran], _TOO_LONG) / scale_of(every.flops[ran]))
    builds = np.log(np.minimum(every.builds[built], _TOO_LONG))
    return (
        grown(every.rows[ran], calls, _weights(every.some(ran)), _CALL)[0],
        grown(every.rows[built], builds, None, _BUILD)[0],
    )


def _weights(every: Measured) -> Values:
    """Return sample weights: workloads count by the root of their number of candidates, and candidates near their
    workload's best count more.
    """
    _, workload_index, counts = np.unique(every.task, return_inverse=True, return_counts=True)
    logs = np.log(np.minimum(every.seconds, _TOO_LONG))
    best = np.full(len(counts), np.inf)
    np.minimum.at(best, workload_index, logs)
    weights: Values = 1.0 / np.sqrt(counts[workload_index]) / (1.0 + logs - best[workload_index])
    return weights


def grown(
    rows: npt.NDArray[np.float32], values: Values, weights: Values | None, options: dict[str, Any]
) -> tuple[Trees, Any]:
    """Fit scikit-learn's histogram gradient boosting (LightGBM's algorithm); return it as plain arrays and as an
    estimator.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(**options, l2_regularization=1.0, early_stopping=False, random_state=0)
    model.fit(rows, values, sample_weight=weights)
    return Trees.of(model), model


def _limits(every: Measured, trees: tuple[Trees, Trees], here: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the predicted build and call seconds above which as many candidates fail as did on the device."""
    some = every.some(here)
    calls, builds = trees[0].predict(some.rows) + np.log(scale_of(some.flops)), trees[1].predict(some.rows)
    unbuilt = np.isinf(some.builds)
    return (
        _reached_by(builds, float(unbuilt.mean())),
        _reached_by(calls, float((np.isinf(some.seconds) & ~unbuilt).mean())),
    )


def _reached_by(guesses: Values, share: float) -> float:
    return float(np.exp(np.quantile(guesses, 1.0 - share))) if share > 0 else float("inf")


def _ship(
    kind: str,
    every: Measured,
    column: npt.NDArray[np.int64],
    trees: tuple[Trees, Trees],
    most: list[tuple[float, float]],
) -> None:
    call, build = trees
    arrays = {**call.to_arrays("call"), **build.to_arrays("build")}
    for number, device in enumerate(DEVICES[kind]):
        here = column == number
        most_build, most_call = most[number]
        noise = every.noise[here & np.isfinite(every.noise)] * _OF_ONE[device]
        both = np.concatenate([noise, -noise])  # which half comes first carries no information
        arrays[f"{device}.noise"] = np.quantile(both, np.linspace(0.0, 1.0, _QUANTILES)).astype(np.float32)
        arrays[f"{device}.most_build"] = np.float64(most_build)
        arrays[f"{device}.most_call"] = np.float64(most_call)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"simulated-{kind}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(call.roots)} + {len(build.roots)} trees")


def _qualities(every: Measured, guesses: Values) -> dict[str, list[tuple[str, int, Quality]]]:
    """Return rows (name, workloads, mean quality) by space and by operator."""
    scores, spaces = -guesses, {"MetaSchedule's space": ~every.own, "our space": every.own}
    everywhere = np.ones(len(every), dtype=bool)
    chosen = {"all": everywhere, **{name: rows for name, rows in spaces.items() if rows.any() and not rows.all()}}
    rows_by_grouping = {"space": [(name, *_mean(every, scores, rows)) for name, rows in chosen.items()]}
    operators = sorted(set(every.operator.tolist()))
    rows_by_grouping["operator"] = [(name, *_mean(every, scores, every.operator == name)) for name in operators]
    return {name: [row for row in rows if row[1]] for name, rows in rows_by_grouping.items()}


def _mean(every: Measured, scores: Values, chosen: npt.NDArray[np.bool_]) -> tuple[int, Quality]:
    qualities = []
    for task in np.unique(every.task[chosen]):
        rows = chosen & (every.task == task)
        quality = judged(scores[rows], every.seconds[rows])
        if quality is not None:
            qualities.append(quality)
    return len(qualities), mean_quality(qualities)


def _agreement(device: str, every: Measured, guesses: list[Values], most: tuple[float, float]) -> Agreement:
    calls, builds = guesses
    succeeded, built = np.isfinite(every.seconds), np.isfinite(every.builds) & (every.builds > 0)
    guessed = (np.exp(builds) >= most[0]) | (np.exp(calls) >= most[1])
    noise = every.noise[np.isfinite(every.noise)] * _OF_ONE[device]
    return Agreement(
        device=SIMULATED[device].device,
        candidates=len(every),
        seconds=float(np.median(np.abs(calls[succeeded] - np.log(every.seconds[succeeded])))),
        builds=float(np.median(np.abs(builds[built] - np.log(every.builds[built])))) if built.any() else float("nan"),
        failed=int((~succeeded).sum()),
        found=int((~succeeded & guessed).sum()),
        wrongly=int((succeeded & guessed).sum()),
        noise=float(np.median(np.abs(noise))),
    )


def _agreement_text(agreements: list[Agreement]) -> str:
    lines = [
        "Held-out workloads: trees that have not seen a workload guess its candidates' seconds. The shipped trees have "
        "seen all of them. Rank correlation, top-1, top-5 and median are those of `felixlike evaluate`.",
        "",
        "| device | candidates | time off by | build off by | failed | of them guessed | wrongly | noise |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for a in agreements:
        builds = "–" if np.isnan(a.builds) else f"×{np.exp(a.builds):.2f}"
        cells = [a.device, a.candidates, f"×{np.exp(a.seconds):.2f}", builds, a.failed, a.found, a.wrongly]
        lines.append(f"| {' | '.join(map(str, cells))} | {a.noise:.2%} |")
    return "\n".join(lines)


def _text(device: str, every: Measured, tables: dict[str, list[tuple[str, int, Quality]]]) -> str:
    parts = [f"## {SIMULATED[device].device}: {len(every)} candidates of {len(np.unique(every.task))} workloads"]
    parts += [summary_table(name, rows) for name, rows in tables.items()]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
