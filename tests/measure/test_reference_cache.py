"""Reference files are evicted when the disk fills up, kept while in use, and recomputed when needed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.faulty import elementwise, matmul, task_of, tiled, topi

from felixlike.errors import NoSpaceLeft, ReferenceFailed
from felixlike.frontend.task import Task
from felixlike.measure import MeasurePool, Status, Untuned
from felixlike.measure.check.runner import unwritten
from felixlike.measure.interface import Checked
from felixlike.measure.local import reference_cache
from felixlike.measure.local.reference_cache import ReferenceCache
from felixlike.measure.local.steps import Steps
from felixlike.measure.messages import Message

A, B, C = (task_of(matmul(size), f"matmul{size}") for size in (32, 64, 48))


class Disk(NamedTuple):
    free: int


class ZeroReferences:
    """A `ReferenceCache` whose reference outputs are zeros.  runs: the number of computed references."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.runs = directory, 0
        self.references = ReferenceCache(directory, self._run)

    def _run(self, module: Any, memory: int, request: Message) -> Steps[Message]:
        yield from ()
        self.runs += 1
        for row in request["arguments"]:
            if row["save"] is not None:
                try:
                    np.save(row["save"], np.zeros(row["shape"]))
                except OSError as error:
                    return {"status": Status.RUN_ERROR, "message": unwritten(error), "unwritten": True}
        return {"status": Status.OK, "message": "", "strange": 0}

    def use(self, task: Task) -> int:
        """Use the files of a task and return their size in bytes."""
        with self.references.using(task, verify=True) as reference_data:
            assert all(path.exists() for path in (*reference_data.files, *reference_data.answers) if path is not None)
            return reference_data.disk_bytes

    def folders(self) -> set[str]:
        return {path.name.rpartition("-")[0] for path in self.directory.iterdir()}


@pytest.fixture
def made(tmp_path: Path) -> ZeroReferences:
    return ZeroReferences(tmp_path)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(reference_cache.shutil, "disk_usage", lambda _: Disk(count))  # type: ignore[attr-defined]


def test_references_that_fit_are_computed_once(made: ZeroReferences) -> None:
    for task in (A, B, A, B):
        assert made.use(task) > 0
    assert made.runs == 2
    assert made.folders() == {A.key, B.key}


def test_the_least_recently_used_is_removed_on_a_half_full_disk(
    made: ZeroReferences, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {task: made.use(task) for task in (A, B)}
    made.use(A)
    free(monkeypatch, sizes[A] + sizes[B])  # as much is free as is used: the disk is half full
    made.use(A)
    assert made.folders() == {A.key, B.key}
    free(monkeypatch, sizes[A])
    made.use(A)
    assert made.folders() == {A.key}
    made.use(B)
    assert made.runs == 3
    assert made.folders() == {B.key}


def test_the_size_of_unused_references_is_limited_on_any_disk(
    made: ZeroReferences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_cache, "MOST_BYTES", 0)
    free(monkeypatch, 2**50)
    with made.references.using(A, verify=True) as first:
        made.use(B)
        made.use(C)
        assert made.folders() == {A.key, C.key}
        with made.references.using(A, verify=True) as second:
            assert second is first
        assert made.folders() == {A.key}
    assert made.folders() == {A.key}


def test_references_with_and_without_outputs_are_separate(made: ZeroReferences) -> None:
    with made.references.using(A, verify=False) as inputs, made.references.using(A, verify=True) as with_outputs:
        assert inputs.files[0] != with_outputs.files[0]
        assert inputs.answers == (None,) * 3


def test_files_of_unused_inputs_are_removed(made: ZeroReferences) -> None:
    made.use(task_of(elementwise(topi.sin), "sine"))
    files = [path for path in made.directory.rglob("*") if path.is_file()]
    assert len(files) == 2  # one input and one output; inputs of the other kind are removed


def _limit_disk(disk: dict[str, float], monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let `np.save` fail as on a disk of `disk["bytes"]` bytes."""
    save = np.save

    def limited(path: Path, array: Any) -> None:
        used = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        save(path, array)
        if used + array.nbytes > disk["bytes"]:
            raise OSError(f"{array.size} requested and 0 written")

    monkeypatch.setattr(np, "save", limited)


def test_unused_references_are_removed_on_a_full_disk(made: ZeroReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {task: made.use(task) for task in (A, B)}
    disk = {"bytes": 1.2 * sizes[B]}
    _limit_disk(disk, monkeypatch, made.directory)
    made.use(C)
    assert made.folders() == {C.key}
    disk["bytes"] = 100.0
    with pytest.raises(NoSpaceLeft, match=rf"task matmul32: .* {made.directory}.*: no space left\."):
        made.use(A)
    assert made.folders() == set()
    disk["bytes"] = 1.2 * sizes[B]
    with made.references.using(B, verify=True):
        with pytest.raises(ReferenceFailed, match=str(made.directory)) as caught:
            made.use(A)
        assert "TMPDIR" in caught.value.remedy
        assert made.folders() == {B.key}
    made.use(A)


def test_an_output_that_does_not_fit_is_an_error(made: ZeroReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    size = made.use(A)
    _limit_disk({"bytes": 0.6 * size}, monkeypatch, made.directory)
    made.use(A)  # its files exist
    with pytest.raises(NoSpaceLeft, match="no space left"):
        made.use(task_of(matmul(32, added=1.0)))
    assert made.folders() == set()


def test_a_folder_that_cannot_be_created_is_an_error(made: ZeroReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NoSpaceLeft, match=os.strerror(errno.EDQUOT)):
        made.use(A)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """short(name): the inputs of tasks of this name do not fit while those of another one are in use."""
    users: list[str] = []
    making, release = ReferenceCache.making, ReferenceCache.release

    def making_unless_short(self: ReferenceCache, task: Task, *, verify: bool) -> Steps[Any]:
        if task.name in names and users:
            raise NoSpaceLeft("no room for it", where=task.name)
        users.append(task.name)
        try:
            return (yield from making(self, task, verify=verify))
        except BaseException:
            users.remove(task.name)
            raise

    def recorded_release(self: ReferenceCache, task: Task, *, verify: bool) -> None:
        users.remove(task.name)
        release(self, task, verify=verify)

    names: list[str] = []
    monkeypatch.setattr(ReferenceCache, "making", making_unless_short)
    monkeypatch.setattr(ReferenceCache, "release", recorded_release)
    yield names.append
    assert users == []


def test_checks_that_do_not_fit_with_others_run_alone(short: Callable[[str], None]) -> None:
    task, other = task_of(matmul(), "large"), task_of(matmul(added=1.0), "small")
    short("large")
    with MeasurePool(task.target, workers=2) as pool:
        results: dict[int, Checked] = dict(pool.checks([(other, Untuned(other)), (task, tiled())]))
    assert [getattr(results[index], "status", results[index]) for index in (0, 1)] == [Status.OK, Status.OK]
