"""Test that the schedule trees of isl keep the order of dependent statements, and fuse as the strategies say."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import islpy as isl
import pytest
import torch
from hypothesis import given, settings
from tc_programs import Made, programs

import felixlike as fx
from felixlike.errors import InvalidOption, MissingDependency, TCError, TCFusionError
from felixlike.tc import polyhedral
from felixlike.tc.bounds import Kept
from felixlike.tc.call import Given
from felixlike.tc.const_eval import Unknown, on_grid
from felixlike.tc.entry import read
from felixlike.tc.instance import Instance, instance
from felixlike.tc.polyhedral import schedule
from felixlike.tc.program import Read, walk
from felixlike.tc.scalars import canonical

_SGEMM = """def sgemm(float a, float b, float(N,M) A, float(M,K) B) -> (C) {
  C(i, j) = b * C(i, j)
  C(i, j) += a * A(i, k) * B(k, j)
}"""
_SOFTMAX = """def softmax(float(N,D) A) -> (M, E, S, O) {
  M(n) max=! A(n, d)  E(n, d) = exp(A(n, d) - M(n))  S(n) +=! E(n, d)  O(n, d) = E(n, d) / S(n)
}"""

Access = tuple[str, tuple[int | None, ...]]
"""A tensor and its subscripts; None where any element of the dimension may be read."""


def _points(made: Instance) -> Iterator[tuple[str, tuple[int, ...], Access, list[Access]]]:
    """Yield (statement, point, write, reads) in the order of the text."""
    for number, step in enumerate(made.program.steps):
        intervals = made.ranges.domains[number].intervals
        phases = [False, True] if step.reduced and step.fresh else [True]
        for is_step in phases:
            names = (*step.indices, *step.reduced) if is_step else step.indices
            for point in itertools.product(*(range(intervals[n][0], intervals[n][1] + 1) for n in names)):
                at = dict(zip(names, point, strict=True))
                write: Access = (step.target, tuple(at[index] for index in step.indices))
                reads: list[Access] = [write] if is_step and (step.reduced or not step.fresh) else []
                reads += [
                    (value.tensor, tuple(_subscript(made, value, s, at) for s in value.subscripts))
                    for value in (walk(step.value) if is_step else ())
                    if isinstance(value, Read)
                ]
                yield f"S{number + 1}" + ("" if is_step else "_init"), point, write, reads


def _subscript(made: Instance, access: Read, value: Any, at: dict[str, int]) -> int | None:
    if made.bounds.kept.get(id(access), Kept.ALWAYS) is Kept.BY_CHECK:
        return None
    try:
        return int(on_grid(value, at, made.sizes))
    except (Unknown, ZeroDivisionError):
        return None


def _conflicts(one: Access, other: Access) -> bool:
    return one[0] == other[0] and all(a is None or b is None or a == b for a, b in zip(one[1], other[1], strict=True))


def _times(tree: Any) -> dict[tuple[str, tuple[int, ...]], tuple[int, ...]]:
    """Return the time of each point by the schedule."""
    times: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    def numbers(point: Any) -> tuple[int, ...]:
        space = point.get_space()
        count = space.dim(isl.dim_type.set)
        return tuple(point.get_coordinate_val(isl.dim_type.set, place).to_python() for place in range(count))

    def add(point: Any) -> None:
        moment = tree.get_map().intersect_domain(isl.UnionSet.from_set(isl.Set.from_point(point))).range()
        times[point.get_space().get_tuple_name(isl.dim_type.set), numbers(point)] = numbers(moment.sample_point())

    tree.get_domain().foreach_point(add)
    return times


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))
@given(programs())
def test_schedules_keep_the_order_of_dependent_points(made: Made) -> None:
    try:
        program_instance = instance(read(made.source), [Given(shape, canonical(dtype)) for dtype, shape in made.inputs])
    except TCError:
        return
    points = list(_points(program_instance))
    if len(points) > 120:
        return
    for fusion in ("Max", "Preserve3Coincident", "Min"):
        tree = schedule(
            program_instance.program,
            program_instance.sizes,
            program_instance.ranges,
            program_instance.bounds,
            fusion,
        )
        times = _times(tree)
        assert times.keys() == {(name, point) for name, point, _, _ in points}
        for (name, point, write, reads), (later, later_point, later_write, later_reads) in itertools.combinations(
            points, 2
        ):
            if any(_conflicts(write, access) for access in (later_write, *later_reads)) or any(
                _conflicts(access, later_write) for access in reads
            ):
                assert times[name, point] < times[later, later_point], (made.source, fusion)


def test_sgemm_is_fused_as_in_the_paper() -> None:
    kernel = fx.tc.define(_SGEMM)
    tree = kernel.schedule_tree((), (), (12, 8), (8, 10))
    assert tree.startswith("# sgemm, N = 12, M = 8, K = 10, fusion Max\ndomain: ")
    assert "coincident: [ 1, 1, 0 ]" in tree
    assert tree.count("schedule:") == 1
    assert tree.index('filter: "{ S1[i, j] }"') < tree.index('filter: "{ S2[i, j, k] }"')
    separate = fx.tc.define(_SGEMM, options=fx.tc.Options().fuse("Min")).schedule_tree((), (), (12, 8), (8, 10))
    assert separate.count("schedule:") == 2


def test_sgemm_is_fused_and_tiled_as_in_the_paper() -> None:
    kernel = fx.tc.define(_SGEMM, options=fx.tc.Options().tile(32, 32))
    tree = kernel.schedule_tree((), (), (64, 8), (8, 96))
    assert tree.startswith("# sgemm, N = 64, M = 8, K = 96, fusion Max, tiles 32 × 32\n")
    bands = re.findall(r"schedule: \"(.*)\"", tree)
    assert [band.count("S2[") for band in bands] == [2, 2, 1]  # over tiles, within tiles, over k
    assert "S2[i, j, k] -> [(i - (i) mod 32)]" in bands[0]
    assert "S2[i, j, k] -> [((i) mod 32)]" in bands[1]


@pytest.mark.parametrize(("fusion", "outermost"), [("Max", "schedule"), ("Preserve3Coincident", "sequence")])
def test_fusing_rows_costs_a_parallel_loop(fusion: str, outermost: str) -> None:
    kernel = fx.tc.define(_SOFTMAX, options=fx.tc.Options().fuse(fusion))
    lines = kernel.schedule_tree((6, 5)).splitlines()
    assert lines[3].strip().startswith(f"{outermost}:")


def test_indices_named_like_words_of_isl_are_renamed() -> None:
    kernel = fx.tc.define("def f(float(N) A) -> (O) { O(mod) = A(mod) }")
    assert "S1[mod_]" in kernel.schedule_tree((4,))


def test_a_search_that_takes_too_long_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyhedral, "_OPERATIONS", 50)
    with pytest.raises(TCError, match=r"no schedule within 50 operations.*Min"):
        fx.tc.define(_SOFTMAX).schedule_tree((6, 5))


def test_without_islpy_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "islpy", None)
    with pytest.raises(MissingDependency, match=r"islpy.*felixlike\[tc\]"):
        fx.tc.define(_SOFTMAX).schedule_tree((6, 5))
    with pytest.raises(MissingDependency, match=r"islpy.*felixlike\[tc\]"):
        fx.tc.define(_SOFTMAX, options=fx.tc.Options().fuse("Max"))(torch.ones(6, 5))
    with pytest.raises(MissingDependency, match=r"islpy.*felixlike\[tc\]"):
        fx.tc.define(_SOFTMAX).to_c((6, 5))


_ATTENTION = """def attention(float(Q,D) X, float(K,D) Y, float(K,E) Z) -> (P, M, W, S, O) {
  P(q, k) +=! X(q, d) * Y(k, d)
  M(q) max=! P(q, k)  W(q, k) = exp(P(q, k) - M(q))  S(q) +=! W(q, k)
  O(q, e) +=! W(q, k) * Z(k, e) / S(q)
}"""


def _functions(kernel: fx.tc.Comprehension, *shapes: tuple[int, ...]) -> list[set[str]]:
    """Return the tensors that each function of a comprehension computes, in the order of the functions' names."""
    functions = kernel.explain(*shapes).split("@T.prim_func")[1:]
    return sorted((set(re.findall(r"T\.sblock\(\"(\w+?)_\d", text)) for text in functions), key=sorted)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (fx.tc.Options(), ["P", "MWS", "O"]),
        (fx.tc.Options().fuse("Max"), ["PMWSO"]),
        (fx.tc.Options().fuse("Preserve3Coincident"), ["P", "M", "W", "S", "O"]),
        (fx.tc.Options().fuse("Min"), ["P", "M", "W", "S", "O", "O"]),
        (fx.tc.Options().fuse_statements(2, 3, 4), ["P", "MWS", "O"]),
        (fx.tc.Options().fuse_statements(1, 2).fuse_statements(4, 5), ["PM", "W", "SO"]),
    ],
    ids=lambda value: "".join(value) if isinstance(value, list) else "",
)
def test_functions_follow_the_schedule(options: fx.tc.Options, expected: list[str]) -> None:
    kernel = fx.tc.define(_ATTENTION, options=options)
    x, y, z = torch.randn(6, 4), torch.randn(5, 4), torch.randn(5, 3)
    assert _functions(kernel, x.shape, y.shape, z.shape) == sorted(map(set, expected), key=sorted)
    torch.testing.assert_close(kernel(x, y, z)[-1], torch.softmax(x @ y.T, 1) @ z)


def test_sums_of_squares_share_a_function_with_their_rows() -> None:
    kernel = fx.tc.define("def f(float(N,D) A) -> (S, O) { S(n) +=! A(n, d) * A(n, d)  O(n, d) = A(n, d) / S(n) }")
    assert _functions(kernel, (4, 6)) == [{"S", "O"}]
    a = torch.randn(4, 6)
    torch.testing.assert_close(kernel(a)[1], a / (a * a).sum(1, keepdim=True))


def test_statements_that_are_fused_by_request_share_a_loop_of_tree_and_code() -> None:
    options = fx.tc.Options().fuse_statements(1, 2).fuse_statements(4, 5)
    kernel = fx.tc.define(_ATTENTION, options=options)
    tree = kernel.schedule_tree((6, 4), (5, 4), (5, 3))
    assert tree.startswith("# attention, Q = 6, D = 4, K = 5, E = 3, fusion S1 with S2 and S4 with S5\n")
    assert kernel.to_c((6, 4), (5, 4), (5, 3)).count("\n  for (int q") == 3


@pytest.mark.parametrize(
    ("statements", "group", "words"),
    [
        ("S +=! A(i) O(i) = A(i) / S", (1, 2), "statements 1 and 2 cannot share a loop"),
        ("O(i) = 2 * A(i) P(i) = O(3 - i) where i in 0:4", (1, 2), "statements 1 and 2 cannot share a loop"),
        ("O(i) = A(i) S +=! O(i) P(i) = O(i) / S", (1, 3), "statements 1, 2 and 3 depend on each other in a circle"),
        ("S = 1 T = 2", (1, 2), "statements 1 and 2 cannot share a loop"),
    ],
)
def test_illegal_fusion_is_refused(statements: str, group: tuple[int, ...], words: str) -> None:
    outputs = ", ".join(sorted(set(re.findall(r"[OPST](?=\(i\) =| =| \+=!)", statements))))
    options = fx.tc.Options().fuse_statements(*group)
    kernel = fx.tc.define(f"def f(float(N) A) -> ({outputs}) {{ {statements} }}", options=options)
    for use in (kernel.schedule_tree, kernel.to_c, kernel.explain):
        with pytest.raises(TCFusionError, match=words):
            use((4,))
    with pytest.raises(TCFusionError, match=words):
        kernel(torch.ones(4))


def test_unrelated_statements_may_be_fused() -> None:
    options = fx.tc.Options().fuse_statements(1, 2)
    kernel = fx.tc.define("def f(float(N) A, float(M) B) -> (O, P) { O(i) = A(i) P(i) = B(i) }", options=options)
    assert kernel.explain((6,), (4,)).count("@T.prim_func") == 1
    outputs = kernel(torch.arange(6.0), torch.arange(4.0))
    assert [output.tolist() for output in outputs] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]


def test_requests_that_contradict_each_other_raise() -> None:
    with pytest.raises(InvalidOption, match=r"^fuse: .*Max contradicts fuse_statements"):
        fx.tc.Options().fuse("Max").fuse_statements(1, 2)
    with pytest.raises(InvalidOption, match=r"^fuse_statements: .*two or more.* got 1"):
        fx.tc.Options().fuse_statements(1)
    with pytest.raises(InvalidOption, match=r"^fuse_statements: .*each in one group"):
        fx.tc.Options().fuse_statements(1, 2).fuse_statements(2, 3)
    with pytest.raises(InvalidOption, match=r"^fuse_statements: .*no statement 5; softmax has 4"):
        fx.tc.define(_SOFTMAX, options=fx.tc.Options().fuse_statements(1, 5)).explain((6, 5))
