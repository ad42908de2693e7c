"""Cache the work that torch repeats in every export, because tests export more than a thousand small models.

`ExportedProgram.run_decompositions` asks the dispatcher for all composite operators once for each namespace. It then
gives each of about a hundred operators a dozen kernels, through functions whose annotations are evaluated at every
call. Both take two thirds of the time of importing a small model. This module asks for the operators once a run and
reuses the kernels that torch gave an operator while the operator's own kernels stay the same.
`frontend/test_exports.py` compares the results with torch's.
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
"""Modules in which torch binds its function that collects composite operators."""

collected_by_torch = utils._collect_all_valid_cia_ops
given_by_torch = exported_program._override_composite_implicit_decomp


class _Given(NamedTuple):
    """State of an operator: how torch decomposes it, its own kernels and rule, and those during a run."""

    how: Any
    own: dict[Any, Any]
    own_rule: Any
    kernels: dict[Any, Any]
    rule: Any

    def suits(self, how: Any, own: dict[Any, Any], own_rule: Any) -> bool:
        """Return whether torch would produce the same kernels."""
        return (how, own, own_rule) == (self.how, self.own, self.own_rule)


_KNOWN: dict[Any, _Given] = {}


def once_a_run() -> None:
    """Patch torch so that exports of this process reuse earlier work."""
    for module in COLLECTING:
        module._collect_all_valid_cia_ops = _collect_operators
    exported_program._override_composite_implicit_decomp = _override_decompositions  # type: ignore[assignment]


def known() -> set[Any]:
    """Return the operators whose kernels are cached."""
    return set(_KNOWN)


def _collect_operators() -> Any:
    """Return all composite operators, asking the dispatcher once instead of once for each namespace."""
    materialize = utils._materialize_cpp_cia_ops
    materialize()
    utils._materialize_cpp_cia_ops = _do_nothing
    try:
        return collected_by_torch()
    finally:
        utils._materialize_cpp_cia_ops = materialize


def _do_nothing() -> None:
    """Replace the call to the dispatcher, which has already run."""


@contextlib.contextmanager
def _override_decompositions(decompositions: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    """Give each operator its decomposing kernels during the block and restore its own kernels afterwards."""
    before = {op: (dict(op.py_kernels), fake_rules.get(op)) for op in decompositions}
    known = {
        op: _KNOWN[op]
        for op, how in decompositions.items()
        if op in _KNOWN and _KNOWN[op].suits(_kind(how), *before[op])
    }
    with given_by_torch({op: how for op, how in decompositions.items() if op not in known}):
        for op in decompositions.keys() - known.keys():
            _KNOWN[op] = _Given(_kind(decompositions[op]), *before[op], dict(op.py_kernels), fake_rules.get(op))
        try:
            for op, cached in known.items():
                _set(op, cached.kernels, cached.rule)
            yield
        finally:
            for op, cached in known.items():
                _set(op, cached.own, None)  # torch leaves no rule behind, whether or not the operator had one


def _kind(how: Any) -> Any:
    """Return a key that compares two decompositions of an operator. torch creates the functions anew each time."""
    return how.func.__code__ if isinstance(how, functools.partial) else how


def _set(op: Any, kernels: dict[Any, Any], rule: Any) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
    if rule is None:
        fake_rules.pop(op, None)
    else:
        fake_rules[op] = rule
