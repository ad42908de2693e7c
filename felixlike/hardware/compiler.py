"""Find the C compiler of this machine. It links LLVM's object code into a shared library, so any compiler will do."""

import os
import shutil

COMPILERS = ("gcc", "cc", "clang", "g++", "c++")
"""Names of compilers, in the order of search."""


def c_compiler() -> str | None:
    """Return the compiler that the environment variable CC names, else the first one on the PATH, or None."""
    return os.environ.get("CC") or next((path for path in map(shutil.which, COMPILERS) if path), None)
