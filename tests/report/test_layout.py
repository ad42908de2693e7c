"""Tables and paragraphs for every width: no text is cut off."""

from __future__ import annotations

import io
import os
import pty
import re

import pytest

from felixlike.report.layout import Column, entry, indented, paragraph, stream_width, table, text_width

COLUMNS = (
    Column("task", right=False, least=12),
    Column("calls", rank=2),
    Column("latency"),
    Column("schedule", right=False, rank=1),
)
ROWS = [("fused_conv2d_add_relu", "1", "7.18 µs", "measured"), ("層_norm", "12", "–", "unmeasured")]


def test_without_a_width_rows_are_not_wrapped() -> None:
    assert table(COLUMNS, ROWS, None) == [
        "task                   calls  latency  schedule",
        "─────────────────────────────────────────────────",
        "fused_conv2d_add_relu      1  7.18 µs  measured",
        "層_norm                   12        –  unmeasured",
    ]


def test_long_names_are_wrapped_first() -> None:
    assert table(COLUMNS, ROWS, 40) == [
        "task          calls  latency  schedule",
        "────────────────────────────────────────",
        "fused_conv2d      1  7.18 µs  measured",
        "_add_relu",
        "層_norm          12        –  unmeasured",
    ]


def test_columns_that_do_not_fit_are_left_out_and_named() -> None:
    assert table(COLUMNS, ROWS, 34) == [
        "task           latency  schedule",
        "──────────────────────────────────",
        "fused_conv2d_  7.18 µs  measured",
        "add_relu",
        "層_norm              –  unmeasured",
        "Omitted, since the table needs 40",
        "  columns: calls.",
    ]
    assert table(COLUMNS, ROWS, 32)[-2:] == ["Omitted, since the table needs", "  40 columns: calls, schedule."]


@pytest.mark.parametrize("width", [20, 25, 30, 40, 60, 80, 120, 200, None])
def test_names_are_complete_at_every_width(width: int | None) -> None:
    lines = table(COLUMNS, ROWS, width)
    for number, (name, _, latency, _) in enumerate(ROWS):
        assert latency in "\n".join(lines)
        letters = "".join(re.sub(r"\s.*", "", line) for line in lines)
        assert name in letters, number
    assert width is None or max(map(text_width, lines)) <= width


def test_names_of_several_words_are_wrapped_between_words() -> None:
    name = "AMD EPYC 9R14 96-Core Processor"
    assert table([Column("device", right=False, least=16)], [[name]], 16)[2:] == [
        "AMD EPYC 9R14",
        "96-Core",
        "Processor",
    ]


def test_paragraphs_and_entries() -> None:
    assert paragraph("one two three four five six seven", 24) == ["one two three four five", "  six seven"]
    assert paragraph("one two three", None) == ["one two three"]
    assert entry("  exact", "a + b", 40, column=10) == ["  exact   a + b"]
    long = "first_term + second_term + third_term"
    assert entry("  exact", long, 32, column=10) == [
        "  exact   first_term +",
        "          second_term +",
        "          third_term",
    ]
    assert entry("  exact", long, 25, column=10) == [
        "  exact",
        "    first_term +",
        "    second_term +",
        "    third_term",
    ]
    assert entry("a", "b\nc", None, column=4) == ["a   b", "    c"]


def test_wrapped_lines_keep_their_indentation() -> None:
    assert indented("  for i in 3\n    a = b + c + d + e + f + g", 24, hanging=2) == [
        "  for i in 3",
        "    a = b + c + d + e +",
        "    f + g",
    ]


def test_the_width_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stream_width(io.StringIO()) is None
    controller, terminal = pty.openpty()
    with open(terminal, "w") as stream:
        os.set_blocking(controller, False)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
        assert stream_width(stream) == 57
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert stream_width(stream) == 80
    os.close(controller)
    assert stream_width(stream) is None  # it is closed
    for columns, width in (("40", 40), ("3", 20), ("0", None), ("x", None), ("", None)):
        monkeypatch.setenv("COLUMNS", columns)
        assert stream_width(io.StringIO()) == width


@pytest.mark.parametrize("setting", ["1000000000", "9" * 5000])
def test_a_huge_width_is_limited(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("COLUMNS", setting)
    assert stream_width(io.StringIO()) == 10_000
    assert table(COLUMNS, ROWS, 10_000) == table(COLUMNS, ROWS, None)


def test_names_cannot_control_the_terminal() -> None:
    name = "\x1b]0;title\x07\x1b[2J\u202ea\x9b2K\rb"
    rows = [(name, *row[1:]) for row in ROWS]
    for lines in (table(COLUMNS, rows, None), table(COLUMNS, rows, 40), paragraph(name, None), paragraph(name, 20)):
        assert all(line.isprintable() for line in lines)
    assert entry(f"{name}: ", name, 30, column=4)[0].isprintable()
