"""Compact a record store without losing a measurement.

The input is a store, the output its size before and after. Compaction removes workloads without any measurement, their
sketches, runs that spent no time, the log beside the file, and free pages.
"""

from dataclasses import dataclass
from pathlib import Path

from felixlike.errors import StoreError
from felixlike.records.place import path_of
from felixlike.records.schema import VALUES
from felixlike.records.store import Store


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of a compaction.

    Attributes:
        before: Size of the file and its log before, bytes.
        after: Size of the file and its log after, bytes.
        measurements: Number of measurements in the store; all of them were read and are undamaged.
    """

    before: int
    after: int
    measurements: int


def compact(path: "str | Path") -> Compacted:
    """Compact the store in a file. Other processes may have it open; they wait meanwhile.

    Args:
        path: Path of the store.

    Returns:
        The sizes before and after, and the number of measurements.

    Raises:
        StoreError: A row is damaged, the disk has no space for a second copy of the file, or another process locks the
            file for too long. The store is unchanged.
    """
    place = path_of(path)
    if place is None:
        raise StoreError("a store in memory uses no disk space", where=str(path), remedy="give the path of a file")
    Store(place, read_only=True).close()  # raises for a missing file, which must not be created
    before = _bytes(place)
    with Store(place) as store:
        store.file.check()
        for table in VALUES:
            for _ in store.values(table):
                pass
        count = store.count()
        with store.file.explained():
            with store.file.transaction():
                store.file.execute("DELETE FROM sketches WHERE task NOT IN (SELECT task FROM measurements)")
                store.file.execute("DELETE FROM workloads WHERE key NOT IN (SELECT task FROM measurements)")
                store.file.execute("DELETE FROM runs WHERE seconds = 0")
            store.file.execute("VACUUM")
            store.file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return Compacted(before, _bytes(place), count)


def _bytes(path: Path) -> int:
    """Return the size of the file and its log, bytes."""
    log = path.with_name(path.name + "-wal")
    return sum(p.stat().st_size for p in (path, log) if p.is_file())
