"""Test joint sizes of several dimensions: what is chosen, that other sizes stay correct, and bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import dynamic_operators as operators

import felixlike as fx
from felixlike import dynamic
from felixlike.dynamic.dims import instances
from felixlike.dynamic.joint import Instances, with_instances
from felixlike.dynamic.operator import read_operator
from felixlike.dynamic.workloads import workloads_of
from felixlike.errors import InvalidDim, InvalidOption

_M, _N, _K = (fx.Dim(name, range(1, 65)) for name in "MNK")


def _bound(joint: Instances, *dims: fx.Dim) -> list[fx.Dim]:
    return list(with_instances({dim.name: dim for dim in dims}, joint).values())


def _product() -> Any:
    operator = read_operator(operators.product())
    assert operator is not None
    return operator


def test_programs_are_chosen_for_joint_sizes_with_their_weights() -> None:
    joint = fx.instances([(5, 5, 5), (10, 10, 10)], weights=[3, 1])
    assert joint.weights == (0.75, 0.25)
    operator = _product()
    by_name = {"M": _M, "N": _N, "K": _K}
    dims = [by_name[str(symbol.name)] for symbol in operator.symbols]
    workloads, sizes = workloads_of(operator, _bound(joint, *dims), 64)
    assert sizes == [(5, 5, 5), (10, 10, 10)]
    assert [(w.i, w.j, w.k, w.weight) for w in workloads] == [(5, 5, 5, 0.75), (10, 10, 10, 0.25)]
    every, _ = workloads_of(operator, dims, 64)
    assert len(every) == 27  # without joint sizes: combinations of three sizes of each


def test_an_operator_with_some_of_the_sizes_adds_up_their_weights() -> None:
    joint = fx.instances([(4, 8, 1), (4, 8, 2), (6, 8, 1)], weights=[1, 2, 5])
    m, n, k = _bound(joint, _M, _N, _K)
    assert instances([m, n], most=64) == [({"M": 4, "N": 8}, 0.375), ({"M": 6, "N": 8}, 0.625)]
    assert instances([k, m], most=64) == [
        ({"K": 1, "M": 4}, 0.125),
        ({"K": 1, "M": 6}, 0.625),
        ({"K": 2, "M": 4}, 0.25),
    ]
    assert instances([n], most=1) == [({"N": 8}, 1.0)]


def test_many_instances_are_spread_evenly() -> None:
    joint = fx.instances([(size, 65 - size) for size in range(1, 65)])
    chosen = instances(_bound(joint, _M, _N), most=8)
    assert len(chosen) == 8
    assert [chosen[0][0]["M"], chosen[-1][0]["M"]] == [1, 64]
    assert sum(weight for _, weight in chosen) == pytest.approx(1)
    assert all(sizes["M"] + sizes["N"] == 65 for sizes, _ in chosen)
    (one,) = instances(_bound(joint, _M, _N), most=1)
    assert one[1] == pytest.approx(1)


def test_names_may_stand_in_place_of_an_order() -> None:
    joint = fx.instances([{"N": 3, "M": 7}, {"M": 9, "N": 4}], weights={(3, 7): 1.0, (4, 9): 3.0})
    assert instances(_bound(joint, _M, _N), most=8) == [({"M": 7, "N": 3}, 0.25), ({"M": 9, "N": 4}, 0.75)]


def test_weights_of_zero_leave_equal_ones() -> None:
    joint = fx.instances([(1, 1), (2, 2), (3, 3)], weights=[0, 1, 0])
    assert [weight for _, weight in instances(_bound(joint, _M, _N), most=2)] == [0.5, 0.5]  # the ends


@pytest.mark.parametrize("measure", [False, True])
def test_a_kernel_for_joint_sizes_is_correct_at_every_size(measure: bool) -> None:
    joint = fx.instances([(5, 5, 5), (10, 10, 10)])
    kernel = dynamic.compile(operators.product(), [_M, _N, _K], measure=measure, instances=joint)
    generator = torch.Generator().manual_seed(0)
    for m, n, k in [(5, 5, 5), (10, 10, 10), (1, 1, 1), (64, 64, 64), (5, 64, 1), (17, 3, 61)]:
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        torch.testing.assert_close(kernel(a, b), (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4)


def test_the_choice_is_made_for_joint_sizes() -> None:
    few = dynamic.compile(operators.product(), [_M, _N, _K], measure=False, instances=fx.instances([(5, 5, 5)]))
    assert "if" not in few.explain().split("\n", 1)[0]  # one size needs one program
    assert few.program(M=5, N=5, K=5) == few.program(M=64, N=64, K=64)


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ y)


def test_models_take_joint_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[list[tuple[int, ...]]]()

    def watched(operator: Any, dims: Any, most: int) -> Any:
        workloads, sizes = workloads_of(operator, dims, most)
        seen.append(sizes)
        return workloads, sizes

    monkeypatch.setattr("felixlike.dynamic.plan.workloads_of", watched)
    shapes = {"x": (_M, _K), "y": (_K, 48)}
    joint = fx.instances([(6, 16), (32, 64)], weights=[1, 2])
    fast = fx.optimize(_Sum().eval(), shapes, rounds=0, progress=False, instances=joint)
    assert seen
    assert all({tuple(sorted(sizes)) for sizes in listed} == {(6, 16), (32, 64)} for listed in seen)
    for m, k in [(6, 16), (32, 64), (1, 1), (64, 3)]:
        x, y = torch.randn(m, k), torch.randn(k, 48)
        torch.testing.assert_close(fast(x, y), torch.relu(x @ y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("joint", "text"),
    [
        (fx.instances([(5, 5, 5), (10, 10, 65)]), r"K is 65 in instance \(10, 10, 65\), out of its range 1 to 64"),
        (fx.instances([(5, 5)]), r"expected instances with 3 sizes, one for each of M, N, K, got 2"),
        (fx.instances([{"M": 5, "N": 5, "depth": 5}]), r"one for each of M, N, K, got M, N, depth"),
    ],
)
def test_instances_outside_their_dims_raise(joint: Instances, text: str) -> None:
    with pytest.raises(InvalidDim, match=f"instances: .*{text}"):
        dynamic.compile(operators.product(), [_M, _N, _K], measure=False, instances=joint)


def test_a_model_refuses_instances_outside_its_dims() -> None:
    with pytest.raises(InvalidDim, match=r"instances: .*M is 65 in instance \(65, 1\), out of its range 1 to 64"):
        fx.optimize(
            _Sum().eval(),
            {"x": (_M, _K), "y": (_K, 48)},
            rounds=0,
            progress=False,
            instances=fx.instances([(65, 1)]),
        )


@pytest.mark.parametrize(
    ("sizes", "weights", "text"),
    [
        ([], None, "expected 1 to 65536 instances, got none"),
        (5, None, "expected a list of tuples of sizes, got 5"),
        ([5, 10], None, "expected a tuple of sizes, got 5"),
        ([()], None, r"expected a tuple of sizes, got \(\)"),
        ([(5, 5), (5, 5, 5)], None, r"expected 2 sizes as in the first instance, got \(5, 5, 5\)"),
        ([{"M": 5}, {"N": 5}], None, r"expected sizes of M as in the first instance, got \{'N': 5\}"),
        ([(5, 5), (5, 5)], None, r"instance \(5, 5\) is given twice"),
        ([(5, 0)], None, "expected positive sizes, got 0"),
        ([(5, 2.5)], None, "expected integers as sizes, got 2.5"),
        ([(5, 5), (6, 6)], [1.0], "expected 2 weights, got 1"),
        ([(5, 5), (6, 6)], [1.0, -1.0], "expected weights of at least 0, got -1.0"),
        ([(5, 5), (6, 6)], [0, 0], "all weights are zero"),
        ([(5, 5)], {(6, 6): 1.0}, r"got a weight for \(6, 6\), which is not among the instances"),
    ],
)
def test_malformed_instances_raise(sizes: Any, weights: Any, text: str) -> None:
    with pytest.raises(InvalidDim, match=f"instances: .*{text}"):
        fx.instances(sizes, weights=weights)


def test_instances_without_an_effect_raise() -> None:
    joint = fx.instances([(5, 5)])
    with pytest.raises(InvalidOption, match=r"instances: no size is a Dim"):
        fx.optimize(_Sum().eval(), {"x": (4, 8), "y": (8, 48)}, rounds=0, progress=False, instances=joint)
    with pytest.raises(InvalidOption, match=r"instances: .*Instances.*pass felixlike.instances"):
        fx.optimize(_Sum().eval(), {"x": (_M, 8), "y": (8, 48)}, rounds=0, instances=[(5,)])  # type: ignore[arg-type]
    convolution = torch.nn.Conv2d(3, 4, 3).eval()
    with pytest.raises(InvalidOption, match=r"instances: b is the batch of a model with convolutions"):
        fx.optimize(
            convolution,
            ((fx.Dim("b", range(1, 5)), 3, 8, 8),),
            rounds=0,
            progress=False,
            instances=fx.instances([(2,)]),
        )
