"""Define operators as tensor comprehensions, then compile and tune them.

    mm = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    c = mm(a, b)
    mm.tune(a, b, rounds=10)

Stages: text → `tree` (parser.py, grammar.lark) → `program` (checks.py, type_checker.py) → ranges for concrete sizes
(ranges.py, bounds.py) → nodes, groups of nodes, TIR (nodes.py, groups.py, lower.py, instance.py) → `Comprehension`.
isl's schedule trees (polyhedral.py) form groups on request (fusion.py) and are printed as C (c_code.py).
The language is that of N. Vasilache et al., "Tensor Comprehensions" (2018); docs/tensor-comprehensions.md lists the
differences.
"""

from felixlike._util.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__)
