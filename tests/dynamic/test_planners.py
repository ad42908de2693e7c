"""Test planners: FTuner's algorithm as published, without timings, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import dynamic_operators as operators
from torch import nn

import felixlike as fx
from felixlike import dynamic
from felixlike.cli import main
from felixlike.dynamic.construct import best_of, tile_programs
from felixlike.dynamic.crosspick import Stride
from felixlike.dynamic.dispatch import choose
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.plan import device_of, plan_operator
from felixlike.dynamic.program import Program
from felixlike.dynamic.sia import Sia, tile_scores
from felixlike.dynamic.stages import compile_stage
from felixlike.dynamic.ukernel import Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.errors import FelixlikeWarning, InvalidOption
from felixlike.hardware import described, resolve_target

_T = fx.Dim("T", range(1, 21))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU()).eval()


@given(st.integers(1, 300), st.dictionaries(st.integers(1, 20), st.floats(0, 10), min_size=1, max_size=6))
def test_the_best_program_covers_exactly_and_has_the_best_mean_score(size: int, scores: dict[int, float]) -> None:
    score, cover, count = best_of(size, scores)
    possible = [s for height, s in scores.items() if size % height == 0]
    possible += [
        (scores[a] + scores[b]) / 2
        for a in scores
        for b in scores
        if b < a and any((size - n * a) > 0 and (size - n * a) % b == 0 for n in range(1, size // a + 1)) and size % a
    ]
    assert (cover is None) == (not possible) == (count == 0)
    if cover is not None:
        assert cover.size == size
        assert score == pytest.approx(max(possible))


def test_each_size_gets_the_program_with_the_best_score() -> None:
    """53 = 3 × 7 + 4 × 8 is the only cover, 56 is covered by 8 alone, 5 by no program of these heights."""
    workloads = [Workload(1, rows, 32, 64) for rows in (53, 56, 5)]
    scores = {(7, 32): np.asarray([1.0, 1.0, 1.0]), (8, 32): np.asarray([1.0, 2.0, 2.0])}
    choice = tile_programs(scores, workloads, 16, one_width=False)
    assert choice.chosen == (Program(8, 7, 2), Program(8, 8, 2), Program(8, 0, 2))
    assert choice.uncovered == 1
    assert choice.programs == 3  # one for 53, the two single ones for 56
    assert str(choice.stage(2)) == "CombinSearch: 2 uKernels, relaxed for 1 sizes"


def test_a_packed_constant_has_the_width_with_the_best_scores() -> None:
    workloads = [Workload(1, rows, 64, 64, weight=weight) for rows, weight in ((4, 0.2), (8, 0.8))]
    scores = {(4, 16): np.asarray([9.0, 1.0]), (4, 32): np.asarray([1.0, 4.0])}
    each = tile_programs(scores, workloads, 16, one_width=False)
    assert [program.vectors for program in each.chosen] == [1, 2]
    assert [program.vectors for program in tile_programs(scores, workloads, 16, one_width=True).chosen] == [2, 2]


@pytest.mark.parametrize(
    ("func", "shapes"),
    [
        (operators.dense(24, 40), lambda t: ((t, 24), (40, 24), (40,))),
        (operators.scores(3, 16), lambda t: ((3, t, 16), (3, t, 16))),
        (operators.mixed(3, 20), lambda t: ((3, t, t), (3, t, 20))),
    ],
)
def test_ftuner_measures_nothing_and_computes_the_same(func: Any, shapes: Any) -> None:
    kernel = dynamic.compile(func, _T, planner="ftuner")
    assert kernel.report.measured == 0
    names = ["HardwareAlign", "CrossPick", "SetBound", "Analysis", "CombinSearch"]
    assert [stage.name for stage in kernel.report.stages] == names
    for t in range(1, 21):
        tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(t)) for shape in shapes(t)]
        a, b, *bias = (tensor.double() for tensor in tensors)
        expected = a @ (b if a.shape[-1] == b.shape[-2] and len(shapes(t)) == 2 and b.shape[-1] == 20 else b.mT)
        torch.testing.assert_close(kernel(*tensors).double(), expected + sum(bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sia", [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_the_chosen_programs_have_the_best_scores_of_the_filtered_ukernels(sia: tuple[float, float, float]) -> None:
    func, device = operators.scores(3, 16), described("zen4")
    plan = plan_operator(func, [_T], device, resolve_target("cpu"), planner=dynamic.FTuner(sia=sia))
    workloads, sizes = workloads_of(plan.operator, [_T], 128)
    scores = tile_scores(compile_stage(workloads, device)[0], Sia(*sia))
    for place, (workload, size) in enumerate(zip(workloads, sizes, strict=True)):
        program = choose(plan.tree, size)
        rated: dict[int, dict[int, float]] = {}
        for (height, columns), score_of in scores.items():
            if np.isfinite(score_of[place]):
                rated.setdefault(columns, {})[height] = float(score_of[place])
        best = {columns: best_of(workload.i, heights) for columns, heights in rated.items()}
        score, cover, _ = best[program.vectors * 16]
        assert score == max(other for other, _, _ in best.values())
        assert cover is None or cover == program.at(workload.i)


def test_psi_and_strides_filter_ukernels() -> None:
    workloads = [Workload(1, rows, 40, 24) for rows in range(1, 21)]
    usual, tolerant, strict = (
        compile_stage(workloads, described("zen4"), **options)[1]
        for options in ({}, {"psi": 0.1}, {"stride": Stride(pad_from=950)})
    )
    assert tolerant[3].relaxed < usual[3].relaxed == 20
    assert strict[1].pairs < usual[1].pairs


def test_the_main_axis_is_the_largest_dynamic_one() -> None:
    few, many = fx.Dim("M", range(1, 9)), fx.Dim("N", range(1, 25))
    largest = {"M": 8, "N": 24, "K": 16}
    func = operators.product()
    usual = read_operator(func)
    assert usual is not None
    names = [str(symbol.name) for symbol in usual.symbols]
    tuned = read_operator(func, [largest[name] for name in names])
    assert tuned is not None
    assert [str(o.rows.extent.name) for o in (usual, tuned)] == ["M", "N"]
    kernel = dynamic.compile(func, [few, many, fx.Dim("K", [1, 16])], planner="ftuner")
    for m, n, k in ((1, 24, 16), (8, 1, 5), (7, 23, 16), (8, 24, 1)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_a_packed_constant_keeps_the_rows_of_the_other_operand() -> None:
    """B is larger than T, so it is the main axis; the constant is still the operand in vectors."""
    operator = read_operator(operators.dense_of_batch(16, 32), [8, 4])
    assert operator is not None
    assert str(operator.rows.extent.name) == "B"
    assert operator.constant == 1
    kernel = dynamic.compile(
        operators.dense_of_batch(16, 32), [fx.Dim("B", range(1, 9)), fx.Dim("T", range(1, 5))], planner="ftuner"
    )
    for b, t in ((1, 1), (8, 4), (7, 3)):
        x, w, r = torch.randn(b, t, 16), torch.randn(32, 16), torch.randn(b, t, 32)
        torch.testing.assert_close(kernel(x, w, r), x @ w.T + r, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_programs_of_blocks_are_chosen_by_score(arch: str) -> None:
    target = resolve_target(arch)
    plan = plan_operator(
        operators.scores(192, 64), [_T], device_of(None, target), target, planner=dynamic.FTuner(sia=(0, 1, 0))
    )
    assert plan.report.stages[-1].name == "CombinSearch"
    assert plan.report.measured == 0
    exact = [choose(plan.tree, [t]).at(t).size == t for t in _T.sizes]
    assert sum(exact) >= len(exact) - plan.report.stages[-1].relaxed
    assert all(tile.slices == 1 for tile in plan.tiles)


def test_optimize_takes_a_planner() -> None:
    model = _model()
    fast = fx.optimize(model, ((_T, 24),), planner=dynamic.FTuner(sia=(2, 1, 1)), progress=False)
    assert fast.report.trials == 0
    assert {task.how for task in fast.report.tasks} == {"unmeasured"}
    assert "CombinSearch" in fast.report.tasks[0].note
    assert fast.report.error < 1e-5
    for t in (1, 7, 20):
        x = torch.randn(t, 24)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_limits_of_a_planner_without_timings_have_no_effect() -> None:
    with pytest.warns(FelixlikeWarning, match="rounds has no effect, since .* FTuner's score"):
        fx.optimize(_model(), ((_T, 24),), 4, planner="ftuner", progress=False)


@pytest.mark.parametrize(
    ("options", "where", "text"),
    [
        ({"planner": "ftunner"}, "planner", "'ftunner' is not a planner.*did you mean 'ftuner'"),
        ({"planner": 3}, "planner", "3 is not a planner"),
        ({"planner": "ftuner", "measure": True}, "measure", "measures nothing"),
        ({"planner": "ftuner", "sia": (1, 1)}, "sia", r"three weights, got \(1, 1\)"),
        ({"planner": "ftuner", "sia": (1, -1, 1)}, "sia", "at least 0 as weights, got -1"),
        ({"planner": "ftuner", "sia": (1, float("nan"), 1)}, "sia", "at least 0 as weights, got nan"),
        ({"planner": dynamic.FTuner(), "sia": (1, 2, 1)}, "sia", "give the weights to the planner"),
    ],
)
def test_options_that_contradict_a_planner_raise(options: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=text) as error:
        dynamic.compile(operators.dense(24, 40), _T, **options)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dynamic.FTuner(psi=float("nan")), "psi"),
        (lambda: dynamic.FTuner(psi=-1), "psi"),
        (lambda: dynamic.FTuner(sia=(0, 0, 0)), "zero"),
        (lambda: dynamic.FTuner(sia=Sia(1, -1, 1)), "got -1"),
        (lambda: dynamic.FTuner(stride=(0.5, 0.95)), "stride"),  # type: ignore[arg-type]
        (lambda: dynamic.Timed(sia="111"), "three weights"),
        (lambda: Stride(pad_step=0), "pad_step"),
        (lambda: Stride(occ_to=2000), "occ_to"),
        (lambda: Stride(pad_from=960), "ε cannot rise from 960 to 950"),
    ],
)
def test_invalid_options_of_planners_raise(make: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        make()


def test_a_planner_without_an_effect_raises() -> None:
    with pytest.raises(InvalidOption, match="planner: no size is a Dim"):
        fx.optimize(_model(), ((4, 24),), rounds=0, planner="ftuner", progress=False)
    with pytest.raises(InvalidOption, match="planner: b is the batch of a model with convolutions"):
        fx.optimize(
            nn.Conv2d(3, 4, 3).eval(), ((fx.Dim("b", range(1, 5)), 3, 8, 8),), 0, planner="ftuner", progress=False
        )


_FILE = """
import felixlike as fx
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU()).eval()
    return model, ((fx.Dim("T", range(1, 21)), 24),)
"""


def test_the_command_takes_a_planner_and_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(_FILE)
    store = str(tmp_path / "runs.sqlite")
    assert main(["tune", f"{file}:make", "--planner", "ftuner", "--sia", "1,2,1", "--store", store]) == 0
    assert "CombinSearch" in capsys.readouterr().out
    assert main(["resume", store, "--yes"]) == 0
    assert "CombinSearch" in capsys.readouterr().out
    for arguments, text in (
        (["--planner", "fast"], "'fast' is not a planner"),
        (["--sia", "1,2"], "three weights"),
        (["--sia", "1,nan,1"], "got nan"),
        (["--sia", "missing.sqlite"], "expected three numbers or a store, got 'missing.sqlite'"),
    ):
        assert main(["tune", f"{file}:make", *arguments]) != 0
        assert text in capsys.readouterr().err
