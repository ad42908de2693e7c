"""Test scores, predicted times, and the decision trees fitted to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felixlike.dynamic.combine import Combination
from felixlike.dynamic.dispatch import Branch, Leaf, choose, describe, fit, labels, programs_of, repaired
from felixlike.dynamic.program import Program
from felixlike.dynamic.retiming import Corrected
from felixlike.dynamic.search import Search
from felixlike.dynamic.sia import Sia, read_sia, tile_scores, top
from felixlike.dynamic.stages import compile_stage
from felixlike.dynamic.throughput import Line, Timing, Waves, line, matrix, predict
from felixlike.dynamic.timing import kendall
from felixlike.dynamic.ukernel import Workload
from felixlike.errors import InvalidOption
from felixlike.hardware import described

_A, _B, _C = Program(4, 0, 2), Program(8, 7, 2), Program(13, 0, 2)


def test_scores_weigh_three_metrics() -> None:
    assert float(Sia(1, 2, 3).scores(np.float64(1), np.float64(0.5), np.float64(2))) == 8  # type: ignore[arg-type]
    kernels, _ = compile_stage([Workload(1, 53, 96, 64)], described("zen4"))
    scores = tile_scores(kernels, Sia(0, 1, 0))
    assert set(scores) == {tuple(row) for row in kernels.reg.tolist()}
    assert max(float(row[0]) for row in scores.values()) == pytest.approx(float(kernels.pad[kernels.fits].max()))
    assert top(np.asarray([1.0, -np.inf, 3.0, 2.0]), 3) == [2, 3, 0]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (None, "three weights, got None"),
        ((1, 1), r"three weights, got \(1, 1\)"),
        ("111", "three weights, got '111'"),
        ((0, 0, 0), "zero"),
        ((1, "a", 1), "got 'a'"),
        ((1, float("inf"), 1), "got inf"),
        ((1, float("nan"), 1), "got nan"),
        ((1, -1, 1), "at least 0 as weights, got -1"),
        (Sia(0, 0, -1), "got -1"),
    ],
)
def test_invalid_weights_raise(weights: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words) as error:
        read_sia(weights)
    assert error.value.where == "sia"


def test_two_timings_predict_all_sizes() -> None:
    """Two timings recover the cost per share α and the cost per tile τ, which predict the time of combinations."""
    waves, lines = Waves(columns=32, cores=2, base=1e-6), {7: Line(3e-9, 2e-9), 8: Line(5e-9, 2.5e-9)}
    for height, expected in lines.items():
        one, many = Workload(1, height, 320, 64), Workload(1, 6 * height, 320, 64)
        timings = [
            Timing(predict(lines, Combination(height, w.i // height), w, waves), w, w.i // height) for w in (one, many)
        ]
        fitted_line = line(timings[0], timings[1], waves)
        assert [fitted_line.alpha, fitted_line.tau] == pytest.approx([expected.alpha, expected.tau])
    workload = Workload(3, 53, 320, 64)
    seconds = predict(lines, Combination(8, 4, 7, 3), workload, waves)
    assert seconds == pytest.approx(1e-6 + 15 * 64 * (5e-9 + 4 * 2.5e-9 + 3 * 2e-9))
    rows: list[list[Combination | None]] = [[Combination(8, 4, 7, 3)], [None]]
    assert matrix(lines, rows, [workload], waves).tolist() == [[seconds], [np.inf]]


def test_narrow_shares_count_by_their_columns() -> None:
    wide, narrow = Waves(columns=32, cores=1), Waves(columns=32, cores=1, narrow=(8, 16))
    for columns, expected in ((64, 2.0), (65, 2.25), (73, 2.5), (81, 3.0), (5, 0.25)):
        workload = Workload(4, 7, columns, 10)
        assert narrow.of(workload) == 4 * 10 * expected
        assert wide.of(workload) == 4 * 10 * np.ceil(columns / 32)
    assert Waves(columns=32, cores=3, narrow=(16,)).of(Workload(1, 7, 40, 10)) == 10


def test_labels_prefer_few_programs() -> None:
    seconds = np.asarray([[1.0, 1.0, 1.0, 9.0], [0.99, 1.01, 0.99, 1.0], [5.0, 5.0, 0.98, 5.0]])
    assert labels(seconds, [0.25] * 4) == [1, 1, 1, 1]
    assert labels(seconds, [0.25] * 4, near=0.0) == [1, 0, 2, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_a_tree_chooses_what_it_was_fitted_to(chosen: list[int]) -> None:
    programs, sizes = [_A, _B, _C], [(size + 1,) for size in range(len(chosen))]
    tree = fit(sizes, chosen, [1.0] * len(chosen), programs)
    assert [choose(tree, size) for size in sizes] == [programs[number] for number in chosen]
    assert programs_of(tree) == {programs[number] for number in chosen}


def test_a_tree_can_choose_a_different_program_at_each_size() -> None:
    programs = [Program(1 + n, 0, 2) for n in range(30)]
    tree = fit([(n,) for n in range(30)], list(range(30)), [1.0] * 30, programs)
    assert [choose(tree, (n,)) for n in range(30)] == programs


def test_a_tree_over_two_dimensions_is_described_as_nested_ifs() -> None:
    sizes = [(b, t) for b in (1, 2) for t in (1, 2, 3)]
    tree = fit(sizes, [0, 0, 1, 2, 2, 2], [1.0] * 6, [_A, _B, _C])
    assert [choose(tree, size) for size in sizes] == [_A, _A, _B, _C, _C, _C]
    assert describe(tree, ["B", "T"]).startswith("if B <= 1:\n    if T <= 2:\n        even ≤ 4 × 2v\n    else:")


def test_repairs_change_only_the_listed_sizes() -> None:
    tree = Branch(0, 10, Leaf(_A), Leaf(_B))
    repaired_tree = repaired(tree, {(5,): _C, (10,): _B})
    for size in range(1, 20):
        expected = {5: _C, 10: _B}.get(size, choose(tree, [size]))
        assert choose(repaired_tree, [size]) == expected


def test_kendalls_tau_of_equal_and_reversed_rankings() -> None:
    first = np.asarray([1.0, 2.0, 3.0, np.inf])
    assert kendall(first, first) == 1
    assert kendall(first, -first) == -1
    assert kendall(first[:1], first[:1]) == 1


def test_measurements_correct_predictions_of_neighbouring_sizes() -> None:
    corrected = Corrected(np.asarray([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 2.0, 2.0, 2.0, 2.0]]))
    for place, seconds in ((0, (1.5, 2.0)), (4, (5.0, np.inf))):
        for program, each in enumerate(seconds):
            corrected.note(program, place, each)
    np.testing.assert_allclose(corrected.seconds(), [[1.5, 3.0, 4.5, 4.0, 5.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    assert corrected.between() == [2]
    corrected.note(1, 2, 4.0)
    assert corrected.between() == [1, 3]
    np.testing.assert_allclose(corrected.seconds()[1], [2.0, 2.0, 4.0, 4.0, 2.0])


def test_sizes_between_measured_ones_are_timed_again() -> None:
    """Timing between measured sizes finds the sizes at which a program is slower than predicted."""
    sizes = [(size,) for size in range(1, 129)]
    workloads = [Workload(1, size, 64, 64) for (size,) in sizes]
    programs = [_A, _B, _C]
    truth = np.asarray([[1.0 + 0.5 * (44 <= s < 63) for (s,) in sizes], [1.2] * 128, [2.0] * 128])

    class _Clock:
        def seconds(self, trials: Any) -> Any:
            return np.asarray([truth[programs.index(program), size[0] - 1] for (_, program), size in trials])

    search = Search(None, [], workloads, sizes, None, {})  # type: ignore[arg-type]
    corrected = Corrected(np.asarray([[1.0] * 128, [1.1] * 128, [1.1] * 128]))
    for program in range(3):
        for place in range(0, 128, 21):
            corrected.note(program, place, float(truth[program, place]))
    tree, changed = search._timed_again(_Clock(), 0, programs, corrected)  # type: ignore[arg-type]
    seconds_chosen = np.asarray([truth[programs.index(choose(tree, size)), size[0] - 1] for size in sizes])
    assert (seconds_chosen <= 1.05 * truth.min(axis=0)).mean() > 0.95
    assert changed
