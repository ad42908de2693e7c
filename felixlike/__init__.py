"""felixlike: a differentiable schedule optimizer for tensor programs.

    import felixlike as fx

    fast = fx.optimize(model, example_inputs, rounds=50)
    y = fast(x)

Public names are imported on first use. Importing this package imports neither torch nor TVM.
"""

from felixlike._util import moved_modules as _moved_modules
from felixlike._util.lazy import lazily as _lazily
from felixlike._version import __version__ as __version__
from felixlike.hardware import probe as _probe  # noqa: F401  reads the available cores before torch pins threads

_moved_modules.install()

__getattr__, __dir__, __all__ = _lazily(__name__)
