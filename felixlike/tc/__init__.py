"""Define operators as tensor comprehensions, then compile and tune them.

    mm = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    c = mm(a, b)
    mm.tune(a, b, rounds=10)

Stages: text → `tree` (parser.py, grammar.lark) → `program` (checks.py, type_checker.py) → ranges for concrete sizes
(ranges.py, bounds.py) → nodes, groups of nodes, TIR (nodes.py, groups.py, lower.py, instance.py) → `Comprehension`.
The language is that of N. Vasilache et al., "Tensor Comprehensions" (2018); docs/tensor-comprehensions.md lists the
differences.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felixlike.tc.comprehension import Comprehension
    from felixlike.tc.entry import define
    from felixlike.tc.options import Options

__all__ = ["Comprehension", "Options", "define"]

_MODULES = {"Comprehension": "comprehension", "Options": "options", "define": "entry"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
