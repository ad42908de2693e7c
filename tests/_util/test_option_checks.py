"""Checks of options: what is taken, in which type, and what is said of the rest."""

from __future__ import annotations

import datetime
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from felixlike._util import option_checks
from felixlike.errors import InvalidArtefact, InvalidOption


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integers_of_every_type_are_whole_numbers(value: Any) -> None:
    found = option_checks.whole(value, "n")
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize(
    "value", [-1, 1.0, math.nan, math.inf, "3", True, np.True_, None, [1], torch.tensor([1, 2]), np.array([1, 2])]
)
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"here: n is .*\. give a whole number ≥ 0, or None for none"):
        option_checks.whole(value, "n", where="here", otherwise="None for none")


def test_limits_are_said() -> None:
    with pytest.raises(InvalidOption, match=r"n is 5. give a whole number from 1 to 4"):
        option_checks.whole(5, "n", least=1, most=4)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), Decimal(2), torch.tensor(2.0)])
def test_numbers_of_every_type(value: Any) -> None:
    found = option_checks.real(value, "x")
    assert type(found) is float
    assert found == 2


@pytest.mark.parametrize(
    "value", [-1, -math.inf, math.nan, math.inf, 10**400, "3", b"3", True, None, 1j, datetime.timedelta(1), np.ones(2)]
)
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"x is .*\. give a number of seconds ≥ 0"):
        option_checks.real(value, "x", unit="seconds")


def test_infinity_where_it_means_something() -> None:
    assert option_checks.real(math.inf, "x", finite=False) == math.inf
    assert option_checks.real(10**400, "x", finite=False) == math.inf
    with pytest.raises(InvalidOption, match=r"x is 0\. give a number greater than 0"):
        option_checks.real(0, "x", positive=True)


@pytest.mark.parametrize("value", [0, 2**63 - 1, np.int64(3)])
def test_seeds(value: Any) -> None:
    assert option_checks.seed(value) == int(value)


@pytest.mark.parametrize("value", [2**63, 2**70, -1, True, "3"])
def test_seeds_that_no_generator_takes(value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"seed is {value!r}. give a whole number from 0 to {2**63 - 1}"):
        option_checks.seed(value)


@pytest.mark.parametrize("value", [5, None, "", "Gradient", ["gradient"], {}])
def test_names_that_are_not_known(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"strategy: .* is not a strategy\. use one of gradient, random"):
        option_checks.one_of(value, "strategy", ("gradient", "random"), what="a strategy")


def test_paths_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __fspath__(self) -> str:
            return str(tmp_path / "own")

    monkeypatch.setenv("HOME", str(tmp_path))
    assert option_checks.path("~/a", "file") == tmp_path / "a"
    assert option_checks.path("~nobody-at-all/a", "file") == Path("~nobody-at-all/a")
    assert option_checks.path(tmp_path / "a", "file") == tmp_path / "a"
    assert option_checks.path(Own(), "file") == tmp_path / "own"


@pytest.mark.parametrize("value", [5, None, True, b"a", ["a"], os.fsencode("a")])
def test_what_is_no_path(value: Any) -> None:
    with pytest.raises(InvalidArtefact, match=r"file: .* not a path\. give a path, as str or pathlib.Path"):
        option_checks.path(value, "file", error=InvalidArtefact)


@pytest.mark.parametrize(("value", "words"), [("", "'' is not a path"), ("a\0b", "is not a path")])
def test_text_that_is_no_path(value: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        option_checks.path(value, "file")


def test_a_path_that_the_system_refuses(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InvalidOption, match=r"File name too long\. check the path"):
        option_checks.path("a" * 5000, "file")
    with pytest.raises(InvalidOption, match="Too many levels of symbolic links"):
        option_checks.path(loop, "file")
