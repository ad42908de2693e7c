"""How things are said: numbers with their nouns, values inside messages, names that were nearly right, and advice in
the terms of whoever reads it: a program's author, or a user of the command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

_LONGEST = 60

_in_command = False
"""Whether this process runs the command `felixlike`."""


@contextlib.contextmanager
def for_the_command() -> Iterator[None]:
    """Give advice to a user of the command until the block ends. For all threads: the command is the whole process."""
    global _in_command
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def advice(python: str, command: str) -> str:
    """The same advice in Python or on the command line, whichever is in use."""
    return command if _in_command else python


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 round", "2 rounds".  plural: where an s is not enough."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def shown(value: Any, *, longest: int = _LONGEST) -> str:
    """A value as Python writes it, on one line and not too long; its kind where that cannot be had."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever a foreign class raises, and ints of more than 4300 digits
        text = kind_of(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def kind_of(value: Any) -> str:
    """ "an int", "a Tensor", "None"."""
    if value is None or isinstance(value, bytes):
        return "None" if value is None else "bytes"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def nearest(wrong: Any, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None where none is near.  Case does not count."""
    if not isinstance(wrong, str):
        return None
    by_folded = {name.casefold(): str(name) for name in known}
    found = get_close_matches(wrong.casefold().strip(), by_folded, n=1)
    return by_folded[found[0]] if found else None


def choose_from(wrong: Any, known: Iterable[str]) -> str:
    """The remedy for a name that is none of those known."""
    names = [str(name) for name in known]
    near = nearest(wrong, names)
    every = ", ".join(names) or "none"
    return f"use one of {every}" + (f" (did you mean {near!r}?)" if near is not None else "")
