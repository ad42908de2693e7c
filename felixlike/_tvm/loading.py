"""Import TVM without three steps that take most of its time and have no effect."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_DISTRIBUTED = "tvm.runtime.disco"
"""TVM imports this package before it loads the library with its classes, and goes on without it after an error."""


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Import TVM inside of this context in half of the time, with the same result.

    The first error that a process gets from TVM's C++ costs more than a second after PyTorch was imported: symbols of
    all libraries are read for the error's traceback. TVM's import ignores 113 such errors, and they are avoided here.
    Each of TVM's 52 tables of functions is made from a list of all names, which is listed anew only if functions were
    added.
    """
    import tvm_ffi
    from tvm_ffi import registry

    make_table, list_names = tvm_ffi.init_ffi_api, registry.list_global_func_names
    operators = _Operators()

    def with_operators(namespace: str, module: str | None = None) -> None:
        make_table(namespace, module)
        operators.are_new = True  # of a library that was loaded before
        if namespace == "ir":
            operators.replace(sys.modules[module or namespace])

    absent = _DISTRIBUTED not in sys.modules
    if absent:
        sys.modules[_DISTRIBUTED] = None  # type: ignore[assignment]  # for Python, a module that cannot be imported
    registry.list_global_func_names = _kept(list_names, registry.get_global_func)
    tvm_ffi.init_ffi_api = with_operators
    try:
        yield
    finally:
        tvm_ffi.init_ffi_api, registry.list_global_func_names = make_table, list_names
        operators.restore()
        if absent:
            sys.modules.pop(_DISTRIBUTED, None)


class _Operators:
    """TVM's functions that look up operators and set attributes, with errors of Python in place of those of C++.

    Attributes:
        are_new: Whether there may be more operators than before.
    """

    def __init__(self) -> None:
        self.are_new = True
        self._table: Any = None
        self._original: dict[str, Callable[..., Any]] = {}
        self._known: set[str] = set()

    def replace(self, table: Any) -> None:
        """Replace the functions in the module with TVM's functions of its namespace `ir`."""
        self._table = table
        for name, function in (("GetOp", self._get), ("RegisterOpAttr", self._set_attribute)):
            self._original[name] = getattr(table, name)
            setattr(table, name, function)

    def restore(self) -> None:
        """Put TVM's functions back."""
        for name, function in self._original.items():
            setattr(self._table, name, function)

    def _get(self, name: str) -> Any:
        """Return an operator."""
        if not self._is_known(name):
            raise RuntimeError(f"TVM has no operator {name}")
        return self._original["GetOp"](name)

    def _set_attribute(self, operator: str, key: str, value: Any, level: int) -> Any:
        """Set an attribute of an operator, which is registered if it is new, unless it has this value."""
        if isinstance(value, str) and self._is_known(operator) and self._value(operator, key) == value:
            raise RuntimeError(f"{key} of {operator} is already {value}")
        self._known.add(operator)
        return self._original["RegisterOpAttr"](operator, key, value, level)

    def _value(self, operator: str, key: str) -> Any:
        """Return the value of an attribute of an operator; None without one."""
        return self._table.OpGetAttr(self._original["GetOp"](operator), key)

    def _is_known(self, name: str) -> bool:
        """Return whether TVM has an operator."""
        if name not in self._known and self.are_new:
            self._known, self.are_new = set(map(str, self._table.ListOpNames())), False
        return name in self._known


def _kept(list_names: Callable[[], list[str]], function: Callable[[str], Any]) -> Callable[[], list[str]]:
    """Return a function that lists the names of TVM's functions, anew only if their number has changed."""
    names: list[str] = []

    def kept() -> list[str]:
        nonlocal names
        if function("ffi.FunctionListGlobalNamesFunctor")()(-1) != len(names):
            names = list_names()
        return names

    return kept
