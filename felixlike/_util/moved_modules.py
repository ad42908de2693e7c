"""Import modules under the names that they had before version 0.1.0, with a DeprecationWarning.

Input: `import felixlike.deploy`. Output: a module with all attributes of `felixlike.runtime`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "felixlike.algebra": "felixlike.symbolic.expr",
    "felixlike.deploy": "felixlike.runtime",
    "felixlike.interrupts": "felixlike._util.interrupts",
    "felixlike.pipelines": "felixlike.spaces.pipelines",
    "felixlike.trees": "felixlike.costmodel.boosted_trees",
    "felixlike.tvmlib": "felixlike._tvm",
}
"""Maps old names to new ones. Submodules move with their package."""


def new_name(name: str) -> str | None:
    """Return a module's current name, or None if its name has not changed."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class _Loader(importlib.abc.Loader):
    """Fill a module of an old name with the attributes of the new one."""

    def exec_module(self, module: ModuleType) -> None:
        name = new_name(module.__name__)
        assert name is not None
        # Python does not count the frames of its import system, so the next one is that of the import statement.
        warnings.warn(f"{module.__name__} has moved to {name}", DeprecationWarning, stacklevel=2)
        moved = importlib.import_module(name)
        module.__dict__.update({key: value for key, value in vars(moved).items() if not key.startswith("__")})
        module.__dict__.update(__doc__=moved.__doc__, __path__=[], __getattr__=lambda key: getattr(moved, key))


class _Finder(importlib.abc.MetaPathFinder):
    """Find modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if new_name(fullname) is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(), is_package=True)


def install() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
