"""Check the values of options, with one function per kind of value, for Python and the command line.

Input: any value, and the option's name. Output: the value in its plain Python type, or one of our errors that
quotes it.
"""

from __future__ import annotations

import errno
import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from felixlike._util.wording import articled, choose_from, kind_of, shown
from felixlike.errors import FelixlikeError, InvalidOption

MOST_SEED = 2**63 - 1
"""Largest seed: the largest integer that a record store's column and every random number generator accept."""


def whole(
    value: Any,
    name: str,
    *,
    least: int = 0,
    most: int | None = None,
    error: type[FelixlikeError] = InvalidOption,
    where: str = "options",
    otherwise: str = "",
) -> int:
    """Return a whole number from an int or a type with __index__, such as NumPy's integers. Bools are refused.

    least, most: the inclusive range.  otherwise: other valid values, for the remedy. Raises `error`.
    """
    number = _index(value)
    if number is not None and number >= least and (most is None or number <= most):
        return number
    expected = f"an integer ≥ {least}" if most is None else f"an integer from {least} to {most}"
    raise error(_expected(name, expected, shown(value)), where=where, remedy=_remedy(otherwise))


def _index(value: Any) -> int | None:
    """Return an integer, or None if the value is not one."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except Exception:  # TypeError, or what a tensor of several elements raises
        return None


def real(
    value: Any,
    name: str,
    *,
    positive: bool = False,
    finite: bool = True,
    error: type[FelixlikeError] = InvalidOption,
    where: str = "options",
    unit: str = "",
    otherwise: str = "",
) -> float:
    """Return a nonnegative number from an int, a float or a numeric type such as NumPy's.

    Bools and strings are refused.

    positive: refuse 0.  finite: refuse infinity.  unit: unit of the number, for the remedy. Raises `error`.
    """
    number = _float(value)
    bad = math.isnan(number) or number < 0 or (positive and number == 0) or (finite and math.isinf(number))
    if not bad:
        return number
    expected = f"a number{' of ' + unit if unit else ''} {'greater than 0' if positive else '≥ 0'}"
    raise error(_expected(name, expected, shown(value)), where=where, remedy=_remedy(otherwise))


def share(value: Any, name: str, least: float = 0.0, most: float = 1.0, *, where: str = "options") -> float:
    """Return a number from `least` to `most`. Raises InvalidOption."""
    number = _float(value)
    if least <= number <= most:
        return number
    raise InvalidOption(
        _expected(name, f"a number from {least:g} to {most:g}", shown(value)), where=where, remedy=_remedy()
    )


def _float(value: Any) -> float:
    """Return a float, or NaN if the value is not a number."""
    if isinstance(value, bool | str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # what arrays and tensors of several elements raise
        return math.nan


def seed(value: Any, *, where: str = "options") -> int:
    """Return a seed. Raises InvalidOption."""
    return whole(value, "seed", most=MOST_SEED, where=where)


def one_of(value: Any, name: str, known: Iterable[str], *, what: str) -> str:
    """Return one of the known names.  what: the expected kind of value, such as "a strategy". Raises InvalidOption."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    raise InvalidOption(f"{shown(value)} is not {what}", where=name, remedy=choose_from(value, names))


def text(value: Any, name: str, *, remedy: str) -> str:
    """Return a nonempty string. Raises InvalidOption."""
    if isinstance(value, str) and value:
        return value
    raise InvalidOption(_expected(name, "a nonempty string", shown(value)), where=name, remedy=remedy)


def of_kind(value: Any, kind: Any, name: str, *, where: str, remedy: str) -> Any:
    """Return a value of a class. Raises InvalidOption."""
    if isinstance(value, kind):
        return value
    raise InvalidOption(_expected(name, articled(kind.__name__), kind_of(value)), where=where, remedy=remedy)


def path(value: Any, name: str, *, error: type[FelixlikeError] = InvalidOption, otherwise: str = "") -> Path:
    """Return a path from a str or os.PathLike of str, with ~ expanded.  name: what the path is for, in messages.

    The file need not exist. Raises `error` for other types, for "", and where the system denies access.
    """
    remedy = "pass a str or pathlib.Path" + (f", or {otherwise}" if otherwise else "")
    raw = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(raw, str):
        raise error(f"{shown(value)} is not a path", where=name, remedy=remedy)
    if not raw or "\0" in raw:
        raise error(f"{raw!r} is not a path", where=name, remedy=remedy)
    expanded = _expanded(Path(raw))
    try:
        expanded.stat()
    except OSError as refusal:
        if refusal.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise error(f"{refusal.strerror}", where=shown(str(expanded)), remedy="check the path") from None
    return expanded


def _expanded(unexpanded: Path) -> Path:
    """Expand ~, or return the path unchanged if there is no such home."""
    try:
        return unexpanded.expanduser()
    except RuntimeError:  # no such home
        return unexpanded


def _expected(name: str, expected: str, actual: str) -> str:
    """Return what is wrong with an option's value."""
    return f"expected {name} to be {expected}, got {actual}"


def _remedy(otherwise: str = "") -> str:
    """Return the remedy for an invalid value; `otherwise` names other valid values."""
    return "pass a valid value" + (f", or {otherwise}" if otherwise else "")
