"""Tests for random example inputs: valid for the model, varied, and the same in every import."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

from felixlike.errors import InvalidShape
from felixlike.frontend import Imported, import_model
from felixlike.frontend.importers.input_shapes import Example, Given, Input

F = nn.functional
TABLE = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))


def sizes(*shape: int, dtype: str = "int64") -> Example:
    return Example(shape, dtype)


def imported(model: Any, *sizes_or_tensors: Any) -> Imported:
    inputs = tuple(
        Input((item if isinstance(item, Example) else Example(tuple(item.shape), str(item.dtype)[6:], item),))
        for item in sizes_or_tensors
    )
    return import_model(model, Given(positional=inputs))


def test_indices_cover_the_whole_table() -> None:
    result = imported(nn.Embedding(50, 4), sizes(20, 30))
    (ids,) = result.examples
    assert set(ids.unique().tolist()) == set(range(50))
    assert result.note == ""
    assert torch.equal(imported(nn.Embedding(50, 4), sizes(20, 30)).examples[0], ids)


def test_two_inputs_of_the_same_sizes_differ() -> None:
    result = imported(Apply(lambda x, y: x - y), sizes(4, 5, dtype="float32"), sizes(4, 5, dtype="float32"))
    assert not torch.equal(*result.examples)


def test_tensors_of_the_user_are_not_replaced() -> None:
    tensor = torch.tensor([[3, 3, 3]])
    result = imported(Apply(lambda i, j: F.embedding(i, TABLE) + F.embedding(j, TABLE)), tensor, sizes(1, 3))
    assert torch.equal(result.examples[0], tensor)
    assert result.examples[1].unique().numel() > 1


def test_uint8_values_cover_the_whole_range() -> None:
    (image,) = imported(Apply(lambda x: x.float() / 255), sizes(3, 64, 64, dtype="uint8")).examples
    assert (image.min(), image.max()) == (0, 255)


class Masked(nn.Module):
    """Attention with a mask, which is true at hidden positions if `hidden`, else at visible ones."""

    def __init__(self, *, hidden: bool) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shown = ~mask if self.hidden else mask
        causal = torch.ones(6, 6).tril().bool()
        return F.scaled_dot_product_attention(x, x, x, attn_mask=shown[:, None] & causal)


@pytest.mark.parametrize("hidden", [True, False])
def test_masks_hide_some_positions_but_not_all(hidden: bool) -> None:
    """With a causal mask the first query attends to the first key only, so the mask must not hide that key."""
    model = Masked(hidden=hidden)
    x, mask = imported(model, sizes(2, 6, 4, dtype="float32"), sizes(2, 6, dtype="bool")).examples
    assert mask.any(1).all()
    assert (~mask).any(1).all()
    assert model(x, mask).isfinite().all()


def test_masks_of_integers_are_ones_and_zeros() -> None:
    def attend(x: Tensor, mask: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2) + (1.0 - mask[:, None].float()) * torch.finfo(torch.float32).min
        return scores.softmax(-1) @ F.embedding(mask.cumsum(1), TABLE)

    _, mask = imported(Apply(attend), sizes(2, 6, 4, dtype="float32"), sizes(2, 6)).examples
    assert set(mask.unique().tolist()) == {0, 1}


def test_divisors_are_not_zero() -> None:
    _, divisor = imported(Apply(lambda x, i: x // i), sizes(50), sizes(50)).examples
    assert set(divisor.unique().tolist()) == set(range(1, 8))


def test_a_note_says_if_only_zeros_are_valid() -> None:
    result = imported(Apply(lambda i: F.embedding(i ^ (i + 40), TABLE)), sizes(6))
    assert result.examples[0].tolist() == [0] * 6
    assert result.note == "Only zeros are known to be valid for tensors[0], so the model was compared on zeros."
    result = imported(Apply(lambda i: F.embedding(i + torch.where(i > 0, 60, 0), TABLE)), sizes(6))
    assert result.examples[0].tolist() == [0] * 6
    assert result.note == "The model rejects random values of tensors[0], so it was compared on zeros for them."


def test_the_caller_s_random_state_is_not_changed() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    imported(nn.Embedding(50, 4).eval(), sizes(2, 3))
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_example_larger_than_memory_is_refused() -> None:
    with pytest.raises(InvalidShape, match=r"^shapes: .*\(1000000, 1000000\).*\b3725\.3 GiB"):
        import_model(nn.Linear(1000000, 1), ((1000000, 1000000),))
