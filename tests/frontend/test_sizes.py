"""Tests for saving dynamic sizes as JSON and reading them."""

from __future__ import annotations

from typing import Any

import pytest

from felixlike.errors import InvalidArtefact
from felixlike.frontend import Sizes

_SIZES = Sizes(
    (("B", 1, 4), ("T", 2, 9)), (("B", "T", None), (None, "T"), ("T + 1", "B - 1")), ("T % 2 == 0", "B <= T // 2")
)
_SHAPES = ((4, 9, 3), (7, 9), (10, 3))


def test_sizes_survive_json() -> None:
    assert Sizes.from_json(_SIZES.to_json(), _SHAPES) == _SIZES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranges": 3}, "malformed"),
        ({"ranges": [["B", 1, 4], ["T", 0, 9]]}, "malformed"),
        ({"ranges": [["B", 1, 4], [5, 2, 9]]}, "malformed"),
        ({"ranges": [["B", 1, 4], ["T", 2, 8]]}, "inputs"),
        ({"ranges": [["B", 5, 4], ["T", 2, 9]]}, "inputs"),
        ({"inputs": [["B", "T", None]]}, "inputs"),
        ({"inputs": [["B", "T", None], [None, "U"], ["T + 1", "B - 1"]]}, "inputs"),
        ({"inputs": [["B", "T", None], [None, "T"], ["T + 2", "B - 1"]]}, "inputs"),
        ({"inputs": [["B", "T", None], [None, "T"], ["T * 1", "B - 1"]]}, "malformed"),
        ({"inputs": [["B", "T", None], [None, "T"], ["T + x", "B - 1"]]}, "malformed"),
        ({"conditions": ["T +"]}, "malformed"),
        ({"conditions": ["U == 1"]}, "malformed"),
        ({"conditions": ["__import__('os')"]}, "malformed"),
        ({"conditions": [3]}, "malformed"),
    ],
)
def test_invalid_json_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArtefact, match=words):
        Sizes.from_json({**_SIZES.to_json(), **changes}, _SHAPES)


def test_conditions_are_evaluated() -> None:
    assert _SIZES.broken({"B": 1, "T": 4}) is None
    assert _SIZES.broken({"B": 1, "T": 5}) == "T % 2 == 0"
    assert _SIZES.broken({"B": 3, "T": 4}) == "B <= T // 2"
    divided = Sizes((("T", 1, 9),), (("T",),), ("8 % (T - 1) == 0 or not -T == -3",))
    assert [size for size in range(1, 10) if divided.broken({"T": size}) is not None] == []
    assert divided.broken({"T": 1}) is None  # a division by 0 is no contradiction


def test_files_without_conditions_have_none() -> None:
    data = {name: value for name, value in _SIZES.to_json().items() if name != "conditions"}
    assert Sizes.from_json(data, _SHAPES).conditions == ()
