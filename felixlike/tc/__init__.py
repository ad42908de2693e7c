"""Tensor Comprehensions: operators written as mathematics, compiled and tuned.

    mm = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    c = mm(a, b)
    mm.tune(a, b, rounds=10)

The language: text → `tree` (parser.py, grammar.lark) → `program` (checks.py, typist.py) → ranges for given sizes
(ranges.py, bounds.py) → nodes, groups of them, TIR (nodes.py, groups.py, lower.py, instance.py) → `Comprehension`.
After N. Vasilache et al., "Tensor Comprehensions" (2018); docs/tensor-comprehensions.md says where this differs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felixlike.tc.comprehension import Comprehension
    from felixlike.tc.entry import define
    from felixlike.tc.options import Options

__all__ = ["Comprehension", "Options", "define"]

_HOMES = {"Comprehension": "comprehension", "Options": "options", "define": "entry"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
