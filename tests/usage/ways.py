"""What the ways have in common: answers that are those of the model, and refusals that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from felixlike.errors import FelixlikeError


def answers_alike(optimized: Callable[..., Any], eager: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Both give the same: the same nesting, types and numbers."""
    with torch.no_grad():
        expected = eager(*args, **named)
    torch.testing.assert_close(optimized(*args, **named), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


class Refused:
    """with Refused(InvalidShape, "words"): the block must raise this kind of error, with the words, and a remedy."""

    def __init__(self, kind: type[FelixlikeError], words: str) -> None:
        self.kind, self.words = kind, words

    def __enter__(self) -> None:
        self.context = pytest.raises(self.kind, match=self.words)
        self.found = self.context.__enter__()

    def __exit__(self, *raised: Any) -> bool:
        if not self.context.__exit__(*raised):
            return False
        assert self.found.value.remedy, f"says not what to do: {self.found.value}"
        return True
