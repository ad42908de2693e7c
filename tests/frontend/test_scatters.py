"""Tests for assignments to indexed elements, which are decomposed into choices and scatters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support.models import Apply
from torch import Tensor

import felixlike as fx
from felixlike.errors import UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.frontend.importers.scatters import index_put
from felixlike.runtime import compile_model

X = torch.linspace(-2, 2, 360).reshape(3, 4, 5, 6)
ALL = slice(None)


def assign(*places: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def assigned(x: Tensor, values: Tensor) -> Tensor:
        x = x.clone()
        x[places] = values
        return x

    return assigned


@st.composite
def _assignments(draw: st.DrawFn) -> tuple[Tensor, list[Tensor | None], Tensor, bool]:
    """Return arguments of index_put whose elements are written once, unless they are added."""
    x = torch.arange(60.0).reshape(3, 4, 5)
    indexed = draw(st.lists(st.sampled_from(range(3)), min_size=1, unique=True))
    accumulate = draw(st.booleans())
    count = draw(st.integers(1, 3))
    indices: list[Tensor | None] = [None] * (max(indexed) + 1)
    for dim in indexed:
        size = x.shape[dim]
        places = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
        if not accumulate:  # one order of distinct places
            places = draw(st.permutations(range(size)))[:count]
        indices[dim] = torch.tensor(places)
    shape = x[tuple(ALL if index is None else index for index in indices)].shape
    shape = torch.Size(1 if draw(st.booleans()) else size for size in shape)
    return x, indices, -torch.arange(1.0, 1 + shape.numel()).reshape(shape), accumulate


@settings(deadline=None)
@given(_assignments())
def test_any_dimensions_are_indexed_as_in_pytorch(arguments: tuple[Tensor, list[Tensor | None], Tensor, bool]) -> None:
    x, indices, values, accumulate = arguments
    expected = torch.ops.aten.index_put(x, indices, values, accumulate)
    torch.testing.assert_close(index_put(x, indices, values, accumulate), expected)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda x, v: x.index_copy(2, torch.tensor([3]), v), torch.randn(3, 4, 1, 6)),
        (lambda x, v: x.index_add(1, torch.tensor([3, 0, 3]), v, alpha=2), torch.randn(3, 3, 5, 6)),
        (assign(ALL, torch.tensor([[0, 2], [1, -1]])), torch.randn(5, 6)),
        (assign(torch.tensor([0, 2]), ALL, torch.tensor([1, 4])), torch.randn(2, 4, 6)),
        (assign(X > 0.5), torch.tensor(2.0)),
        (assign(X[..., 0] > 0.5), torch.randn(6)),
        (assign(ALL, X[0, :, 0, 0] > -1.9), torch.tensor(7.0)),
    ],
)
def test_compiled_assignments_equal_pytorchs(function: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> None:
    compiled = compile_model(import_model(Apply(function), (X, values)))
    torch.testing.assert_close(compiled(X, values), function(X, values))


AT = torch.tensor([[[0, 1, 3], [2, 1, 0]]] * 3)  # fewer than the source's elements, one place of which twice
NAN = torch.tensor([[1.0, torch.nan, 3.0], [0.0, -1.0, torch.nan]]).repeat(3, 2, 1)


@pytest.mark.parametrize(
    ("reduce", "include_self"),
    [("sum", True), ("sum", False), ("prod", False), ("mean", True), ("mean", False), ("amax", True), ("amin", False)],
)
def test_reducing_scatters_equal_pytorchs(reduce: str, include_self: bool) -> None:
    def function(x: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(1, AT, source, reduce, include_self=include_self)

    x, source = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    compiled = compile_model(import_model(Apply(function), (x, source)))
    torch.testing.assert_close(compiled(x, source), function(x, source))
    source[:, :4, :3] = NAN
    torch.testing.assert_close(compiled(x, source), function(x, source), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8])
def test_extremes_of_integers_equal_pytorchs(dtype: torch.dtype) -> None:
    def function(x: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(1, AT[0], source, "amax", include_self=False)

    x, source = torch.arange(8).reshape(2, 4).to(dtype), -torch.arange(9).reshape(3, 3).to(dtype)
    compiled = compile_model(import_model(Apply(function), (x, source)))
    assert torch.equal(compiled(x, source), function(x, source))


def test_means_of_integers_are_refused() -> None:
    x = torch.arange(8).reshape(2, 4)
    with pytest.raises(UnsupportedOperator, match="means of int64"):
        import_model(Apply(lambda x: x.scatter_reduce(1, AT[0], x, "mean")), (x,))


def test_operators_that_write_the_flat_tensor_equal_pytorchs() -> None:
    def function(x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        at = torch.tensor([[0, 359], [-2, 7]])
        return x.put(at, source[:4]), x.put(at, source[:4], accumulate=True), x.masked_scatter(x > 0.5, source)

    compiled, source = compile_model(import_model(Apply(function), (X, X.flatten()))), torch.randn(360)
    torch.testing.assert_close(compiled(X, source), function(X, source))


BAGS = torch.tensor([0, 3, 3, 5])


@pytest.mark.parametrize(
    "options",
    [
        {"offsets": BAGS, "mode": "sum"},
        {"offsets": BAGS, "mode": "mean"},
        {"offsets": BAGS, "mode": "mean", "padding_idx": 2},
        {"offsets": BAGS, "mode": "sum", "include_last_offset": True, "per_sample_weights": torch.rand(5)},
        {"mode": "mean"},
        {"offsets": BAGS, "mode": "max"},
        {"offsets": BAGS, "mode": "max", "padding_idx": 2},
        {"mode": "max"},
    ],
)
def test_bags_of_embeddings_equal_pytorchs(options: dict[str, Any]) -> None:
    def function(table: Tensor, at: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(at, table, **options)

    at = torch.tensor([2, 1, 2, 4, 0])
    table, at = torch.randn(5, 6), at if "offsets" in options else at.expand(3, 5).contiguous()
    compiled = compile_model(import_model(Apply(function), (table, at)))
    torch.testing.assert_close(compiled(table, at), function(table, at))


def test_places_out_of_range_are_not_written() -> None:
    def put(x: Tensor, at: Tensor) -> Tensor:
        return torch.index_put(x, (at,), torch.ones(()))

    x, at = torch.zeros(4, 2), torch.tensor([1, 2])
    compiled = compile_model(import_model(Apply(put), (x, at)))
    assert compiled(x, torch.tensor([3, 400_000_000])).sum(1).tolist() == [0, 0, 0, 2]
    assert compiled(x, torch.tensor([-5, -1])).sum(1).tolist() == [0, 0, 0, 2]


def test_a_value_for_each_place_of_a_mask_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="IndexPut"):
        import_model(Apply(assign(X > 0.5)), (X, torch.randn(int((X > 0.5).sum()))))


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_in_training_mode_updates_its_statistics(affine: bool) -> None:
    def norm(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        scale = torch.linspace(1, 2, 4) if affine else None
        return torch.nn.functional.batch_norm(x, mean, variance, scale, training=True)

    x, state, expected = torch.randn(3, 4, 5), [torch.zeros(4), torch.ones(4)], [torch.zeros(4), torch.ones(4)]
    compiled = compile_model(import_model(Apply(norm), (x, *state)))
    torch.testing.assert_close(compiled(x, *state), norm(x, *expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected)


@pytest.mark.parametrize(("dtype", "mean"), [(torch.float32, 1000), (torch.float64, 1000), (torch.float16, 50)])
@pytest.mark.parametrize("shape", [(9, 5), (3, 4, 5, 6)])
def test_batch_norm_without_statistics_of_a_large_mean(dtype: torch.dtype, mean: int, shape: tuple[int, ...]) -> None:
    """The mean of the squares, less the square of the mean, would have no correct digit."""
    torch.manual_seed(0)
    x = (torch.randn(shape) + mean).to(dtype)
    norm = torch.nn.BatchNorm1d if x.dim() == 2 else torch.nn.BatchNorm2d
    model = norm(shape[1], track_running_stats=False).eval().to(dtype)
    got = compile_model(import_model(model, (x,)))(x)
    torch.testing.assert_close(got, model.double()(x.double()).to(dtype), rtol=2e-3, atol=2e-3)


def test_operators_with_effects_are_refused() -> None:
    def printing(x: Tensor) -> Tensor:
        torch.ops.aten._print("x")
        return x + 1

    with pytest.raises(UnsupportedOperator, match=r"^Apply: .*_print.*effects"):
        import_model(Apply(printing), (torch.eye(4),))


def test_indices_out_of_range_stay_within_the_tensor() -> None:
    """PyTorch raises an error. Kernels would read and write other tensors."""
    x, y = torch.arange(12.0).reshape(3, 4), torch.full((3, 2), 100.0)
    at, inside = torch.tensor([[0, 4], [-1, 99], [-(2**40), 2]]), torch.tensor([[0, 3], [3, 3], [0, 2]])
    functions: tuple[Callable[..., Tensor], ...] = (
        lambda x, at, y: x.gather(1, at),
        lambda x, at, y: x.scatter(1, at, y),
        lambda x, at, y: x.scatter(1, at, 100.0),
        lambda x, at, y: x.scatter_add(1, at, y),
        lambda x, at, y: x.scatter_reduce(1, at, y, "amax"),
    )
    model = Apply(lambda *inputs: tuple(function(*inputs) for function in functions))
    compiled = compile_model(import_model(model, (x, inside, y)))
    for got, want in zip(compiled(x, at, y), model(x, inside, y), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "place",
    [
        slice(-9, 2),
        slice(-9, 3, 2),
        slice(3, 1),
        slice(2, 100),
        slice(5, 7),
        slice(1, None, 2),
        slice(None),
        slice(0, 0),
    ],
)
def test_slices_are_read_and_assigned_as_in_pytorch(place: slice) -> None:
    values = -torch.arange(1.0, 1 + X[0][place].numel()).reshape(X[0][place].shape)
    model = Apply(lambda x: (assign(place)(x, values), x[place], x + 1))
    for got, want in zip(compile_model(import_model(model, (X[0],)))(X[0]), model(X[0]), strict=True):
        torch.testing.assert_close(got, want)


def test_a_small_source_is_not_read_out_of_bounds() -> None:
    model, x, values = Apply(assign(slice(3, 8))), torch.ones(1_000_000, 8), torch.randn(5, 8)
    fast = fx.optimize(model, (x, values), trials=0, progress=False)
    assert torch.equal(fast(x, values), model(x, values))
    assert [task.how for task in fast.report.tasks] == ["unmeasured"]  # no schedule was refused
