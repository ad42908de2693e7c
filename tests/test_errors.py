"""Errors say what, where and what to do, and cross process borders."""

from __future__ import annotations

import pickle

from felixlike.errors import FelixlikeError, InvalidShape


def test_messages_have_three_parts() -> None:
    error = InvalidShape("a size is 0", where="input 'x'", remedy="give sizes of at least 1")
    assert str(error) == "input 'x': a size is 0. give sizes of at least 1."
    assert isinstance(error, FelixlikeError)
    assert isinstance(error, ValueError)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidShape("a", where="b", remedy="c")))
    assert (type(error), error.what, error.where, error.remedy) == (InvalidShape, "a", "b", "c")
