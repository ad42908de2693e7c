"""A damaged store file raises StoreError or gives only records that were written.

Small files are checked as a whole when they are opened; the parameter `large` makes a store skip that check.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.stores import TASK, after, fill, flip, flip_at_random, look, record, timed, told, truncate

from felixlike import records
from felixlike.errors import StoreError
from felixlike.records import Record, Store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    path = tmp_path_factory.mktemp("sound") / "store.db"
    return path, fill(path)


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "large":
        monkeypatch.setattr("felixlike.records.file.CHECKED_BYTES", 0)


def salvaged(path: Path, written: list[Record]) -> int:
    """Merge a damaged store into a new one and return how many records were added, all of which were written."""
    known = {told(r) for r in written}
    with records.open() as store:
        try:
            result = records.merge(store, path)
        except StoreError:
            return 0
        merged = [told(r) for r in store.measurements()]
    assert result.added == len(merged) == len(set(merged))
    assert set(merged) <= known
    assert result.lost <= len(written) - len(merged)
    assert result.damage or len(merged) == len(written)
    return len(merged)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_never_give_wrong_records(seed: int, sound: tuple[Path, list[Record]], tmp_path: Path) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        assert after(partial(flip_at_random, rng=rng), *sound, tmp_path / "store.db") in ("refused", "works")


@pytest.mark.usefixtures("size")
def test_truncated_stores_are_refused(sound: tuple[Path, list[Record]], tmp_path: Path) -> None:
    length = sound[0].stat().st_size
    rng = random.Random(0)
    ends = [1, 16, 99, 100, 101, 4095, 4096, 4097, length - 1, *(rng.randrange(1, length) for _ in range(25))]
    for end in ends:
        assert after(partial(truncate, size=end), *sound, tmp_path / "store.db") == "refused"


def test_a_torn_log_loses_only_its_end(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    written = fill(path, 10)
    rng = random.Random(1)
    with records.open(path) as store:
        for step in range(10):
            appended = record(timed(1.0 + step), point=(step,))
            store.append(TASK, appended)
            written.append(appended)
        log = (tmp_path / "store.db-wal").read_bytes()
        for damage in range(12):
            shutil.copy(path, copy)
            torn = bytearray(log[: rng.randrange(len(log))] if damage % 2 else log)
            if not damage % 2:
                torn[rng.randrange(len(torn))] ^= 255
            (tmp_path / "copy.db-wal").write_bytes(torn)
            (tmp_path / "copy.db-shm").unlink(missing_ok=True)
            assert look(copy, written) == "works"
            with records.open(copy) as torn_store:
                readable = [told(r) for r in torn_store.measurements()][:-1]
            assert readable == [told(r) for r in written[: len(readable)]]
            assert len(readable) >= 10


def test_readable_records_of_a_damaged_store_are_salvaged(sound: tuple[Path, list[Record]], tmp_path: Path) -> None:
    original, written = sound
    length, path = original.stat().st_size, tmp_path / "store.db"
    rng = random.Random(2)
    shutil.copy(original, path)
    assert salvaged(path, written) == 60
    truncate(path, length - 4096)  # the last page
    assert 40 <= salvaged(path, written) <= 60
    truncate(path, length * 3 // 4)
    assert 0 < salvaged(path, written) < 60  # the pages that are left depend on the length of the device's name
    shutil.copy(original, path)
    flip(path, [(at, 255) for at in range(100)])  # overwrite the header
    assert salvaged(path, written) == 60
    for _ in range(20):
        shutil.copy(original, path)
        flip(path, [(rng.randrange(length), 1 << rng.randrange(8)) for _ in range(3)])
        assert salvaged(path, written) >= 30


def test_salvage_reads_the_log_and_counts_lost_records(tmp_path: Path) -> None:
    path, damaged = tmp_path / "store.db", tmp_path / "damaged.db"
    fill(path, 20)
    store = records.open(path)
    more = [record(timed(1.0 + step), point=(step,)) for step in range(5)]
    for appended in more:
        store.append(TASK, appended)
    store.note_command("{}")
    shutil.copy(path, damaged)
    shutil.copy(tmp_path / "store.db-wal", tmp_path / "damaged.db-wal")
    store.close()
    content = bytearray(damaged.read_bytes())
    positions = [at for at in range(len(content)) if content.startswith(b"sketch 0", at)]
    for at in positions[:3]:
        content[at] ^= 1
    damaged.write_bytes(content)
    with records.open() as new:
        result = records.merge(new, damaged)
        merged = {told(r) for r in new.measurements()}
        assert not new.commands()
    assert {told(r) for r in more} <= merged
    assert "damaged" in result.damage
    assert 1 <= result.lost <= 3
    assert result.added + result.lost == 25


def test_a_lost_workload_is_restored_by_a_new_record(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    fill(path, 10)
    content = path.read_bytes()
    at = content.index(b"relu16")
    flip(path, [(at, 1)])
    with records.open() as new:
        assert records.merge(new, path).added == 10
        assert [w.name for w in new.summary()].count("(lost)") == 1
        new.append(TASK, record(timed(2.0)))
        assert {w.name for w in new.summary()} == {"relu16", "relu32"}


SMALL_DISK = """
import resource, signal, sys
from felixlike import records
from felixlike.errors import StoreError
from support.stores import TASK, record, timed
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with records.open(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    done = 0
    try:
        for step in range(1000):
            store.append(TASK, record(timed(1.0), point=(step,) * 40))
            done += 1
    except StoreError as error:
        print(done, error, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append(TASK, record(timed(1.0), point=(-1,)))
"""


def test_a_full_disk_loses_no_reported_record(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    here = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})" + SMALL_DISK, str(path), str(300_000)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    done, words = result.stdout.split(" ", 1)
    assert int(done) > 5
    assert f"{path}: " in words
    assert "the disk has space" in words
    with records.open(path) as store:
        points = [r.point[0] for r in store.measurements()]
    assert points == [*range(int(done)), -1]  # all reported records, and the one written after the limit was lifted


def test_files_of_other_programs_are_not_changed(tmp_path: Path) -> None:
    def foreign(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE birds (name TEXT)")

    def newer(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA application_id = {0x666C6978}")
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE birds (name TEXT)")

    creators: list[Callable[[sqlite3.Connection], None]] = [foreign, newer]
    for number, create in enumerate(creators):
        path = tmp_path / f"{number}.db"
        connection = sqlite3.connect(path)
        create(connection)
        connection.commit()
        connection.close()
        before = path.read_bytes()
        for read_only in (False, True):
            with pytest.raises(StoreError, match=r"\.db: .*(another program|version 99)"):
                Store(path, read_only=read_only)
        with records.open() as store, pytest.raises(StoreError, match=r"\.db: .*(another program|version 99)"):
            records.merge(store, path)
        assert path.read_bytes() == before
