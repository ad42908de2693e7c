"""Which of the commands in stores this user gave, on this machine.

Inputs: the path of a store and a command. Outputs: a mark that stands beside the command in the store, and whether it
is right. A mark is an HMAC of host, store and command under a key that only this user can read, so whoever writes a
store by other means cannot make one. Where the key cannot be kept, no command has a mark.
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

import platformdirs

from felixlike._util import private_files

_KEY = "commands.key"
_KEY_BYTES = 32


def mark(store: Path, command: Mapping[str, Any]) -> str:
    """The mark of a command that this user gives now; makes the key if there is none. Empty where there can be none."""
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
    """Whether a mark is the one that this user's `mark` gives."""
    try:
        key = _key()
    except OSError:
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(), _mark(key, store, command).encode())


def _mark(key: bytes, store: Path, command: Mapping[str, Any]) -> str:
    said = json.dumps([platform.node(), os.path.realpath(store), dict(command)], sort_keys=True)
    return hmac.digest(key, said.encode(), "sha256").hex()


def _key() -> bytes:
    with private_files.opened(_folder(), _KEY) as file:
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise OSError("it is not a key")
    return key


def _folder() -> Path:
    return Path(platformdirs.user_data_dir("felixlike")) / "keys"
