"""What is kept for later runs in the user's cache directory: one JSON file an entry, a folder a kind.

In: a kind, a key, plain data. Out: the data, or None. Anything unreadable counts as absent, and failing to write is no
error: a cache may always be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs


def folder(kind: str = "") -> Path:
    """Where entries of a kind live; where all do."""
    return Path(platformdirs.user_cache_dir("felixlike")) / kind


def load(kind: str, key: str) -> Any | None:
    """The entry, or None."""
    try:
        return json.loads((folder(kind) / f"{key}.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None


def store(kind: str, key: str, data: Any) -> None:
    """Write an entry, whole or not at all."""
    with contextlib.suppress(OSError):
        folder(kind).mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder(kind), suffix=".part")
        with os.fdopen(handle, "w") as file:
            json.dump(data, file)
        os.replace(name, folder(kind) / f"{key}.json")


def digest(text: str) -> str:
    """A key of a text."""
    return hashlib.blake2b(text.encode(), digest_size=24).hexdigest()


def sources() -> str:
    """The same for the same version of felixlike's code, also between releases."""
    root = Path(__file__).parent
    found = hashlib.blake2b(digest_size=24)
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()
