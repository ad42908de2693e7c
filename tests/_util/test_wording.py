"""Plurals, values in messages, and suggestions for misspelled names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from felixlike._util.wording import choose_from, counted, kind_of, nearest, shown


def test_counted_uses_the_singular_for_one() -> None:
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert counted(2, "sketch", "sketches") == "2 sketches"


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (np.int64(3), "np.int64(3)"),
        (torch.zeros(2, 2), "tensor([[0., 0.], [0., 0.]])"),
        ("x" * 100, "'" + "x" * 58 + "…"),
        (FailingRepr(), "a FailingRepr"),
    ],
)
def test_values_are_shown_on_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text


def test_integers_too_long_to_print_are_shown_by_type() -> None:
    assert shown(10**5000) == "an int"


def test_kind_of_names_the_type() -> None:
    assert [kind_of(x) for x in (None, 5, "x", b"x", 1.5)] == ["None", "an int", "a str", "bytes", "a float"]


@pytest.mark.parametrize(
    ("wrong", "meant"), [("Gradient", "gradient"), ("gradiant", "gradient"), (" random", "random"), ("luck", None)]
)
def test_the_nearest_name_is_suggested(wrong: str, meant: str | None) -> None:
    assert nearest(wrong, ("gradient", "random")) == meant
    suggestion = f" (did you mean {meant!r}?)" if meant else ""
    assert choose_from(wrong, ("gradient", "random")) == f"use one of gradient, random{suggestion}"


def test_other_values_get_no_suggestion() -> None:
    assert nearest(5, ("a",)) is None
    assert choose_from([], ()) == "use one of none"
