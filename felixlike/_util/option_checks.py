"""Checks of what users write for options: one for each kind of value, for Python and the command line alike.

In: any value, the option's name. Out: the value in its plain Python type, or one of our errors that quotes it.
"""

from __future__ import annotations

import errno
import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from felixlike._util.wording import choose_from, kind_of, shown
from felixlike.errors import FelixlikeError, InvalidOption

MOST_SEED = 2**63 - 1
"""What a store's column holds, and every generator of random numbers takes."""


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
    """A whole number: an int, or of any type that says it is one (NumPy's integers), but no bool.

    otherwise: what else may be given, for the remedy. Raises `error`."""
    number = _index(value)
    if number is not None and number >= least and (most is None or number <= most):
        return number
    wanted = f"a whole number ≥ {least}" if most is None else f"a whole number from {least} to {most}"
    raise error(f"{name} is {shown(value)}", where=where, remedy=_give(wanted, otherwise))


def _index(value: Any) -> int | None:
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
    """A number that is not negative: an int, a float or of a type that says it is one (NumPy's), but no bool or str.

    positive: above 0.  finite: refuse infinity.  unit: of the number, for the remedy. Raises `error`."""
    number = _float(value)
    bad = math.isnan(number) or number < 0 or (positive and number == 0) or (finite and math.isinf(number))
    if not bad:
        return number
    wanted = f"a number{' of ' + unit if unit else ''} {'greater than 0' if positive else '≥ 0'}"
    raise error(f"{name} is {shown(value)}", where=where, remedy=_give(wanted, otherwise))


def share(value: Any, name: str, least: float = 0.0, most: float = 1.0, *, where: str = "options") -> float:
    """A number between two others. Raises InvalidOption."""
    number = _float(value)
    if least <= number <= most:
        return number
    raise InvalidOption(f"{name} is {shown(value)}", where=where, remedy=f"give a number from {least:g} to {most:g}")


def _float(value: Any) -> float:
    if isinstance(value, bool | str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # what arrays and tensors of several elements raise
        return math.nan


def seed(value: Any, *, where: str = "options") -> int:
    """A seed. Raises InvalidOption."""
    return whole(value, "seed", most=MOST_SEED, where=where)


def one_of(value: Any, name: str, known: Iterable[str], *, what: str) -> str:
    """One of the known names.  what: "a strategy", what the value should be. Raises InvalidOption."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    raise InvalidOption(f"{shown(value)} is not {what}", where=name, remedy=choose_from(value, names))


def text(value: Any, name: str, *, remedy: str) -> str:
    """Text that is not empty. Raises InvalidOption."""
    if isinstance(value, str) and value:
        return value
    raise InvalidOption(f"{name} is {shown(value)}", where=name, remedy=remedy)


def of_kind(value: Any, kind: Any, name: str, *, where: str, remedy: str) -> Any:
    """A value of one class, or of one of several. Raises InvalidOption."""
    if isinstance(value, kind):
        return value
    raise InvalidOption(f"{name} is {kind_of(value)}", where=where, remedy=remedy)


def path(value: Any, name: str, *, error: type[FelixlikeError] = InvalidOption, otherwise: str = "") -> Path:
    """A path: str or os.PathLike of str, with ~ for a home.  name: what it is of, for messages.

    The file need not be there. Raises `error` for other types, for "", and where the system refuses to look."""
    remedy = _give("a path, as str or pathlib.Path", otherwise)
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str):
        raise error(f"{shown(value)} is not a path", where=name, remedy=remedy)
    if not given or "\0" in given:
        raise error(f"{given!r} is not a path", where=name, remedy=remedy)
    found = _expanded(Path(given))
    try:
        found.stat()
    except OSError as refusal:
        if refusal.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise error(f"{refusal.strerror}", where=shown(str(found)), remedy="check the path") from None
    return found


def _expanded(found: Path) -> Path:
    try:
        return found.expanduser()
    except RuntimeError:  # there is no such home
        return found


def _give(wanted: str, otherwise: str) -> str:
    return f"give {wanted}" + (f", or {otherwise}" if otherwise else "")
