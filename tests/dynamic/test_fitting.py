"""Test that the weights of FTuner's score are fitted to a store's timings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import dynamic_operators as operators

from felixlike import dynamic, records
from felixlike.cli import main
from felixlike.dynamic.bench import Timings
from felixlike.dynamic.emit import Pool
from felixlike.dynamic.fitting import Scored, _timed, fitted, fitted_sia
from felixlike.dynamic.gpu.tile import BlockProgram, BlockTile
from felixlike.dynamic.gpu.timing import BlockBench
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.program import Program
from felixlike.dynamic.sia import Sia
from felixlike.dynamic.timing import TileBench
from felixlike.errors import InvalidOption, StoreError
from felixlike.hardware import device_name, host_device, resolve_target
from felixlike.measure import Measurement, Status

_SIZES = ((8,), (16,), (53,), (64,))
_PROGRAMS = [Program(large, small, 1) for large, small in ((1, 0), (2, 0), (4, 4), (8, 8), (8, 7), (16, 0), (13, 1))]


def _filled(path: Path, seconds_of: dict[Program, float]) -> None:
    """Write a store with timings of the programs at each size that they cover."""
    operator = read_operator(operators.dense(64, 200))
    assert operator is not None
    target = resolve_target("cpu")
    with records.open(path) as store:
        bench = TileBench(
            operator, target, [Pool((), 16)], described=host_device(), timings=Timings(store), name="dense"
        )
        for size in _SIZES:
            timed = [program for program in seconds_of if program.at(size[0])]

            def measure(indices: list[int], timed: list[Program] = timed) -> list[Measurement]:
                times = [seconds_of[timed[n]] for n in indices]
                return [Measurement(Status.OK, each, (each,)) for each in times]

            points = [bench.point((0, program)) for program in timed]
            bench.timings.take(bench.task(size), device_name(target), points, measure)


def test_weights_are_those_that_made_the_throughputs() -> None:
    rng = np.random.default_rng(0)
    metrics = [rng.random((10, 3)) for _ in range(5)]
    sizes = [
        [Scored((row[None],), float(row @ (0.5, 0, 0.25)) + size) for row in rows] for size, rows in enumerate(metrics)
    ]
    weights = fitted(sizes)
    assert [weights.c0, weights.c1, weights.c2] == pytest.approx([0.5, 0, 0.25], abs=1e-9)


def test_tiles_of_the_second_level_are_those_with_the_best_scores() -> None:
    """The second tile of the first uKernel is better by occupancy alone; a program has the mean of its uKernels."""
    program = Scored((np.asarray([[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]), np.asarray([[0.0, 0.5, 0.0]])), 1.0)
    assert program.metrics(Sia(1, 0, 0)).tolist() == [0.5, 0.5, 0.0]
    assert program.metrics(Sia(0, 0, 1)).tolist() == [0.0, 0.5, 0.5]


def test_timings_that_prefer_no_metric_raise() -> None:
    metrics = np.random.default_rng(0).random((30, 3))
    with pytest.raises(InvalidOption, match="no faster where CMR"):
        fitted([[Scored((row[None],), float(-row.sum())) for row in metrics]])


def test_a_store_of_timings_gives_weights(tmp_path: Path) -> None:
    """Programs take as long as they pad, so that Pad alone explains the timings."""
    path, target = tmp_path / "runs.sqlite", resolve_target("cpu")
    _filled(path, dict.fromkeys(_PROGRAMS, 1e-6))
    with records.open(path, read_only=True) as store:
        sizes = list(_timed(store, target, device_name(target)))
    assert len(sizes) == len(_SIZES)
    assert all(program.throughput == 1.0 for programs in sizes for program in programs)
    assert {len(program.tiles) for programs in sizes for program in programs} == {1, 2}
    pads = np.asarray([program.metrics(Sia(0, 1, 0))[1] for program in sizes[2]])
    other = tmp_path / "pads.sqlite"
    order = [program for program in _PROGRAMS if program.at(53)]
    _filled(other, {p: 1e-6 / pad**8 for p, pad in zip(order, pads, strict=True)})
    weights = fitted_sia(other)
    assert weights.c1 > 0
    assert dynamic.FTuner(sia=weights).sia == weights


def test_timings_of_blocks_give_metrics(tmp_path: Path) -> None:
    operator = read_operator(operators.dense(64, 96))
    assert operator is not None

    class _Pool:
        devices = frozenset({"a GPU"})

    target = resolve_target("sm_90")
    with records.open(tmp_path / "runs.sqlite") as store:
        bench = BlockBench(operator, target, _Pool(), Timings(store))  # type: ignore[arg-type]
        tiles = [BlockTile(16, 32, 16, 4, 4, 2), BlockTile(32, 32, 16, 4, 4, 2)]
        points = [bench.point(BlockProgram(tiles[0])), bench.point(BlockProgram(tiles[1], tiles[0]))]
        times = [Measurement(Status.OK, each, (each,)) for each in (1e-6, 2e-6)]
        bench.timings.take(bench.task((48,)), bench.device, points, lambda indices: [times[n] for n in indices])
        (programs,) = _timed(store, target, bench.device)
    assert [len(program.tiles) for program in programs] == [1, 2]
    assert [program.throughput for program in programs] == [1.0, 0.5]


def test_stores_without_timings_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.sqlite"
    _filled(path, dict.fromkeys(_PROGRAMS[:2], 1e-6))
    with pytest.raises(InvalidOption, match=r"has 8 timings to compare .* fewer than 20"):
        fitted_sia(path)
    with pytest.raises(StoreError):
        fitted_sia(tmp_path / "missing.sqlite")
    file = tmp_path / "model.py"
    file.write_text(
        "import felixlike as fx, torch\ndef make():\n"
        "    return torch.nn.Linear(8, 8).eval(), ((fx.Dim('T', range(1, 5)), 8),)\n"
    )
    assert main(["tune", f"{file}:make", "--planner", "ftuner", "--sia", str(path)]) != 0
    assert "8 timings to compare" in capsys.readouterr().err


def test_the_command_fits_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = tmp_path / "runs.sqlite", tmp_path / "model.py"
    _filled(path, {p: 1e-6 * (1 + p.large) for p in _PROGRAMS})
    file.write_text(
        "import felixlike as fx, torch\ndef make():\n"
        "    return torch.nn.Linear(8, 8).eval(), ((fx.Dim('T', range(1, 5)), 8),)\n"
    )
    assert main(["tune", f"{file}:make", "--planner", "ftuner", "--sia", str(path)]) == 0
    assert f"SIA weights fitted to {path}: Sia(c0=" in capsys.readouterr().out
