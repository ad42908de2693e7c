"""Deprecated name of the oracles, models and operators that tests and benchmarks share.

They are in `tests/support` of the repository and are not part of a wheel. The modules of this package are those of that
folder, so `felixlike.testing.tvm_view` still works in a checkout.
"""

import warnings
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "tests" / "support"

if not _FOLDER.is_dir():
    raise ImportError(
        "felixlike.testing is in tests/support of the repository. clone it, and install it with --editable"
    )

warnings.warn("felixlike.testing has moved to tests/support of the repository", DeprecationWarning, stacklevel=2)
__path__ = [str(_FOLDER)]
