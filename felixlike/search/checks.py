"""Check the options of strategies on construction."""

from __future__ import annotations

from typing import Any

from felixlike._util import option_checks


def checked(strategy: Any, **limits: int | float | tuple[float, float] | type[bool]) -> None:
    """Check the named options of a strategy and store their normalized values.

    Args:
        strategy: The strategy, whose attributes are the options.
        limits: The allowed values of each option. An int n allows whole numbers of at least n, 0.0 allows any number of
            at least 0, a pair allows numbers between its two values, and `bool` allows True and False.

    Raises:
        InvalidOption: A value is not allowed.
    """
    where = type(strategy).__name__
    for name, limit in limits.items():
        value = getattr(strategy, name)
        match limit:
            case type():
                value = option_checks.of_kind(value, bool, name, where=where, remedy="pass True or False")
            case int():
                value = option_checks.whole(value, name, least=limit, where=where)
            case float():
                value = option_checks.real(value, name, where=where)
            case _:
                value = option_checks.share(value, name, *limit, where=where)
        object.__setattr__(strategy, name, value)
