"""Cache the files of a pool's reference data, limited by the free disk space.

The input is a task, the output its ReferenceData, computed again if its files were removed. Files in use are never
removed. Others are removed least recently used first: all but the latest while they exceed half of the disk space
available to them, and all if a new file does not fit.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from felixlike.errors import NoSpaceLeft
from felixlike.frontend.task import Task
from felixlike.measure.local.reference_data import ReferenceData, Runner, unverified, verified
from felixlike.measure.local.steps import Steps, complete

MOST_BYTES = 4 * 2**30
"""Size of all cached files above which unused ones are removed, bytes.

Chosen by hand: the largest tasks of our networks have 300 MB."""

_Key = tuple[str, bool]


class ReferenceCache:
    """Cache of reference data; `directory` receives the files, `run` runs unscheduled functions."""

    def __init__(self, directory: Path, run: Runner) -> None:
        self._directory, self._run = directory, run
        self._numbers = itertools.count()
        self._kept: dict[_Key, tuple[ReferenceData, Path]] = {}
        """Reference data, least recently used first, each with the folder of its files."""
        self._users: Counter[_Key] = Counter()

    @contextlib.contextmanager
    def using(self, task: Task, *, verify: bool) -> Iterator[ReferenceData]:
        """Provide a task's reference data and keep its files during a block; raise ReferenceFailed."""
        reference_data = complete(self.making(task, verify=verify))
        try:
            yield reference_data
        finally:
            self.release(task, verify=verify)

    def making(self, task: Task, *, verify: bool) -> Steps[ReferenceData]:
        """Return steps to a task's reference data, whose files stay until `release`; raise ReferenceFailed."""
        key = (task.key, verify)
        if key not in self._kept:
            made = yield from self._made(task, verify=verify)
            if key in self._kept:  # by another job meanwhile
                shutil.rmtree(made[1], ignore_errors=True)
            else:
                self._kept[key] = made
        self._kept[key] = self._kept.pop(key)
        self._users[key] += 1
        return self._kept[key][0]

    def release(self, task: Task, *, verify: bool) -> None:
        """End one use of a task's reference data; remove old files if the cache is too large."""
        self._users[task.key, verify] -= 1
        self._remove(min(MOST_BYTES, (self._free() + self._bytes()) // 2), but=next(reversed(self._kept), None))

    def _made(self, task: Task, *, verify: bool) -> Steps[tuple[ReferenceData, Path]]:
        """Return steps that compute reference data; if the disk is full, clear the cache and try again."""
        try:
            return (yield from self._attempted(task, verify=verify))
        except NoSpaceLeft:
            if not self._remove(0):
                raise
        return (yield from self._attempted(task, verify=verify))

    def _attempted(self, task: Task, *, verify: bool) -> Steps[tuple[ReferenceData, Path]]:
        """Return steps that compute reference data in a new folder, which is removed on failure."""
        folder = self._directory / f"{task.key}-{next(self._numbers)}"
        try:
            return (yield from verified(task, folder, self._run)) if verify else unverified(task, folder), folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _remove(self, left: int, *, but: _Key | None = None) -> bool:
        """Remove unused files, least recently used first, until at most `left` bytes remain; keep those of `but`.

        Returns whether files were removed."""
        removed, size = False, self._bytes()
        for key in [key for key in self._kept if not self._users[key] and key != but]:
            if size <= left:
                break
            reference_data, folder = self._kept.pop(key)
            size -= reference_data.disk_bytes
            shutil.rmtree(folder, ignore_errors=True)
            removed = True
        return removed

    def _bytes(self) -> int:
        """Return the size of all cached files, bytes."""
        return sum(reference_data.disk_bytes for reference_data, _ in self._kept.values())

    def _free(self) -> int:
        """Return the free disk space, bytes; 0 if it is unknown."""
        try:
            return shutil.disk_usage(self._directory).free
        except OSError:
            return 0
