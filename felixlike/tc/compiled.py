"""The compilation cache on disk: the fastest known code of a program for concrete sizes.

Input: a program, the shapes and dtypes of its tensors, a target. Output: compiled code and its metadata, from this
process or an earlier one.

An entry is an artefact in the format of `fx.load`. It is written whole or not at all. Processes that need the same
entry wait for the one that creates it, up to `user_folders.LOCK_SECONDS` (60 s). A process that dies releases its lock.
Unreadable entries count as absent. Code that cannot be written to disk is kept in memory. The cache may be deleted at
any time.

Loading an artefact runs its machine code. Only entries that no other user can have written are loaded (see
`felixlike._util.private_files`).
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm, runtime
from felixlike._util import cache, user_folders
from felixlike._version import __version__
from felixlike.errors import FelixlikeError, InvalidArtefact, OutputNotWritable
from felixlike.runtime import Compiled
from felixlike.tc.call import Given
from felixlike.tc.printing import canonical
from felixlike.tc.program import Program

_KIND = "tc"
"""Folder of the entries in the cache."""

FORMAT = 2
"""Format version. Increase it when the generated code or the metadata of an entry changes."""


def key_of(program: Program, given: Sequence[Given], target: Any, options: str) -> str:
    """Return the key of an entry: a digest of program, shapes, dtypes, target, options, processor and versions."""
    parts = {
        "program": canonical(program),
        "given": [[*tensor.shape, tensor.dtype] for tensor in given],
        "target": str(target),
        "options": options,
        "machine": [platform.system(), platform.machine()],
        "versions": [FORMAT, __version__, _tvm.version()],
    }
    return cache.digest(json.dumps(parts, sort_keys=True))


_memory: dict[str, tuple[Compiled, dict[str, Any]]] = {}
"""Entries that could not be written to disk."""


def load(key: str) -> tuple[Compiled, dict[str, Any]] | None:
    """Return the code of an entry and its metadata, or None. "seconds" is None if the code was not measured."""
    file = cache.opened(_KIND, _name(key))
    if file is None:
        return _memory.get(key)
    try:
        with file:
            return runtime.load(file)
    except (FelixlikeError, OSError) as error:
        folder = cache.folder(_KIND)
        if isinstance(error, InvalidArtefact) and folder is not None:
            with contextlib.suppress(OSError):
                (folder / _name(key)).unlink()
        return _memory.get(key)


def store(key: str, compiled: Compiled, note: dict[str, Any], *, held: bool = False) -> None:
    """Store code unless faster code is known. Use memory if the disk is not writable; store nothing without a linker.

    held: Whether the caller already holds the lock.
    """
    with contextlib.nullcontext() if held else locked(key):
        if _seconds(note) > _known(key):
            return
        try:
            content = runtime.to_bytes(compiled, report=note)
        except (OSError, OutputNotWritable) as error:  # temporary files cannot be written
            user_folders.unusable("the folder for temporary files", error)
            written = False
        except FelixlikeError:  # there is no C compiler
            return
        else:
            written = cache.write(_KIND, _name(key), content)
        if not written:
            _memory[key] = compiled, note


def _known(key: str) -> float:
    """Return the measured seconds of the stored entry, inf if there is none."""
    file = cache.opened(_KIND, _name(key))
    if file is None:
        return _seconds(_memory[key][1]) if key in _memory else math.inf
    try:
        with file:
            return _seconds(runtime.read_report(file))
    except (FelixlikeError, OSError):
        return math.inf


def _seconds(note: dict[str, Any]) -> float:
    """Return the measured seconds of an entry, inf if it was not measured."""
    seconds = note.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else math.inf


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the lock of an entry, so that one process at a time uses it.

    The lock ends with the process that holds it. If it cannot be acquired, or not in time, continue without it.
    """
    folder = cache.writable_folder(_KIND)
    with contextlib.nullcontext() if folder is None else user_folders.locked(folder / f"{key}.lock"):
        yield


def _name(key: str) -> str:
    """Return the file name of an entry."""
    return f"{key}.felix"
