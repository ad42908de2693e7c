"""Examples for inputs of which only sizes are known: as varied as the model allows, the same every time."""

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


def imported(model: Any, *given: Any) -> Imported:
    inputs = tuple(
        Input((one if isinstance(one, Example) else Example(tuple(one.shape), str(one.dtype)[6:], one),))
        for one in given
    )
    return import_model(model, Given(positional=inputs))


def test_indices_reach_the_whole_table_and_not_beyond() -> None:
    found = imported(nn.Embedding(50, 4), sizes(20, 30))
    (ids,) = found.examples
    assert set(ids.unique().tolist()) == set(range(50))
    assert found.note == ""
    assert torch.equal(imported(nn.Embedding(50, 4), sizes(20, 30)).examples[0], ids)


def test_two_inputs_of_the_same_sizes_differ() -> None:
    found = imported(Apply(lambda x, y: x - y), sizes(4, 5, dtype="float32"), sizes(4, 5, dtype="float32"))
    assert not torch.equal(*found.examples)


def test_what_the_user_gave_stays() -> None:
    own = torch.tensor([[3, 3, 3]])
    found = imported(Apply(lambda i, j: F.embedding(i, TABLE) + F.embedding(j, TABLE)), own, sizes(1, 3))
    assert torch.equal(found.examples[0], own)
    assert found.examples[1].unique().numel() > 1


def test_bytes_are_all_that_there_are() -> None:
    (image,) = imported(Apply(lambda x: x.float() / 255), sizes(3, 64, 64, dtype="uint8")).examples
    assert (image.min(), image.max()) == (0, 255)


class Masked(nn.Module):
    """hidden: whether a mask is true where it hides."""

    def __init__(self, *, hidden: bool) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shown = ~mask if self.hidden else mask
        causal = torch.ones(6, 6).tril().bool()
        return F.scaled_dot_product_attention(x, x, x, attn_mask=shown[:, None] & causal)


@pytest.mark.parametrize("hidden", [True, False])
def test_masks_are_mixed_and_hide_not_everything(hidden: bool) -> None:
    """With a causal mask the first query sees the first key alone."""
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


def test_where_nothing_but_zero_is_known_to_be_valid_that_is_said() -> None:
    found = imported(Apply(lambda i: F.embedding(i ^ (i + 40), TABLE)), sizes(6))
    assert found.examples[0].tolist() == [0] * 6
    assert found.note == "Only zeros are known to be valid for tensors[0], so it was compared on those."
    found = imported(Apply(lambda i: F.embedding(i + torch.where(i > 0, 60, 0), TABLE)), sizes(6))
    assert found.examples[0].tolist() == [0] * 6
    assert found.note == "The model refuses what was drawn for tensors[0], so it was compared on zeros there."


def test_random_numbers_of_the_caller_stay() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    imported(nn.Embedding(50, 4).eval(), sizes(2, 3))
    torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidShape, match=r"an input of shape \(1000000, 1000000\) takes 3725.3 GiB"):
        import_model(nn.Linear(1000000, 1), ((1000000, 1000000),))
