"""Start Python processes that find this package and import nothing from the current folder.

Input: a module to run. Output: a command and its environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, changed so that Python finds this package first.  more: further variables."""
    root, path = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root if not path else os.pathsep.join((root, path)), **more}
