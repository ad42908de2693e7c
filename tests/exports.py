"""What torch works out anew in every export, worked out once: tests export more than a thousand small models.

`ExportedProgram.run_decompositions` asks the dispatcher for all composite operators once for each namespace that there
is, and then gives each of some hundred operators a dozen kernels, by functions whose annotations are evaluated at every
call: two thirds of the time in which a small model is imported. Here operators are asked for once a run, and the
kernels that torch itself gave to an operator are given to it again as long as it comes with the same ones of its own.
`frontend/test_exports.py` compares what comes out.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch._export import utils
from torch._subclasses.fake_impls import op_implementations_dict as fake_rules
from torch.export import decomp_utils, exported_program

COLLECTING: tuple[Any, ...] = (utils, decomp_utils, exported_program)
"""Where torch has its function that collects composite operators."""

collected_by_torch = utils._collect_all_valid_cia_ops
given_by_torch = exported_program._override_composite_implicit_decomp


class _Given(NamedTuple):
    """What torch made of an operator: how it is decomposed, what it had of its own, and what it has during a run."""

    how: Any
    own: dict[Any, Any]
    own_rule: Any
    kernels: dict[Any, Any]
    rule: Any

    def suits(self, how: Any, own: dict[Any, Any], own_rule: Any) -> bool:
        """Whether torch would make the same of it."""
        return (how, own, own_rule) == (self.how, self.own, self.own_rule)


_KNOWN: dict[Any, _Given] = {}


def once_a_run() -> None:
    """From here on exports of this process do without what they have done before."""
    for module in COLLECTING:
        module._collect_all_valid_cia_ops = _collected
    exported_program._override_composite_implicit_decomp = _given  # type: ignore[assignment]


def known() -> set[Any]:
    """Operators that have had their kernels from torch once."""
    return set(_KNOWN)


def _collected() -> Any:
    """All composite operators, for which the dispatcher is asked once and not again for each namespace."""
    materialize = utils._materialize_cpp_cia_ops
    materialize()
    utils._materialize_cpp_cia_ops = _nothing
    try:
        return collected_by_torch()
    finally:
        utils._materialize_cpp_cia_ops = materialize


def _nothing() -> None:
    """The dispatcher has been asked."""


@contextlib.contextmanager
def _given(wanted: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    """Every operator has the kernels that decompose it, or leave it as it is, and afterwards its own again."""
    before = {op: (dict(op.py_kernels), fake_rules.get(op)) for op in wanted}
    known = {op: _KNOWN[op] for op, how in wanted.items() if op in _KNOWN and _KNOWN[op].suits(_kind(how), *before[op])}
    with given_by_torch({op: how for op, how in wanted.items() if op not in known}):
        for op in wanted.keys() - known.keys():
            _KNOWN[op] = _Given(_kind(wanted[op]), *before[op], dict(op.py_kernels), fake_rules.get(op))
        try:
            for op, given in known.items():
                _set(op, given.kernels, given.rule)
            yield
        finally:
            for op, given in known.items():
                _set(op, given.own, None)  # torch leaves no rule behind, whether the operator had one or not


def _kind(how: Any) -> Any:
    """What two ways to decompose one operator are compared by: torch makes the functions anew each time."""
    return how.func.__code__ if isinstance(how, functools.partial) else how


def _set(op: Any, kernels: dict[Any, Any], rule: Any) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
    if rule is None:
        fake_rules.pop(op, None)
    else:
        fake_rules[op] = rule
