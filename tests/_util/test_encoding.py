"""Characters that an encoding lacks are replaced."""

from __future__ import annotations

import io
import sys

import pytest

from felixlike._encoding import HANDLER, showable


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "5 µs × 3 ≥ … é 中"),
        ("latin-1", "5 µs × 3 >= ... é \\u4e2d"),
        ("ascii", "5 us x 3 >= ... e \\u4e2d"),
        ("nonsense", "5 µs × 3 ≥ … é 中"),
    ],
)
def test_missing_characters_are_replaced(encoding: str, text: str) -> None:
    assert showable("5 µs × 3 ≥ … é 中", encoding) == text


def test_undecodable_bytes_are_written_unchanged() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=HANDLER)
    stream.write("a\udcffµ")
    stream.flush()
    assert stream.buffer.getvalue() == b"a\xff\xc2\xb5"


def test_the_encoding_of_standard_output_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert showable("×") == "x"
    monkeypatch.setattr(sys, "stdout", None)
    assert showable("×") == "×"
