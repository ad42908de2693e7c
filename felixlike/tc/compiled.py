"""The compilation cache: the fastest version known of a program for given sizes, on disk.

In: a program, what it is called with, a target. Out: compiled code, and what was noted of it, from this process or an
earlier one. An entry is an artefact as `fx.load` reads them, written whole or not at all. Processes that want the same
entry at the same time wait for the one that makes it, up to `storage.LOCK_SECONDS`; a process that dies leaves its lock
to the next. Anything unreadable counts as absent, and what cannot be written is kept in memory: a cache may always be
deleted.

An artefact holds machine code, which loading runs: the cache is the user's own folder, as fx.load's files are to be
trusted ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from felixlike import cache, deploy, storage, tvmlib
from felixlike._version import __version__
from felixlike.deploy import Compiled
from felixlike.errors import FelixlikeError, InvalidArtefact, OutputNotWritable
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
        "versions": [FORMAT, __version__, tvmlib.version()],
    }
    return cache.digest(json.dumps(parts, sort_keys=True))


_memory: dict[str, tuple[Compiled, dict[str, Any]]] = {}
"""Versions that could not be written."""


def load(key: str) -> tuple[Compiled, dict[str, Any]] | None:
    """The entry, if there is a sound one, and what was noted with it: "seconds" of a call, None where not measured."""
    path = _path(key)
    if path is None or not _is_file(path):
        return _memory.get(key)
    try:
        found = deploy.load(path)
    except (FelixlikeError, OSError) as error:
        if isinstance(error, InvalidArtefact):
            with contextlib.suppress(OSError):
                path.unlink()
        return _memory.get(key)
    cache.note_use(path)
    return found


def store(key: str, compiled: Compiled, note: dict[str, Any], *, held: bool = False) -> None:
    """Keep a version, unless a faster one is known: in memory where it cannot be written, nowhere where it cannot be
    linked.

    held: whether the caller holds the lock."""
    path = _path(key)
    with contextlib.nullcontext() if held else locked(key):
        try:
            if _seconds(note) > _known(path, key):
                return
            if path is None:
                raise OutputNotWritable("the user's home is not known")
            path.parent.mkdir(parents=True, exist_ok=True)
            deploy.save(compiled, path, report=note)
        except OSError as error:  # OutputNotWritable is one
            storage.unusable("the cache" if path is None else path.parent, error)
            _memory[key] = compiled, note
            return
        except FelixlikeError:  # there is no C compiler
            return
    cache.trim_daily()


def _known(path: Path | None, key: str) -> float:
    """Seconds of the version that is kept; more than any where there is none."""
    if path is None or not _is_file(path):
        return _seconds(_memory[key][1]) if key in _memory else math.inf
    try:
        return _seconds(deploy.read_report(path))
    except FelixlikeError:
        return math.inf


def _seconds(note: dict[str, Any]) -> float:
    seconds = note.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else math.inf


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Only one process at a time, among those that use an entry; ends with the process that holds it. Goes on without
    the lock where it cannot be had in time, or not at all."""
    path = _path(key)
    with contextlib.nullcontext() if path is None else storage.locked(path.with_suffix(".lock")):
        yield


def _path(key: str) -> Path | None:
    folder = cache.folder(_KIND)
    return None if folder is None else folder / f"{key}.felix"


def _is_file(path: Path) -> bool:
    """Whether there is a file.  A folder that may not be entered has none."""
    try:
        return path.is_file()
    except OSError:
        return False
