"""Tests for attention: it is one kernel where that is worth it, and fully masked rows give 0 or NaN as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.models import Apply
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_AVX2 = _tvm.Target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2})


def _softmax(x: Tensor) -> Tensor:
    output: Tensor = torch.ops.aten._safe_softmax(x, 1)
    return output


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 7, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)


def test_the_softmax_of_attention_is_one_kernel() -> None:
    imported = import_model(Apply(scaled_dot_product_attention), _inputs())
    assert [task.name for task in imported.tasks if "softmax" in task.name] == ["softmax"]
    assert not any("isinf" in task.name or "logical" in task.name for task in imported.tasks)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_matches_pytorch(masked: bool) -> None:
    q, k, v = _inputs()
    mask = torch.ones(7, 5, dtype=torch.bool)
    if masked:
        mask[2], mask[3, 1:] = False, False
    model = Apply(lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask))
    fast = compile_model(import_model(model, (q, k, v)))
    torch.testing.assert_close(fast(q, k, v), model(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_softmax_of_non_finite_values(dtype: torch.dtype) -> None:
    x = torch.tensor([[-torch.inf] * 4, [0, 1, -torch.inf, 2], [torch.nan, 0, 1, 2], [torch.inf, 0, 1, 2]], dtype=dtype)
    x = torch.stack([x.T, torch.full_like(x.T, torch.finfo(dtype).min)])
    fast = compile_model(import_model(Apply(_softmax), (x,)))
    torch.testing.assert_close(fast(x), _softmax(x), equal_nan=True)


_HEADS = 4


def _heads(x: Tensor, count: int = _HEADS) -> Tensor:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _joined(scaled_dot_product_attention(_heads(q), _heads(k), _heads(v)))


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _joined(scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), is_causal=True))


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = _heads(k[..., :16], 2), _heads(v[..., :16], 2)
    return _joined(scaled_dot_product_attention(_heads(q), k, v, enable_gqa=True))


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _joined(scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), attn_mask=mask))


def _added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(_heads(q) @ _heads(k).mT / math.sqrt(8) + mask, -1) @ _heads(v)


def _filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.bmm(_heads(q).flatten(0, 1), _heads(k).flatten(0, 1).mT).reshape(2, _HEADS, *mask.shape)
    powers = torch.softmax(scores.masked_fill(mask, -math.inf), -1).flatten(0, 1)
    return torch.bmm(powers, _heads(v).flatten(0, 1)).reshape(2, _HEADS, len(mask), -1)


def _tensors(queries: int, keys: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, rows, 32) for rows in (queries, keys, keys)]


def _some_rows_masked(queries: int, keys: int) -> Tensor:
    mask = torch.rand(queries, keys) > 0.3
    mask[2], mask[3, 1:] = False, False
    return mask


_VARIANTS: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], list[Tensor]]]] = {
    "plain": (_plain, lambda _q, _k: []),
    "causal": (_causal, lambda _q, _k: []),
    "grouped heads": (_grouped, lambda _q, _k: []),
    "boolean mask": (_masked, lambda q, k: [_some_rows_masked(q, k)]),
    "mask of keys": (_masked, lambda _, k: [torch.rand(2, 1, 1, k) > 0.3]),
    "mask of heads": (_masked, lambda q, k: [torch.randn(_HEADS, q, k)]),
    "softmax": (_added, lambda q, k: [torch.zeros(2, 1, q, k).masked_fill(~_some_rows_masked(q, k), -math.inf)]),
    "batch products": (_filled, lambda q, k: [~_some_rows_masked(q, k)]),
}

_LONG = ("plain", "grouped heads")
"""Variants whose keys and values are also copied, since there are many."""


@pytest.mark.parametrize(
    ("name", "queries", "keys"), [*((name, 40, 37) for name in _VARIANTS), *((name, 32, 260) for name in _LONG)]
)
def test_attention_is_one_kernel(name: str, queries: int, keys: int) -> None:
    function, masks = _VARIANTS[name]
    inputs = (*_tensors(queries, keys), *masks(queries, keys))
    imported = import_model(Apply(function), inputs, target=_AVX2)
    assert not any("matmul" in task.name or "softmax" in task.name for task in imported.tasks)
    fast = compile_model(imported)
    torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("keys", [40, 260])
def test_keys_and_values_may_be_the_same_for_all_batches(keys: int) -> None:
    """As in a memory: the factors have fewer dimensions than the scores."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 40, 8), torch.randn(keys, 8), torch.randn(keys, 8)

    def function(q: Tensor) -> Tensor:
        return torch.softmax(q @ k.T.expand(2, 8, keys), -1) @ v.expand(2, keys, 8)

    imported = import_model(Apply(function), (q,), target=_AVX2)
    assert [task.name for task in imported.tasks] == ["attention"]
    torch.testing.assert_close(compile_model(imported)(q), function(q), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [lambda x: x * 1e4, lambda x: x.index_fill(1, torch.tensor([3]), torch.nan)])
def test_large_scores_and_nan(change: Callable[[Tensor], Tensor]) -> None:
    q, k, v = _tensors(40, 37)
    fast = compile_model(import_model(Apply(_plain), (q, k, v), target=_AVX2))
    q = change(q)
    torch.testing.assert_close(fast(q, k, v), _plain(q, k, v), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_weights_that_are_returned_are_not_computed_twice() -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(_heads(q) @ _heads(k).mT, -1)
        return weights @ _heads(v), weights

    names = [task.name for task in import_model(Apply(both), tuple(_tensors(40, 37)), target=_AVX2).tasks]
    assert "attention" not in names
    assert any("softmax" in name for name in names)


def test_attention_of_float64_is_computed_in_parts() -> None:
    inputs = tuple(x.double() for x in _tensors(40, 37))
    assert "attention" not in [task.name for task in import_model(Apply(_plain), inputs, target=_AVX2).tasks]


def _distances(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) - torch.arange(queries)[:, None]


_BANDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "causal": _causal,
    "grouped heads": lambda q, k, v: _joined(
        scaled_dot_product_attention(
            _heads(q), _heads(k[..., :16], 2), _heads(v[..., :16], 2), is_causal=True, enable_gqa=True
        )
    ),
    "sliding window": lambda q, k, v: _masked(
        q, k, v, (_distances(q.shape[1], k.shape[1]) <= 0) & (_distances(q.shape[1], k.shape[1]) > -9)
    ),
    "cached keys": lambda q, k, v: _masked(q, k, v, _distances(q.shape[1], k.shape[1]) <= k.shape[1] - q.shape[1]),
    "keys ahead": lambda q, k, v: _masked(q, k, v, _distances(q.shape[1], k.shape[1]) >= 3),
    "added": lambda q, k, v: _added(q, k, v, torch.full((q.shape[1], k.shape[1]), -math.inf).triu(1)),
    "filled": lambda q, k, v: _filled(q, k, v, _distances(q.shape[1], k.shape[1]) > 0),
    "all but a window hidden": lambda q, k, v: _added(
        q, k, v, torch.full((q.shape[1], k.shape[1]), -math.inf).tril(2).triu(-40) + 0
    ),
    "lowest number": lambda q, k, v: _added(
        q, k, v, torch.full((q.shape[1], k.shape[1]), torch.finfo(torch.float32).min).triu(1)
    ),
    "rows of the lowest number": lambda q, k, v: _added(
        q, k, v, torch.full((q.shape[1], k.shape[1]), torch.finfo(torch.float32).min).triu(-7)
    ),
    "nothing hidden": lambda q, k, v: _masked(q, k, v, torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)),
}
"""Attention with constant masks that depend on the distance of key and query alone. Some hide all keys of a row."""

_OF_ANY_SIZES = ("causal", "sliding window", "cached keys", "keys ahead")
"""Those that are tested with tiles that are not whole, too. The others differ in how their mask is read."""


@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        *((name, 40, 40) for name in _BANDS),
        *((name, *sizes) for name in _OF_ANY_SIZES for sizes in ((70, 37), (38, 70))),
    ],
)
def test_masks_by_distance_are_not_read(name: str, queries: int, keys: int) -> None:
    inputs, function = tuple(_tensors(queries, keys)), _BANDS[name]
    imported = import_model(Apply(function), inputs, target=_AVX2)
    (task,) = [task for task in imported.tasks if task.name == "attention"]
    assert len(task.module["main"].params) == 4
    fast = compile_model(imported)
    torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min])
def test_a_mask_by_distance_joined_with_one_of_keys(hidden: float) -> None:
    """As in transformers with an attention mask: the kernel reads one element for each key."""

    def function(q: Tensor, k: Tensor, v: Tensor, present: Tensor) -> Tensor:
        visible = (_distances(40, 40) <= 0) & present.bool()[:, None, None]
        if math.isinf(hidden):
            return _masked(q, k, v, visible)
        return _added(q, k, v, torch.where(visible, 0.0, hidden))

    present = (torch.rand(2, 40) > 0.4).long()
    present[0, :9] = 0  # rows without a key
    inputs = (*_tensors(40, 40), present)
    imported = import_model(Apply(function), inputs, target=_AVX2)
    (task,) = [task for task in imported.tasks if task.name == "attention"]
    assert [math.prod(map(int, parameter.shape)) for parameter in task.module["main"].params[3:-1]] == [80]
    fast = compile_model(imported)
    torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_mask_by_distance_beside_one_of_keys() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, present: Tensor) -> Tensor:
        scores = _heads(q) @ _heads(k).mT + torch.full((40, 40), -math.inf).triu(1)
        return torch.softmax(scores.masked_fill(~present[:, None, None], -math.inf), -1) @ _heads(v)

    present = torch.rand(2, 40) > 0.4
    present[0, 3:9], present[:, 0] = False, True
    inputs = (*_tensors(40, 40), present)
    fast = compile_model(import_model(Apply(function), inputs, target=_AVX2))
    torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_values_that_a_mask_hides_do_not_change_numbers() -> None:
    """NaN of a hidden key or value may or may not reach the result, as in PyTorch. Numbers are the same."""
    q, k, v = _tensors(40, 40)
    fast = compile_model(import_model(Apply(_causal), (q, k, v), target=_AVX2))
    for changed in (k, v):
        changed[:, 30] = math.nan
    out, expected = fast(q, k, v), _causal(q, k, v)
    numbers = ~expected.isnan()
    torch.testing.assert_close(out[numbers], expected[numbers], rtol=1e-5, atol=1e-5)
    assert out[:, 30:].isnan().all()


def test_large_scores_that_a_finite_mask_does_not_hide() -> None:
    """The sum of a score and the lowest number is not the lowest number, so such keys are computed."""
    q, k, v = (x * 1e18 for x in _tensors(40, 40))
    function = _BANDS["lowest number"]
    fast = compile_model(import_model(Apply(function), (q, k, v), target=_AVX2))
    torch.testing.assert_close(fast(q, k, v), function(q, k, v), rtol=1e-5, atol=1e-5, equal_nan=True)
