"""Sketches agree with TVM: the same valid points, and traces and points convert both ways.

That they have the same loops is tested in `features/test_tvm_view.py`, at the points whose features are compared.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import workloads

from felixlike._util.wording import kind_of, shown
from felixlike.errors import InvalidModel, InvalidOption, InvalidPoint, InvalidSchedule, UnsupportedSketch
from felixlike.frontend import import_model
from felixlike.symbolic import Kind, Sketch, sketches
from felixlike.symbolic.replay.sampling import Sampler


def test_points_that_tvm_draws_are_valid() -> None:
    """This includes moved blocks that gather the groups of a convolution, and padding that is not needed."""
    for name in ("conv2d_grouped", "conv2d_5x5"):
        for sketch in sketches(workloads.ALL[name]()):
            drawn = sketch.sampler.by_tvm(5, np.random.default_rng(2))
            assert sketch.valid(drawn).all()


@pytest.fixture(scope="module")
def product() -> Sketch:
    return sketches(workloads.matmul(relu=True))[1]


@pytest.fixture(scope="module")
def convolution() -> Sketch:
    return sketches(workloads.conv2d())[1]


def test_variables_are_in_trace_order(convolution: Sketch) -> None:
    kinds = [v.kind for v in convolution.variables]
    assert kinds == [Kind.TILE] * 22 + [Kind.UNROLL, Kind.LOCATION]
    assert [v.name for v in convolution.variables[4:8]] == ["ff.0", "ff.1", "ff.2", "ff.3"]
    assert convolution.variables[22].choices == (0, 16, 64, 512)


def test_samples_are_valid_and_seeded(convolution: Sketch) -> None:
    points = convolution.sample(50, seed=7)
    assert points.dtype == np.int64
    assert convolution.valid(points).all()
    np.testing.assert_array_equal(points, convolution.sample(50, seed=7))
    assert (points != convolution.sample(50, seed=8)).any()


def test_constraints_hold_at_valid_points_only(product: Sketch) -> None:
    from felixlike.symbolic.expr.evaluation import Graph

    points = product.sample(40, seed=1)
    broken = points.copy()
    broken[:, 0] *= 2
    graph = Graph([c.formula for c in product.constraints])
    assert (graph.evaluate(product.values(points), len(points)) <= 0).all()
    assert (graph.evaluate(product.values(broken), len(broken)) > 0).any(axis=1).all()
    assert not product.valid(broken).any()
    assert any("128" in c.reason for c in product.constraints)


def test_a_location_that_tvm_would_move_is_not_valid(convolution: Sketch) -> None:
    points = convolution.sample(200, seed=5)
    (column,) = convolution.location_columns
    moved = points.copy()
    moved[:, column] = 1  # the loop over filters
    trivial = moved[moved[:, 4] == 1]
    assert len(trivial)
    assert not convolution.valid(trivial).any()
    point = tuple(trivial[0].tolist())
    other_point = rf"{re.escape(str(point))}\D*\(\d"
    with pytest.raises(InvalidSchedule, match=other_point) as caught:
        convolution.schedule(point)
    assert caught.value.where == repr(convolution)


def test_blocks_stay_at_the_root_where_no_location_has_a_symbolic_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM may offer many combinations of locations, and comparing all of them would not end."""
    sketch = sketches(workloads.conv2d())[1]
    compared: list[tuple[int, ...]] = []

    def differs(self: Sampler, locations: tuple[int, ...]) -> bool:
        compared.append(locations)
        return False

    monkeypatch.setattr(Sampler, "_holds", differs)
    for seed in range(40):
        assert (sketch.sample(2, seed=seed)[:, sketch.location_columns] == -1).all()
    assert 0 < len(compared) <= 32


def test_a_location_deeper_than_the_nest_is_not_valid(convolution: Sketch) -> None:
    points = convolution.sample(2, seed=0)
    points[0, convolution.location_columns] = 99
    points[1, convolution.location_columns] = -3
    assert not convolution.valid(points).any()


def test_locations_in_loops_that_depend_on_others_are_left_out() -> None:
    layer = torch.nn.ConvTranspose2d(6, 9, 3, 2, 1, output_padding=1, groups=3, dilation=2).eval()
    (task,) = import_model(layer, ((2, 6, 11, 13),)).tasks
    for sketch in sketches(task):
        points = sketch.sample(2, seed=0)
        assert sketch.valid(points).all()


@pytest.fixture
def pooling() -> Sketch:
    """Return a sketch with two movable blocks, the first of which is the window's border."""
    return sketches(workloads.average())[1]


def test_only_final_locations_are_compared_with_tvm(pooling: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, ...]] = []

    def probe(structure: Any) -> Any:
        compared.append(structure.locations)
        return structure

    monkeypatch.setattr(pooling.structures, "probe", probe)
    points = pooling.sample(200, seed=1)
    ends = {locations for locations, _ in pooling.by_structure(points)}
    assert len(ends) > 4
    assert any(end[0] != -1 != end[1] for end in ends)  # replayed through a program with the second block unmoved
    assert ends | {(-1, -1)} >= set(compared) >= ends
    assert len(compared) == len(set(compared))


def test_programs_that_differ_from_tvms_are_not_sampled(pooling: Sketch, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {locations for locations, _ in pooling.by_structure(sketches(workloads.average())[1].sample(200, seed=1))}
    wrong = {end for end in usual if end[0] != -1}

    def probe(structure: Any) -> Any:
        return UnsupportedSketch("its loops are too wide") if structure.locations in wrong else structure

    monkeypatch.setattr(pooling.structures, "probe", probe)
    points = pooling.sample(200, seed=1)
    sampled = {locations for locations, _ in pooling.by_structure(points)}
    assert sampled
    assert not sampled & wrong
    assert pooling.valid(points).all()


def test_points_and_traces_convert_both_ways(convolution: Sketch) -> None:
    for point in convolution.sample(10, seed=2).tolist():
        assert convolution.point(convolution.schedule(point).trace) == tuple(point)


def test_a_foreign_trace_is_refused(product: Sketch, convolution: Sketch) -> None:
    trace = convolution.schedule(convolution.sample(1, seed=0)[0]).trace
    with pytest.raises(InvalidPoint) as caught:
        product.point(trace)
    assert caught.value.where == repr(product)
    assert "instructions" in caught.value.what


def test_points_of_the_wrong_width_are_refused(product: Sketch) -> None:
    with pytest.raises(InvalidPoint) as caught:
        product.valid(np.ones((3, 4), dtype=np.int64))
    assert caught.value.where == repr(product)
    assert all(shape in caught.value.what for shape in ("(3, 4)", "[count, 11]"))
    with pytest.raises(InvalidPoint) as caught:
        product.schedule((1, 2, 3))
    assert caught.value.where == f"point of {product!r}"
    assert all(number in caught.value.what for number in ("3 numbers", "11 whole numbers"))
    assert not product.in_range((1, 2, 3))


@pytest.mark.parametrize("points", [None, "abc", [[1.5] * 11], [["a"] * 11], [[2**70] * 11], [[1], [1, 2]]])
def test_points_of_other_types_are_refused(product: Sketch, points: Any) -> None:
    with pytest.raises(InvalidPoint) as caught:
        product.valid(points)
    assert all(text in caught.value.what for text in ("[count, 11]", shown(points)))
    point = points[0] if isinstance(points, list) and len(points) == 1 else points
    with pytest.raises(InvalidPoint) as caught:
        product.schedule(point)
    assert all(text in caught.value.what for text in ("11 whole numbers", shown(point)))
    assert not product.in_range(point)


def test_points_may_be_arrays_lists_and_tensors(product: Sketch) -> None:
    points = product.sample(3, seed=0)
    for same in (points.tolist(), points.astype(np.float64), points.astype(np.uint64), torch.from_numpy(points)):
        np.testing.assert_array_equal(product.checked(same), points)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"count": -1, "seed": 0}, "count"),
        ({"count": 2.5, "seed": 0}, "count"),
        ({"count": 2**40, "seed": 0}, "count"),
        ({"count": 1, "seed": -1}, "seed"),
        ({"count": 1, "seed": None}, "seed"),
        ({"count": 1, "seed": 0, "paths": 0}, "paths"),
    ],
)
def test_options_of_sampling_are_checked(product: Sketch, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}.*{options[name]}") as caught:
        product.sample(**options)
    assert caught.value.where == "Sketch.sample"
    assert ("100000000" in str(caught.value)) is (name == "count")


def test_a_schedule_instead_of_a_trace_is_refused(product: Sketch) -> None:
    with pytest.raises(InvalidPoint, match="a Schedule") as caught:
        product.point(product.schedule(product.sample(1, seed=0)[0]))
    assert "s.trace" in caught.value.remedy


@pytest.mark.parametrize("wrong", [None, 5, "x", workloads.matmul])
def test_sketches_refuses_other_types(wrong: Any) -> None:
    with pytest.raises(InvalidModel, match=kind_of(wrong)) as caught:
        sketches(wrong)
    assert caught.value.where == "sketches"
    assert "felixlike.extract_tasks" in caught.value.remedy


def test_replaying_does_not_change_the_task(product: Sketch) -> None:
    before = product.task.module.script()
    sketches(product.task)[0].program  # noqa: B018
    product.schedule(product.sample(1, seed=0)[0])
    assert product.task.module.script() == before


def test_non_symbolic_sketches_are_sampled_by_tvm() -> None:
    all_sketches = sketches(workloads.large_sum())
    non_symbolic = [s for s in all_sketches if not s.is_symbolic]
    assert len(non_symbolic) == 2
    for sketch in non_symbolic:
        assert "1000000 values" in sketch.reason
        points = sketch.sample(5, seed=1)
        np.testing.assert_array_equal(points, sketch.sample(5, seed=1))
        for point in points.tolist():
            assert sketch.point(sketch.schedule(point).trace) == tuple(point)


def test_sketches_that_tvm_lowers_to_other_programs_are_wrong() -> None:
    """Padding that is moved into the tiles of its consumer loses its border."""
    all_sketches = sketches(workloads.padded_product())
    assert [s.wrong for s in all_sketches] == [False, True, True]
    assert re.search("12 of 13 .*pad", all_sketches[1].reason)


def test_a_task_without_choices_has_one_point() -> None:
    (sketch,) = sketches(workloads.chain())
    assert sketch.variables == ()
    assert sketch.sample(3, seed=0).shape == (3, 0)
    assert sketch.schedule(()).mod["main"] is not None


def test_keys_are_unique_and_do_not_depend_on_decisions() -> None:
    first, second = sketches(workloads.matmul()), sketches(workloads.matmul())
    assert [s.key for s in first] == [s.key for s in second]
    assert len({s.key for s in first}) == len(first)
