"""The files of a pool's references: few enough for the disk, never those in use, made again when they are wanted."""

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


class Made:
    """ReferenceCache whose answers are zeros.  runs: how many were computed."""

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
        """Use a task's files; how many bytes they have."""
        with self.references.using(task, verify=True) as found:
            assert all(path.exists() for path in (*found.files, *found.answers) if path is not None)
            return found.disk_bytes

    def folders(self) -> set[str]:
        return {path.name.rpartition("-")[0] for path in self.directory.iterdir()}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(reference_cache.shutil, "disk_usage", lambda _: Disk(count))  # type: ignore[attr-defined]


def test_what_there_is_room_for_is_made_once(made: Made) -> None:
    for task in (A, B, A, B):
        assert made.use(task) > 0
    assert made.runs == 2
    assert made.folders() == {A.key, B.key}


def test_the_least_recently_used_goes_before_the_disk_is_half_full(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {task: made.use(task) for task in (A, B)}
    made.use(A)
    free(monkeypatch, sizes[A] + sizes[B])  # as much again: that is half
    made.use(A)
    assert made.folders() == {A.key, B.key}
    free(monkeypatch, sizes[A])
    made.use(A)
    assert made.folders() == {A.key}
    made.use(B)
    assert made.runs == 3
    assert made.folders() == {B.key}


def test_all_of_them_have_a_limit_on_any_disk(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_cache, "_MOST_BYTES", 0)
    free(monkeypatch, 2**50)
    with made.references.using(A, verify=True) as first:
        made.use(B)
        made.use(C)
        assert made.folders() == {A.key, C.key}
        with made.references.using(A, verify=True) as again:
            assert again is first
        assert made.folders() == {A.key}
    assert made.folders() == {A.key}


def test_verified_or_not_are_two(made: Made) -> None:
    with made.references.using(A, verify=False) as inputs, made.references.using(A, verify=True) as both:
        assert inputs.files[0] != both.files[0]
        assert inputs.answers == (None,) * 3


def test_what_is_not_compared_with_is_not_kept(made: Made) -> None:
    made.use(task_of(elementwise(topi.sin), "sine"))
    left = [path for path in made.directory.rglob("*") if path.is_file()]
    assert len(left) == 2  # an input and an answer, of one kind of inputs


def _short_of(room: dict[str, float], monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """A disk of so many bytes, as NumPy meets it."""
    save = np.save

    def limited(path: Path, array: Any) -> None:
        used = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        save(path, array)
        if used + array.nbytes > room["bytes"]:
            raise OSError(f"{array.size} requested and 0 written")

    monkeypatch.setattr(np, "save", limited)


def test_others_give_way_where_it_does_not_fit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {task: made.use(task) for task in (A, B)}
    room = {"bytes": 1.2 * sizes[B]}
    _short_of(room, monkeypatch, made.directory)
    made.use(C)
    assert made.folders() == {C.key}
    room["bytes"] = 100.0
    with pytest.raises(NoSpaceLeft, match=rf"task matmul32: the inputs .* {made.directory}.*: no space left\."):
        made.use(A)
    assert made.folders() == set()
    room["bytes"] = 1.2 * sizes[B]
    with made.references.using(B, verify=True):
        with pytest.raises(ReferenceFailed, match=r"make room there, or set TMPDIR to a folder with more\."):
            made.use(A)
        assert made.folders() == {B.key}
    made.use(A)


def test_an_answer_that_does_not_fit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    size = made.use(A)
    _short_of({"bytes": 0.6 * size}, monkeypatch, made.directory)
    made.use(A)  # it is there
    with pytest.raises(NoSpaceLeft, match="no space left"):
        made.use(task_of(matmul(32, added=1.0)))
    assert made.folders() == set()


def test_a_folder_that_cannot_be_made(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def watched(self: ReferenceCache, task: Task, *, verify: bool) -> Steps[Any]:
        if task.name in names and users:
            raise NoSpaceLeft("no room for it", where=task.name)
        users.append(task.name)
        try:
            return (yield from making(self, task, verify=verify))
        except BaseException:
            users.remove(task.name)
            raise

    def released(self: ReferenceCache, task: Task, *, verify: bool) -> None:
        users.remove(task.name)
        release(self, task, verify=verify)

    names: list[str] = []
    monkeypatch.setattr(ReferenceCache, "making", watched)
    monkeypatch.setattr(ReferenceCache, "release", released)
    yield names.append
    assert users == []


def test_checks_that_do_not_fit_beside_others_are_made_alone(short: Callable[[str], None]) -> None:
    task, other = task_of(matmul(), "large"), task_of(matmul(added=1.0), "small")
    short("large")
    with MeasurePool(task.target, workers=2) as pool:
        found: dict[int, Checked] = dict(pool.checks([(other, Untuned(other)), (task, tiled())]))
    assert [getattr(found[place], "status", found[place]) for place in (0, 1)] == [Status.OK, Status.OK]
