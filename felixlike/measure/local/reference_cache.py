"""Keep the files of the latest references of a pool, within a part of the disk that is free.

In: a task. Out: its ReferenceData, made again where its files have been removed. Those in use are never removed. Of the
others the least recently used go first, all but the latest before they fill half of the disk's room, and all where a
file of another task does not fit.
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

_MOST_BYTES = 4 * 2**30
"""Of the files of references that are not in use.  Chosen by hand: the largest tasks of our networks have 300 MB."""

_Key = tuple[str, bool]


class ReferenceCache:
    """directory: gets the files.  run: runs unscheduled functions, for their answers."""

    def __init__(self, directory: Path, run: Runner) -> None:
        self._directory, self._run = directory, run
        self._numbers = itertools.count()
        self._kept: dict[_Key, tuple[ReferenceData, Path]] = {}
        """The least recently used first, each with the folder of its files."""
        self._users: Counter[_Key] = Counter()

    @contextlib.contextmanager
    def using(self, task: Task, *, verify: bool) -> Iterator[ReferenceData]:
        """Keep the files of a task's reference_data during a block, made first if they are not there.  Raises
        ReferenceFailed."""
        reference_data = complete(self.making(task, verify=verify))
        try:
            yield reference_data
        finally:
            self.release(task, verify=verify)

    def making(self, task: Task, *, verify: bool) -> Steps[ReferenceData]:
        """Steps to a task's reference_data, whose files stay until it is released.  Raises ReferenceFailed."""
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
        """End a use of a task's reference_data."""
        self._users[task.key, verify] -= 1
        self._remove(min(_MOST_BYTES, (self._free() + self._bytes()) // 2), but=next(reversed(self._kept), None))

    def _made(self, task: Task, *, verify: bool) -> Steps[tuple[ReferenceData, Path]]:
        try:
            return (yield from self._attempted(task, verify=verify))
        except NoSpaceLeft:
            if not self._remove(0):
                raise
        return (yield from self._attempted(task, verify=verify))

    def _attempted(self, task: Task, *, verify: bool) -> Steps[tuple[ReferenceData, Path]]:
        home = self._directory / f"{task.key}-{next(self._numbers)}"
        try:
            return (yield from verified(task, home, self._run)) if verify else unverified(task, home), home
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _remove(self, left: int, *, but: _Key | None = None) -> bool:
        """Remove files that are not in use, the least recently used first, until the rest has at most so many bytes;
        whether there were any.  but: whose files stay."""
        removed, size = False, self._bytes()
        for key in [key for key in self._kept if not self._users[key] and key != but]:
            if size <= left:
                break
            reference_data, home = self._kept.pop(key)
            size -= reference_data.disk_bytes
            shutil.rmtree(home, ignore_errors=True)
            removed = True
        return removed

    def _bytes(self) -> int:
        return sum(reference_data.disk_bytes for reference_data, _ in self._kept.values())

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._directory).free
        except OSError:
            return 0
