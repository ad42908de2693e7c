"""A store made as small as it can be without losing a measurement.

In: a store. Out: its size before and after. Dropped: workloads without any measurement, their sketches, runs that
spent no time, the log beside the file, and the pages that were free.
"""

from dataclasses import dataclass
from pathlib import Path

from felixlike.errors import StoreError
from felixlike.records.place import path_of
from felixlike.records.schema import VALUES
from felixlike.records.store import Store


@dataclass(frozen=True, slots=True)
class Compacted:
    """before, after: bytes.  measurements: how many there are, all of them read and found sound."""

    before: int
    after: int
    measurements: int


def compact(path: "str | Path") -> Compacted:
    """Compact the store in this file. Others may use it meanwhile, but wait. Raises StoreError, and changes nothing,
    if a row is damaged, the disk has no room for a second copy of the file, or another process holds it too long."""
    place = path_of(path)
    if place is None:
        raise StoreError("a store in memory takes no disk", where=str(path), remedy="name a file")
    Store(place, read_only=True).close()  # a file that is not there is not to be made
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
    """Of the file and its log."""
    log = path.with_name(path.name + "-wal")
    return sum(p.stat().st_size for p in (path, log) if p.is_file())
