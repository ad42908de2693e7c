"""The options of strategies, checked when one is made."""

from __future__ import annotations

from typing import Any

from felixlike._util import option_checks


def checked(strategy: Any, **limits: int | float | tuple[float, float]) -> None:
    """Every named option of a strategy must be a number: whole and at least the limit where that is whole, any number
    at least 0 for 0.0, one between both for a pair. Raises InvalidOption."""
    where = type(strategy).__name__
    for name, limit in limits.items():
        value = getattr(strategy, name)
        match limit:
            case int():
                value = option_checks.whole(value, name, least=limit, where=where)
            case float():
                value = option_checks.real(value, name, where=where)
            case _:
                value = option_checks.share(value, name, *limit, where=where)
        object.__setattr__(strategy, name, value)
