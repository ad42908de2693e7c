"""Check the options of strategies on construction."""

from __future__ import annotations

from typing import Any

from felixlike._util import option_checks


def checked(strategy: Any, **limits: int | float | tuple[float, float]) -> None:
    """Check the named options of a strategy and store their normalized values.

    Args:
        strategy: The strategy, whose attributes are the options.
        limits: The allowed values of each option. An int n allows whole numbers of at least n, 0.0 allows any number of
            at least 0, and a pair allows numbers between its two values.

    Raises:
        InvalidOption: A value is not allowed.
    """
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
