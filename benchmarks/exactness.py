"""Check how exact programs, constraints and formulas are: python -m benchmarks.exactness [--target sm_90] [--only
NAME].

The checks cover every sketch, at random points, of every operator of `support.operators`, some of them also with
constant weights (CPU), and of every task of four networks:

(a) loop nests: the symbolic program at the point against TVM's postprocessed schedule (loops, kinds, extents,
    annotations);
(b) counts: all formulas against a walk over every iteration, on a small version of the operator;
(c) `tvm_view` against TVM's PerStoreFeature: entries that are not NaN must be equal to 1e-6;
(d) constraints: points that felixlike considers valid but TVM rejects or replaces, and points that TVM samples but
    felixlike considers invalid.

The benchmark writes docs/results/exactness_<target>.json and .md. With --keep FILE it appends each finished workload
to the file and skips workloads that the file already has.

With --random N only (d) runs, at N points over all workloads, small sizes included. Half of the points have arbitrary
values of the variables, half are sampled by TVM. It writes docs/results/error_rates_<target>.json and .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from support import models, oracles
from support.operators import OPERATORS
from support.tvm_view import View, explained_view

from benchmarks.results import keep, kept, write
from felixlike import extract_tasks
from felixlike.errors import InvalidSchedule, UnsupportedSketch, first_line
from felixlike.features import NAMES, formulas
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic import Points, Sketch, concrete_nest, sketches
from felixlike.symbolic.replay.primitives.location import INLINE


@dataclass(slots=True)
class Row:
    """Results of one workload.

    Lists are pairs (checked, wrong). `opaque` has the reasons why sketches are not symbolic. `left_out` counts the
    non-zero entries of TVM that are NaN here, by kind (group and cause).
    """

    name: str
    sketches: int = 0
    opaque: dict[int, str] = field(default_factory=dict)
    nests: list[int] = field(default_factory=lambda: [0, 0])
    counts: list[int] = field(default_factory=lambda: [0, 0])
    entries: list[int] = field(default_factory=lambda: [0, 0])
    unknown: list[int] = field(default_factory=lambda: [0, 0])
    left_out: dict[str, int] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=lambda: [0, 0])
    refused: list[int] = field(default_factory=lambda: [0, 0])
    examples: list[str] = field(default_factory=list)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50, help="random points a sketch")
    parser.add_argument("--target", default="cpu", choices=("cpu", "sm_80", "sm_90"))
    parser.add_argument("--space", default="default", choices=("default", "own"), help="whose rules made the sketches")
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--random", type=int, default=0, help="compare only what is valid, at so many random points")
    parser.add_argument("--keep", type=Path, help="a file for workloads that are done, to go on from")
    arguments = parser.parse_args()
    if arguments.random:
        _error_rates(arguments.target, arguments.only or "", arguments.random)
        return
    done = {row["name"]: Row(**row) for row in kept(arguments.keep)}
    rows = []
    for name, make in _workloads(arguments.target, arguments.only or "", arguments.space):
        row = done.get(name) or _checked(name, make, arguments.points)
        rows.append(row)
        print(_line(row), *row.examples[:3], sep="\n  ", flush=True)
        if name not in done:
            keep(arguments.keep, dataclasses.asdict(row))
        if not arguments.only:  # write the intermediate results
            _publish(rows, arguments)


def _publish(rows: list[Row], arguments: argparse.Namespace) -> None:
    total = {
        key: [sum(getattr(r, key)[i] for r in rows) for i in (0, 1)]
        for key in ("nests", "counts", "entries", "unknown", "accepted", "refused")
    }
    data = {"rows": [dataclasses.asdict(r) for r in rows], "total": total, "left_out": dict(_kinds(rows))}
    space_suffix = "" if arguments.space == "default" else f"{arguments.space}_space"
    target = "" if space_suffix and arguments.target == "cpu" else arguments.target
    name = "_".join(filter(None, ("exactness", space_suffix, target)))
    command = f"exactness --target {arguments.target} --space {arguments.space} --points {arguments.points}"
    write(name, data, _text(rows, total), command=command)


def _checked(name: str, make: Make, points: int) -> Row:
    """Run all comparisons for one workload."""
    full, small = make()
    row = Row(name)
    for sketch in full:
        _check(row, sketch, points)
    for sketch in small:
        _count(row, sketch, max(4, points // 8))
    return row


Make: TypeAlias = "Callable[[], tuple[tuple[Sketch, ...], tuple[Sketch, ...]]]"
"""A function that makes the sketches of a workload in a real and in a small size."""


def _workloads(target: str, only: str, space: str = "default") -> Iterator[tuple[str, Make]]:
    """Yield the workloads whose name contains `only`."""

    def plain(make: Callable[..., Any]) -> Make:
        return lambda: (
            sketches(make(), target, space=space),
            sketches(make(small_size=True), target, space=space),
        )

    def weighted(name: str, make: Callable[..., Any]) -> Make:
        return lambda: (
            _weighted(name, make(), target, space),
            _weighted(name, make(small_size=True), target, space),
        )

    def of_task(task: Task) -> Make:
        return lambda: (sketches(task, space=space), ())

    for name, make in OPERATORS.items():
        if only in name:
            yield name, plain(make)
        if name in CONSTANT_WEIGHTS and target == "cpu" and only in f"{name}, constant weight":
            yield f"{name}, constant weight", weighted(name, make)
    for network in ("resnet18", "bert", "mobilenet_v2", "vit"):
        model, inputs = getattr(models, network)()
        for task in extract_tasks(model, inputs, target):
            if only in (name := f"{network}: {task.name}"):
                yield name, of_task(task)


CONSTANT_WEIGHTS = (
    "dense_bias_relu",
    "batch_matmul",
    "matvec",
    "conv2d_3x3",
    "conv2d_1x1",
    "conv2d_odd",
    "conv2d_nhwc",
    "conv2d_grouped",
    "depthwise",
    "conv3d",
)
"""Operators whose second parameter is a weight that schedules may repack."""


def _weighted(name: str, func: Any, target: str, space: str) -> tuple[Sketch, ...]:
    return sketches(make_task(func, resolve_target(target), name=name, constants=[1]), space=space)


def _error_rates(target: str, only: str, points: int) -> None:
    """Compare felixlike's constraints with TVM's verdicts, workload by workload."""
    rows = []
    symbolic_sketches = [
        (name, [s for size in make() for s in size if s.is_symbolic]) for name, make in _workloads(target, only)
    ]
    points_a_sketch = max(1, math.ceil(points / sum(len(members) for _, members in symbolic_sketches) / 2))
    for name, members in symbolic_sketches:
        row = Row(name, sketches=len(members))
        for sketch in members:
            _judge(
                row,
                sketch,
                np.concatenate([_arbitrary_points(sketch, points_a_sketch), _tvm_points(sketch, points_a_sketch)]),
            )
        rows.append(row)
        print(name, row.accepted, row.refused, *row.examples[:3], sep="\n  ", flush=True)
    total = {key: [sum(getattr(r, key)[i] for r in rows) for i in (0, 1)] for key in ("accepted", "refused")}
    data = {"rows": [{"name": r.name, "accepted": r.accepted, "refused": r.refused} for r in rows], "total": total}
    if not only:
        command = f"exactness --target {target} --random {points}"
        write(f"error_rates_{target}", data, _rates_text(rows, total), command=command)


def _arbitrary_points(sketch: Sketch, count: int) -> Points:
    """Draw arbitrary values of each variable. Tile factors multiply to their loop; locations are any loop, the root
    or inline.
    """
    rng = np.random.default_rng(7)
    points = sketch.sampler.any.draw(count, rng)
    for column in sketch.location_columns:
        points[:, column] = rng.integers(INLINE, _DEEPEST, size=count)
    return points


def _tvm_points(sketch: Sketch, count: int) -> Points:
    return sketch.sampler.by_tvm(count, np.random.default_rng(8))


_DEEPEST = 24
"""Number of loops, from the outermost, that are tried as compute locations. Some are deeper than the nest."""


def _judge(row: Row, sketch: Sketch, points: Points) -> None:
    for point, valid in zip(points.tolist(), sketch.valid(points), strict=True):
        accepted = sketch.accepts(point)
        row.refused[0] += accepted
        row.refused[1] += accepted and not valid
        row.accepted[0] += bool(valid)
        row.accepted[1] += bool(valid) and not accepted
        if accepted != valid:
            row.examples.append(f"sketch {sketch.index}: TVM {'takes' if accepted else 'refuses'} {point}")


def _rates_text(rows: list[Row], total: dict[str, list[int]]) -> str:
    def rate(pair: list[int]) -> str:
        return f"{pair[1]} of {pair[0]}" + (f" = {pair[1] / pair[0]:.2%}" if pair[1] else "")

    lines = [
        "Random points, half with any values of the variables, half drawn by TVM. False accepts: of points valid here,",
        "TVM refused or replaced; false refusals: of points TVM takes, not valid here.",
        "",
        f"All: false accepts {rate(total['accepted'])}; false refusals {rate(total['refused'])}.",
        "",
        "| workload | sketches understood, both sizes | false accepts | false refusals |",
        "| --- | --- | --- | --- |",
        *(f"| {r.name} | {r.sketches} | {rate(r.accepted)} | {rate(r.refused)} |" for r in rows),
    ]
    return "\n".join(lines)


def _check(row: Row, sketch: Sketch, points: int) -> None:
    row.sketches += 1
    if not sketch.is_symbolic:
        row.opaque[sketch.index] = sketch.reason
        return
    _compare_nests(row, sketch, points)
    _judge(row, sketch, sketch.sampler.by_tvm(points, np.random.default_rng(1)))


def _compare_nests(row: Row, sketch: Sketch, points: int) -> None:
    drawn = sketch.sample(points, seed=3)
    views = _expected_features(sketch, drawn)
    names = [v.name for v in sketch.variables]
    for point, view in zip(drawn.tolist(), views, strict=True):
        row.accepted[0] += 1
        try:
            schedule = sketch.schedule(point)
        except InvalidSchedule as error:
            row.accepted[1] += 1
            row.examples.append(f"sketch {sketch.index}: {error}")
            continue
        locations = tuple(point[i] for i in sketch.location_columns)
        ours = concrete_nest(sketch.structure(locations).program, dict(zip(names, point, strict=True)))
        row.nests[0] += 1
        if ours != oracles.tvm_nest(schedule):
            row.nests[1] += 1
            row.examples.append(f"sketch {sketch.index}: another nest at {point}")
        try:
            theirs = oracles.tvm_features(sketch, schedule)
        except RuntimeError as error:
            kind = f"all entries of a point: TVM's extractor fails ({first_line(error)})"
            row.left_out[kind] = row.left_out.get(kind, 0) + 1
            continue
        _compare_views(row, sketch, point, view, theirs)


def _expected_features(sketch: Sketch, points: Points) -> list[View | str]:
    """Return the expected features of TVM's extractor, or the reason why there are none."""
    try:
        return list(explained_view(formulas(sketch), points))
    except UnsupportedSketch as error:
        return [str(error)] * len(points)


def _compare_views(row: Row, sketch: Sketch, point: list[int], view: View | str, theirs: Any) -> None:
    ours = np.full(theirs.shape, np.nan) if isinstance(view, str) else view.values
    if ours.shape != theirs.shape:
        row.entries[0] += theirs.size
        row.entries[1] += theirs.size
        row.examples.append(f"sketch {sketch.index}: {ours.shape} features, TVM has {theirs.shape}, at {point}")
        return
    known = ~np.isnan(ours)
    wrong = known & ~np.isclose(ours, theirs, rtol=1e-6, atol=1e-9)
    row.entries[0] += int(known.sum())
    row.entries[1] += int(wrong.sum())
    meaningful = theirs != 0
    row.unknown[0] += int(meaningful.sum())
    row.unknown[1] += int((meaningful & ~known).sum())
    for place, entry in np.argwhere(meaningful & ~known).tolist():
        kind = f"{_group(entry)}: {view if isinstance(view, str) else view.causes[place, entry]}"
        row.left_out[kind] = row.left_out.get(kind, 0) + 1
    if wrong.any():
        row.examples.append(f"sketch {sketch.index}: entries {np.argwhere(wrong)[:4].tolist()} differ at {point}")


def _group(entry: int) -> str:
    for end, name in ((7, "float counters"), (15, "integer counters"), (57, "loops"), (147, "buffers")):
        if entry < end:
            return name
    return "arithmetic intensity" if entry < 157 else "allocation and loops around"


def _count(row: Row, sketch: Sketch, points: int) -> None:
    """Compare formulas with counts over every iteration."""
    if not sketch.is_symbolic:
        return
    sketch_formulas = formulas(sketch, oracles.SMALL_CACHES)
    drawn = sketch.sample(points, seed=11)
    for point, rows in zip(drawn.tolist(), sketch_formulas.evaluate(drawn), strict=True):
        for block, columns in oracles.count(sketch, tuple(point), oracles.SMALL_CACHES).items():
            computed = dict(zip(NAMES, rows[sketch_formulas.stores.index(block)], strict=True))
            for column, value in columns.items():
                row.counts[0] += 1
                if not np.isclose(computed[column], value, rtol=1e-9):
                    row.counts[1] += 1
                    row.examples.append(
                        f"sketch {sketch.index}: {block} {column} is {value}, not {computed[column]}, at {point}"
                    )


def _line(row: Row) -> str:
    def part(pair: list[int]) -> str:
        return f"{pair[1]} of {pair[0]}" if pair[0] else "–"

    share = f"{row.unknown[1] / row.unknown[0]:.0%}" if row.unknown[0] else "–"
    understood = f"{row.sketches - len(row.opaque)} of {row.sketches}"
    cells = [part(row.nests), part(row.counts), part(row.entries), share, part(row.accepted), part(row.refused)]
    return f"| {row.name} | {understood} | {' | '.join(cells)} |"


def _text(rows: list[Row], total: dict[str, list[int]]) -> str:
    lines = [
        "Differences, of comparisons made. nests: against TVM's postprocessed schedule; counts: formulas against every",
        "iteration walked, on a small twin; view: entries of `tvm_view` against TVM's extractor; NaN: share of TVM's",
        "non-zero entries that `tvm_view` leaves out; false accepts: of our points, TVM refused or replaced; false",
        "refusals: of TVM's points, not valid here.",
        "",
        "| workload | sketches understood | nests | counts | view | NaN | false accepts | false refusals |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_line, rows),
        "",
        "All: " + "; ".join(f"{key} {wrong} of {of}" for key, (of, wrong) in total.items()) + ".",
        "",
        *_left_out(rows, total["unknown"][0]),
        "",
        "Sketches that are not understood, and are tuned by sampling:",
        "",
        *(f"- {r.name}, sketch {index}: {reason}" for r in rows for index, reason in r.opaque.items()),
    ]
    return "\n".join(lines)


def _kinds(rows: list[Row]) -> list[tuple[str, int]]:
    """Return the kinds of NaN and their numbers of entries, in descending order."""
    return sum((Counter(row.left_out) for row in rows), Counter[str]()).most_common()


def _left_out(rows: list[Row], entries: int) -> Iterator[str]:
    """Yield a table of the NaN entries and their causes."""
    yield "Entries left out, each kind with what TVM does there; shares are of all of TVM's non-zero entries:"
    yield ""
    yield "| entries | cause | number | share | in |"
    yield "| --- | --- | --- | --- | --- |"
    for kind, count in _kinds(rows):
        group, _, cause = kind.partition(": ")
        where = sorted((row for row in rows if kind in row.left_out), key=lambda row: -row.left_out[kind])
        names = ", ".join(row.name for row in where[:2]) + (f" and {len(where) - 2} more" if len(where) > 2 else "")
        yield f"| {group} | {cause} | {count} | {count / entries:.2%} | {names} |"


if __name__ == "__main__":
    main()
