"""Test that errors state what happened, where and what to do, and can be pickled."""

from __future__ import annotations

import io
import pickle
import sys

import pytest

from felixlike.errors import FelixlikeError, InvalidShape, OutputNotWritable


def test_messages_have_three_parts() -> None:
    error = InvalidShape("a size is 0", where="input 'x'", remedy="give sizes of at least 1")
    assert str(error) == "input 'x': a size is 0. give sizes of at least 1."
    assert isinstance(error, FelixlikeError)
    assert isinstance(error, ValueError)


def test_messages_can_be_printed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidShape("a size is 0", remedy="give sizes ≥ 1")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    print(error)
    assert str(error) == "a size is 0. give sizes >= 1."
    assert str(OutputNotWritable("permission is denied")) == "permission is denied."  # also an OSError


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidShape("a", where="b", remedy="c")))
    assert (type(error), error.what, error.where, error.remedy) == (InvalidShape, "a", "b", "c")
