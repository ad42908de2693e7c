"""Recognise which commands in a store this user gave on this machine.

Inputs: the path of a store and a command. Outputs: a mark that is saved beside the command, and whether a mark is
valid. A mark is an HMAC of host, store and command under a key that only this user can read. A store that was written
by other means therefore has no valid mark. If the key cannot be saved, no command has a mark.
"""

from __future__ import annotations

import hmac
import json
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from felixlike._util import private_files, user_folders

_KEY = "commands.key"
"""Name of the key's file."""
_KEY_BYTES = 32
"""Length of the key in bytes."""


def mark(store: Path, command: Mapping[str, Any]) -> str:
    """Return the mark of a command that this user gives now; empty without a key. Create the key if there is none."""
    try:
        try:
            key = _key()
        except FileNotFoundError:
            private_files.write(_folder(), _KEY, content=secrets.token_bytes(_KEY_BYTES))
            key = _key()
    except OSError:
        return ""
    return _mark(key, store, command)


def is_ours(found: Any, store: Path, command: Mapping[str, Any]) -> bool:
    """Return whether a mark is the one that `mark` returns for this user."""
    try:
        key = _key()
    except OSError:
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(), _mark(key, store, command).encode())


def _mark(key: bytes, store: Path, command: Mapping[str, Any]) -> str:
    """Return the HMAC-SHA256 of host, store and command."""
    message = json.dumps([platform.node(), os.path.realpath(store), dict(command)], sort_keys=True)
    return hmac.digest(key, message.encode(), "sha256").hex()


def _key() -> bytes:
    """Read the key. Raise OSError if there is none or its length is wrong."""
    with private_files.opened(_folder(), _KEY) as file:
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise OSError(f"the key is not {_KEY_BYTES} bytes long")
    return key


def _folder() -> Path:
    """Return the folder of the key. Raise FileNotFoundError for a user without a home."""
    folder = user_folders.data_folder()
    if folder is None:
        raise FileNotFoundError("the home directory is unknown")
    return folder / "keys"
