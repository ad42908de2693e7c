"""The compilation cache: the fastest version known of a program for given sizes, on disk.

In: a program, what it is called with, a target. Out: compiled code, and what was noted of it, from this process or an
earlier one. An entry is an artefact as `fx.load` reads them, written whole or not at all. Processes that want the same
entry at the same time wait for the one that makes it, up to `storage.LOCK_SECONDS`; a process that dies leaves its lock
to the next. Anything unreadable counts as absent, and what cannot be written is kept in memory: a cache may always be
deleted.

An artefact holds machine code, which loading runs: only entries that no other user can have written are loaded (see
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

FORMAT = 1
"""Raised whenever the code for a program, or what an entry says of itself, changes."""


def key_of(program: Program, given: Sequence[Given], target: Any, options: str) -> str:
    """The name of an entry: of the canonical program, shapes, types, target, options, processor and versions."""
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
"""Versions that could not be written."""


def load(key: str) -> tuple[Compiled, dict[str, Any]] | None:
    """The entry, if there is a sound one, and what was noted with it: "seconds" of a call, None where not measured."""
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
    """Keep a version, unless a faster one is known: in memory where it cannot be written, nowhere where it cannot be
    linked.

    held: whether the caller holds the lock."""
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
    """Seconds of the version that is kept; more than any where there is none."""
    file = cache.opened(_KIND, _name(key))
    if file is None:
        return _seconds(_memory[key][1]) if key in _memory else math.inf
    try:
        with file:
            return _seconds(runtime.read_report(file))
    except (FelixlikeError, OSError):
        return math.inf


def _seconds(note: dict[str, Any]) -> float:
    seconds = note.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else math.inf


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Only one process at a time, among those that use an entry; ends with the process that holds it. Goes on without
    the lock where it cannot be had in time, or not at all."""
    folder = cache.writable_folder(_KIND)
    with contextlib.nullcontext() if folder is None else user_folders.locked(folder / f"{key}.lock"):
        yield


def _name(key: str) -> str:
    return f"{key}.felix"
