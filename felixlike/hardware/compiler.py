"""Find the C compiler of this machine. It links LLVM's object code into a shared library, so any compiler will do."""

import os
import shutil

COMPILERS = ("gcc", "cc", "clang", "g++", "c++")
"""Names of compilers, in the order of search."""


_LAUNCHERS = ("ccache", "distcc", "icecc", "sccache")
"""Programs before the compiler's name in CC."""


def c_compiler() -> str | None:
    """Return the compiler that the environment variable CC names, else the first one on the PATH, or None.

    CC may have a launcher before the compiler and options behind it ("ccache gcc -m64"), which are not used.
    """
    named = os.environ.get("CC", "").strip()
    if shutil.which(named) is None:
        named = next((word for word in named.split() if os.path.basename(word) not in _LAUNCHERS), "")
    return named or next((path for path in map(shutil.which, COMPILERS) if path), None)
