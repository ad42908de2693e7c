"""Plurals, values in messages, near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from felixlike._util.wording import choose_from, counted, kind_of, nearest, shown


def test_one_of_a_thing_is_no_plural() -> None:
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert counted(2, "sketch", "sketches") == "2 sketches"


class Rude:
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
        (Rude(), "a Rude"),
    ],
)
def test_values_are_shown_on_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text


def test_integers_that_python_does_not_write() -> None:
    assert shown(10**5000) == "an int"


def test_kinds() -> None:
    assert [kind_of(x) for x in (None, 5, "x", b"x", 1.5)] == ["None", "an int", "a str", "bytes", "a float"]


@pytest.mark.parametrize(
    ("wrong", "meant"), [("Gradient", "gradient"), ("gradiant", "gradient"), (" random", "random"), ("luck", None)]
)
def test_near_misses(wrong: str, meant: str | None) -> None:
    assert nearest(wrong, ("gradient", "random")) == meant
    asked = f" (did you mean {meant!r}?)" if meant else ""
    assert choose_from(wrong, ("gradient", "random")) == f"use one of gradient, random{asked}"


def test_what_is_no_name_is_near_none() -> None:
    assert nearest(5, ("a",)) is None
    assert choose_from([], ()) == "use one of none"
