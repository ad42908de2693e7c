"""Whether two executables hold the same code."""

from __future__ import annotations

import hashlib
import re
from typing import Any

_ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+')
"""How TVM names buffers in LLVM's alias metadata: by where they lie in memory, so anew in every process."""


def code_digest(executable: Any) -> str:
    """The same for Executables with the same generated code: of LLVM's optimised text, and of a GPU's source."""
    digest = hashlib.sha256(_ADDRESS.sub("", executable.mod.inspect_source("ll")).encode())
    for device_module in executable.mod.imports:
        digest.update(device_module.inspect_source().encode())
    return digest.hexdigest()
