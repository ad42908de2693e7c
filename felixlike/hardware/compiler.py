"""The C compiler of this machine: it links what LLVM generated into a shared library, so any will do."""

import os
import shutil

COMPILERS = ("gcc", "cc", "clang", "g++", "c++")
"""Looked for in this order."""


def c_compiler() -> str | None:
    """The compiler that the environment variable CC names, else the first one found; None without any."""
    return os.environ.get("CC") or next((found for found in map(shutil.which, COMPILERS) if found), None)
