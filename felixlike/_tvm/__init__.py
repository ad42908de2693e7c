"""Collect all names of TVM that felixlike uses, with the import paths and versions of TVM that they depend on.

Other packages import TVM's names only from here, with helpers that need nothing but TVM. Importing this package does
not import TVM (1–4 s); the first use of one of its names does. So `from felixlike import _tvm` is at the top of files,
and `_tvm.te` is used in functions.
"""

from importlib import import_module

from felixlike._util.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__)


def load() -> None:
    """Load TVM now: before processes are forked, each of which would load it, or where loading is timed or may fail.

    Raises VersionMismatch or ImportError.
    """
    for module in ("names", "trees", "processors"):
        import_module(f"{__name__}.{module}")
    import_module(f"{__name__}.parallel_launch").prepare_launch()
