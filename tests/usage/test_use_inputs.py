"""Tests for kinds of inputs when a model is tuned and when it is called."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import FelixlikeError, InputMismatch, InvalidOption, InvalidShape
from usage.ways import Refused, answers_alike


class Adding(nn.Module):
    """A model with optional, keyword-only and constant arguments."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: Any = 1.0, double: bool = False
    ) -> Any:
        result = (x + 1) * scale  # computes something even if all other arguments are omitted
        if mask is not None:
            result = result + mask
        return result * 2 if double else result


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, state: Any) -> Any:
        h, c = state
        return x + h, (h * 2, c["cell"])


class Named(nn.Module):
    def forward(self, **named: torch.Tensor) -> torch.Tensor:
        return named["a"] - named["b"]


class Many(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return sum(tensors)  # type: ignore[return-value]


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> Any:
        return self.table(ids) * weights[..., None]


def t(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes)))


A, B = t(3, 4), torch.ones(3, 4)

# The model, the example inputs of `optimize`, and the arguments of the tuned model and the original.
GOOD: dict[str, tuple[Callable[[], nn.Module], Any, tuple[Any, ...], dict[str, Any]]] = {
    "a tensor alone": (Adding, A, (A,), {}),
    "a tuple": (Adding, (A, B), (A, B), {}),
    "a list": (Adding, [A, B], (A, B), {}),
    "sizes": (Adding, (3, 4), (A,), {}),
    "sizes of two": (Adding, ((3, 4), (3, 4)), (A, B), {}),
    "a torch.Size": (Adding, A.shape, (A,), {}),
    "sizes in a list": (Adding, [[3, 4]], (A,), {}),
    "numpy": (Adding, (A.numpy(),), (A,), {}),
    "numpy sizes": (Adding, (np.int64(3), np.int64(4)), (A,), {}),
    "by name": (Adding, {"x": A, "mask": B}, (A, B), {}),
    "sizes by name": (Adding, {"x": (3, 4)}, (A,), {}),
    "called by name": (Adding, (A, B), (A,), {"mask": B}),
    "keyword only": (Adding, {"x": A, "scale": B}, (A,), {"scale": B}),
    "an optional one skipped": (Adding, {"x": A, "scale": torch.tensor(2.0)}, (A,), {"scale": torch.tensor(3.0)}),
    "None for an optional one": (Adding, (A, None), (A, None), {}),
    "a flag": (Adding, {"x": A, "double": True}, (A,), {"double": True}),
    "a number": (Adding, {"x": A, "scale": 3.0}, (A,), {"scale": 3.0}),
    "nested": (Nested, (A, (B, {"cell": A + 1})), (A, (B, {"cell": A})), {}),
    "nested in a list": (Nested, (A, [B, OrderedDict(cell=A)]), (A, [B, OrderedDict(cell=A)]), {}),
    "any names": (Named, {"a": A, "b": B}, (), {"b": B, "a": A}),
    "any number": (Many, (A, B, A), (A, B, A), {}),
    "token ids": (Lookup, (torch.tensor([[1, 2]]), t(1, 2)), (torch.tensor([[3, 9]]), t(1, 2)), {}),
    "needing gradients": (Adding, (A.clone().requires_grad_(),), (A,), {}),
    "strided": (Adding, (t(4, 3).T,), (A,), {}),
    "a scalar": (Adding, (torch.tensor(2.0),), (torch.tensor(4.0),), {}),
}


@pytest.mark.parametrize("way", GOOD)
def test_outputs_match_the_model_s(way: str) -> None:
    make, examples, args, named = GOOD[way]
    model = make().eval()
    fast = fx.optimize(model, examples, 0, progress=False)
    assert fast.report.error <= 1e-5
    answers_alike(fast, model, *args, **named)


def test_example_inputs_is_an_alias_of_shapes() -> None:
    fast = fx.optimize(Adding(), example_inputs=(A,), rounds=0, progress=False)
    answers_alike(fast, Adding(), A)
    with Refused(InvalidOption, "example_inputs"):
        fx.optimize(Adding(), (A,), example_inputs=(A,), rounds=0, progress=False)


BAD: dict[str, tuple[Any, type[FelixlikeError], str]] = {
    "text": ("3x4", InvalidShape, "'3x4'"),
    "a number": (3, InvalidShape, r"^shapes: .*\b3\b"),
    "no size": ((0, 4), InvalidShape, "size 0 is not positive"),
    "a negative size": ((-1, 4), InvalidShape, "size -1 is not positive"),
    "a size that is not whole": ((3.5, 4), InvalidShape, "3.5"),
    "sizes as text": (("3", "4"), InvalidShape, "."),
    "an open size": ((None, 4), InvalidShape, "."),
    "too many": ((A, B, A), InvalidShape, "2 inputs, got 3"),
    "none": ((), InvalidShape, "."),
    "an unknown name": ({"y": A}, InvalidShape, "'y'"),
    "a name that is none": ({3: A}, InvalidShape, r"\bname .*\b3\b"),
    "a required one missing": ({"mask": A}, InvalidShape, "'x'"),
    "no elements": ((torch.empty(0, 4),), InvalidShape, "size 0"),
    "sparse": ((A.to_sparse(),), InvalidShape, "sparse"),
    "complex": ((torch.ones(3, 4, dtype=torch.complex64),), InvalidShape, "complex64"),
    "quantised": ((torch.ones(3, 4).to(torch.float8_e4m3fn),), InvalidShape, "float8_e4m3fn"),
    "texts of numpy": ((np.array(["a", "b"]),), InvalidShape, "."),
    "objects": ((object(),), InvalidShape, "object"),
}


@pytest.mark.parametrize("way", BAD)
def test_invalid_example_inputs_are_refused(way: str) -> None:
    examples, kind, words = BAD[way]
    with Refused(kind, words):
        fx.optimize(Adding(), examples, 0, progress=False)


def test_constant_arguments_cannot_change() -> None:
    fast = fx.optimize(Adding(), {"x": A, "double": True}, 0, progress=False)
    answers_alike(fast, lambda x: Adding()(x, double=True), A)
    with Refused(InputMismatch, "double"):
        fast(A, double=False)
