"""Compare the generated code of executables."""

from __future__ import annotations

import hashlib
import re
from typing import Any

_ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+')
"""Names of buffers in LLVM's alias metadata: TVM uses their addresses, which differ from process to process."""


def code_digest(executable: Any) -> str:
    """Return a digest of an executable's code: of LLVM's optimized text and of a GPU's source.

    Args:
        executable: A compiled Executable.

    Returns:
        A hexadecimal digest, equal for equal code.
    """
    digest = hashlib.sha256(_ADDRESS.sub("", executable.mod.inspect_source("ll")).encode())
    for device_module in executable.mod.imports:
        digest.update(device_module.inspect_source().encode())
    return digest.hexdigest()
