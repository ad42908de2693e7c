"""Load names of a package on first use (PEP 562), as the package's stub lists them.

Input: `__init__.pyi` beside the package's `__init__.py`, with lines `from … import name as name`, as type checkers read
them. Output: the package's `__getattr__`, `__dir__` and `__all__`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from felixlike._util.garbage import collecting_later
from felixlike._util.spent import on


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package. A loaded name becomes an attribute of the package.

    Example:
        __getattr__, __dir__, __all__ = lazily(__name__)
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    homes = {
        str(alias.asname): (str(node.module), alias.name)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        with collecting_later(), on("loading packages"):
            found = import_module(f"{package}.{attribute}" if module == package else module)
        value = found if module == package else getattr(found, attribute)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: list(names), list(names)
