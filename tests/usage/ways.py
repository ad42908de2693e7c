"""Helpers that check outputs against the model's, and errors for a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from felixlike.errors import FelixlikeError


def answers_alike(optimized: Callable[..., Any], eager: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Assert that both functions return the same nesting, dtypes and values."""
    with torch.no_grad():
        expected = eager(*args, **named)
    torch.testing.assert_close(optimized(*args, **named), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


class Refused:
    """Assert that a block raises an error of a kind whose message matches `words` and that has a remedy.

    Example:
        >>> with Refused(InvalidShape, "words"):
        ...     fx.optimize(model, shapes)
    """

    def __init__(self, kind: type[FelixlikeError], words: str) -> None:
        self.kind, self.words = kind, words

    def __enter__(self) -> None:
        self.context = pytest.raises(self.kind, match=self.words)
        self.error = self.context.__enter__()

    def __exit__(self, *raised: Any) -> bool:
        if not self.context.__exit__(*raised):
            return False
        assert self.error.value.remedy, f"says not what to do: {self.error.value}"
        return True
