"""Tests for applying a rule to a module."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from support.models import Apply

from felixlike.frontend import import_model
from felixlike.frontend.rewrites.rewriting import rewritten


class Token:
    """Something that a rule refers to."""


def test_what_a_rule_refers_to_is_freed() -> None:
    """TVM keeps each class of visitors for ever, so one must serve all rules: they hold modules with weights."""
    calls = list[Any]()

    def applied() -> weakref.ref[Token]:
        token = Token()
        rewritten(module, lambda expression, bindings, rewriter: calls.append((expression, token)))
        return weakref.ref(token)

    module = import_model(Apply(torch.relu), (2, 3)).module
    freed = applied()
    assert calls
    calls.clear()
    gc.collect()
    assert freed() is None
