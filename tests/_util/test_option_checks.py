"""Option checks: accepted values, the types they are converted to, and the error messages."""

from __future__ import annotations

import datetime
import errno
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from felixlike._util import option_checks
from felixlike._util.wording import shown
from felixlike.errors import InvalidArtefact, InvalidOption


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_accepts_integers_of_every_type(value: Any) -> None:
    result = option_checks.whole(value, "n")
    assert type(result) is int
    assert result == 3


@pytest.mark.parametrize(
    "value", [-1, 1.0, math.nan, math.inf, "3", True, np.True_, None, [1], torch.tensor([1, 2]), np.array([1, 2])]
)
def test_whole_refuses_other_values(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"\bn\b.* ≥ 0") as caught:
        option_checks.whole(value, "n", where="here", otherwise="None for none")
    assert shown(value) in caught.value.what
    assert caught.value.where == "here"
    assert "None for none" in caught.value.remedy


def test_messages_name_the_limits() -> None:
    with pytest.raises(InvalidOption, match=r"\bn\b.* 1 to 4.* 5\b"):
        option_checks.whole(5, "n", least=1, most=4)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), Decimal(2), torch.tensor(2.0)])
def test_real_accepts_numbers_of_every_type(value: Any) -> None:
    result = option_checks.real(value, "x")
    assert type(result) is float
    assert result == 2


@pytest.mark.parametrize(
    "value", [-1, -math.inf, math.nan, math.inf, 10**400, "3", b"3", True, None, 1j, datetime.timedelta(1), np.ones(2)]
)
def test_real_refuses_other_values(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"\bx\b.*seconds ≥ 0") as caught:
        option_checks.real(value, "x", unit="seconds")
    assert shown(value) in caught.value.what


def test_real_accepts_infinity_where_it_is_allowed() -> None:
    assert option_checks.real(math.inf, "x", finite=False) == math.inf
    assert option_checks.real(10**400, "x", finite=False) == math.inf
    with pytest.raises(InvalidOption, match=r"\bx\b.*greater than 0.* 0\b"):
        option_checks.real(0, "x", positive=True)


@pytest.mark.parametrize("value", [0, 2**63 - 1, np.int64(3)])
def test_valid_seeds_are_accepted(value: Any) -> None:
    assert option_checks.seed(value) == int(value)


@pytest.mark.parametrize("value", [2**63, 2**70, -1, True, "3"])
def test_invalid_seeds_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"\bseed\b.* 0 to {2**63 - 1}.* {value!r}"):
        option_checks.seed(value)


@pytest.mark.parametrize("value", [5, None, "", "Gradient", ["gradient"], {}])
def test_unknown_names_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="a strategy") as caught:
        option_checks.one_of(value, "strategy", ("gradient", "random"), what="a strategy")
    assert shown(value) in caught.value.what
    assert caught.value.where == "strategy"
    assert "gradient, random" in caught.value.remedy


def test_paths_of_every_form_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PathLike:
        def __fspath__(self) -> str:
            return str(tmp_path / "own")

    monkeypatch.setenv("HOME", str(tmp_path))
    assert option_checks.path("~/a", "file") == tmp_path / "a"
    assert option_checks.path("~nobody-at-all/a", "file") == Path("~nobody-at-all/a")
    assert option_checks.path(tmp_path / "a", "file") == tmp_path / "a"
    assert option_checks.path(PathLike(), "file") == tmp_path / "own"


@pytest.mark.parametrize("value", [5, None, True, b"a", ["a"], os.fsencode("a")])
def test_values_of_other_types_are_refused_as_paths(value: Any) -> None:
    with pytest.raises(InvalidArtefact, match=r"str or pathlib\.Path") as caught:
        option_checks.path(value, "file", error=InvalidArtefact)
    assert shown(value) in caught.value.what
    assert caught.value.where == "file"


@pytest.mark.parametrize("value", ["", "a\0b"])
def test_invalid_path_strings_are_refused(value: str) -> None:
    with pytest.raises(InvalidOption, match=r"str or pathlib\.Path") as caught:
        option_checks.path(value, "file")
    assert repr(value) in caught.value.what
    assert caught.value.where == "file"


def test_errors_of_the_system_name_the_path(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InvalidOption, match=os.strerror(errno.ENAMETOOLONG)):
        option_checks.path("a" * 5000, "file")
    with pytest.raises(InvalidOption, match=os.strerror(errno.ELOOP)):
        option_checks.path(loop, "file")
