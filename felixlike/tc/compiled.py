"""The compilation cache: the fastest version known of a program for given sizes, on disk.

In: a program, what it is called with, a target. Out: compiled code, and what was noted of it, from this process or an
earlier one. An entry is an artefact as `fx.load` reads them, written whole or not at all. Processes that want the same
entry at the same time wait for the one that makes it; a process that dies leaves its lock to the next. Anything
unreadable counts as absent, and where nothing can be written nothing is kept: a cache may always be deleted.

An artefact holds machine code, which loading runs: the cache is the user's own folder, as fx.load's files are to be
trusted ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from felixlike import cache, deploy, tvmlib
from felixlike._version import __version__
from felixlike.deploy import Compiled
from felixlike.errors import FelixlikeError
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


def load(key: str) -> tuple[Compiled, dict[str, Any]] | None:
    """The entry, if there is a sound one, and what was noted with it: "seconds" of a call, None where not measured."""
    path = _path(key)
    if not path.is_file():
        return None
    try:
        return deploy.load(path)
    except (FelixlikeError, OSError):
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def store(key: str, compiled: Compiled, note: dict[str, Any], *, held: bool = False) -> None:
    """Keep a version, unless a faster one is known.  Nothing happens where nothing can be written or linked.

    held: whether the caller holds the lock."""
    path = _path(key)
    with contextlib.suppress(OSError, FelixlikeError), contextlib.nullcontext() if held else locked(key):
        if _seconds(note) > _known(path):
            return
        deploy.save(compiled, path, report=note)


def _known(path: Path) -> float:
    """Seconds of the version that is kept; more than any where there is none."""
    if not path.is_file():
        return math.inf
    try:
        return _seconds(deploy.read_report(path))
    except FelixlikeError:
        return math.inf


def _seconds(note: dict[str, Any]) -> float:
    seconds = note.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else math.inf


@contextlib.contextmanager
def locked(key: str) -> Iterator[None]:
    """Only one process at a time, among those that use an entry; ends with the process that holds it."""
    try:
        cache.folder(_KIND).mkdir(parents=True, exist_ok=True)
        file = open(cache.folder(_KIND) / f"{key}.lock", "a")  # noqa: SIM115  closed below
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(key: str) -> Path:
    return cache.folder(_KIND) / f"{key}.felix"
