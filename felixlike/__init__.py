"""felixlike: a differentiable schedule optimizer for tensor programs.

    import felixlike as fx

    fast = fx.optimize(model, example_inputs, rounds=50)
    y = fast(x)

Public names are imported on first use. Importing this package imports neither torch nor TVM.
"""

from typing import TYPE_CHECKING, Any

from felixlike._util import moved_modules as _moved_modules
from felixlike._version import __version__
from felixlike.hardware import probe as _probe  # noqa: F401  reads the available cores before torch pins threads

if TYPE_CHECKING:
    from felixlike import search, tc
    from felixlike.api import Optimized, extract_tasks, load, optimize
    from felixlike.dynamic import Dim
    from felixlike.errors import FelixlikeError
    from felixlike.frontend import Task
    from felixlike.hardware import Device, Target

_moved_modules.install()

__all__ = [
    "Device",
    "Dim",
    "FelixlikeError",
    "Optimized",
    "Target",
    "Task",
    "__version__",
    "extract_tasks",
    "load",
    "optimize",
    "search",
    "tc",
]

_PACKAGES = ("search", "tc")
"""Packages that users access as attributes: felixlike.search.Gradient(seeds=64), felixlike.tc.define(…)."""

_MODULES = {
    "Device": "felixlike.hardware",
    "Dim": "felixlike.dynamic",
    "FelixlikeError": "felixlike.errors",
    "Optimized": "felixlike.api",
    "Target": "felixlike.hardware",
    "Task": "felixlike.frontend",
    "extract_tasks": "felixlike.api",
    "load": "felixlike.api",
    "optimize": "felixlike.api",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
