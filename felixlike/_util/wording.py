"""Format messages: numbers with their nouns, values, suggestions for misspelled names, and advice.

Advice is worded for a Python programmer or for a user of the command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

_LONGEST = 60
"""Upper limit of a value's length in a message, in characters."""

_CONTROLS = dict.fromkeys(
    (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�"
)
"""Replacements of characters that control a terminal or the writing direction, except tabs and ends of lines."""

_in_command = False
"""Whether this process runs the command `felixlike`."""


@contextlib.contextmanager
def for_the_command() -> Iterator[None]:
    """Word advice for a user of the command until the block ends, in all threads."""
    global _in_command
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def advice(python: str, command: str) -> str:
    """Return the advice for Python or for the command line, whichever is in use."""
    return command if _in_command else python


def task_title(layers: Iterable[str], name: str) -> str:
    """Return the layers of a task's first call site and the number of other ones, or its name if it has no layers."""
    first, *others = dict.fromkeys(layers) or [name]
    return f"{first} (and {counted(len(others), 'other')})" if others else first


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 round", "2 rounds".  plural: needed if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def shown(value: Any, *, longest: int = _LONGEST) -> str:
    """Return a value's repr on one line, shortened to `longest` characters, or its kind if repr fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a foreign class may raise anything; ints of more than 4300 digits raise
        text = kind_of(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def printable(text: str) -> str:
    """Return a text in which characters that control a terminal are replaced: names in files may have any."""
    return text.translate(_CONTROLS)


def kind_of(value: Any) -> str:
    """Return a value's type with an article: "an int", "a Tensor", "None"."""
    if value is None or isinstance(value, bytes):
        return "None" if value is None else "bytes"
    return articled(type(value).__name__)


def articled(noun: str) -> str:
    """Return a noun with its indefinite article: "an int", "a Task"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def nearest(wrong: Any, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, or None. Case is ignored."""
    if not isinstance(wrong, str):
        return None
    by_folded = {name.casefold(): str(name) for name in known}
    matches = get_close_matches(wrong.casefold().strip(), by_folded, n=1)
    return by_folded[matches[0]] if matches else None


def choose_from(wrong: Any, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name."""
    names = [str(name) for name in known]
    near = nearest(wrong, names)
    every = ", ".join(names) or "none"
    return f"use one of {every}" + (f" (did you mean {near!r}?)" if near is not None else "")
