"""Merge record stores: every measurement is added once, and readable rows of damaged files are recovered.

The input is a store and the path of another one, the output the number of added measurements. Measurements keep the
name of their device. Commands are not merged, since `felixlike resume` runs them. Rows are added in several
transactions, so other processes can write meanwhile.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from felixlike._util import option_checks
from felixlike.errors import SourceLeftOut, StoreError
from felixlike.records.place import UNCOPIED, UNREADABLE, path_of
from felixlike.records.salvage import salvage
from felixlike.records.schema import COLUMNS, VALUES, Row, opened, sealed
from felixlike.records.store import Store

ROWS_AT_ONCE = 1000
"""Rows of one transaction; chosen by hand."""

_MERGED = tuple(table for table in VALUES if table != "commands")
"""Tables that are merged."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Result of a merge.

    Attributes:
        added: Number of new measurements.
        known: Number of measurements that the store had already.
        lost: Lower bound on the number of measurements that could not be read.
        damage: What is wrong with the other file; empty if it is undamaged.
    """

    added: int
    known: int
    lost: int = 0
    damage: str = ""


def merge(store: Store, path: "str | os.PathLike[str]") -> Merged:
    """Add everything of another store except its commands.

    Args:
        store: The store to add to.
        path: Path of the other store. It is not changed and may be read-only.

    Returns:
        The numbers of added, known and lost measurements.

    Raises:
        StoreError: The store cannot be written.
        SourceLeftOut: The other store is the same file, missing, not a store, of a newer version, or so damaged that
            no measurement can be read.
    """
    option_checks.of_kind(store, Store, "store", where="merge", remedy="pass a store from records.open")
    try:
        source = path_of(path)
        if source is None:
            raise StoreError("a store in memory cannot be merged", where=str(path), remedy="give the path of a file")
        if store.path is not None and source.exists() and source.samefile(store.path):
            raise StoreError(_ITSELF, where=str(source), remedy="give the path of another file")
        return _merge(store, source)
    except StoreError as error:
        if error.where == store.file.where and error.what != _ITSELF:
            raise
        raise SourceLeftOut(error.what, where=error.where, remedy=error.remedy) from error


def _merge(store: Store, source: Path) -> Merged:
    """Copy the rows of an undamaged source, else salvage those of a damaged one."""
    try:
        with Store(source, read_only=True) as other:
            return _copy(store, other, str(source))
    except StoreError as error:
        not_damage = error.where != str(source) or error.what.startswith(_SOUND)
        if not_damage or not source.is_file() or not source.stat().st_size:
            raise
        try:
            return _save(store, source, error)
        except OSError as reason:
            if isinstance(reason, StoreError):
                raise
            raise StoreError(
                f"the file cannot be read: {reason.strerror}", where=str(source), remedy="check its permissions"
            ) from reason


_ITSELF = "a store cannot be merged into itself"
_SOUND = ("the store has version", UNREADABLE, UNCOPIED, "database is locked", "unable to open")
"""Beginnings of the messages of StoreErrors that are not about damage."""


def _copy(store: Store, other: Store, where: str) -> Merged:
    """Add the rows of a file that SQLite can read; raise StoreError if it is damaged after all."""
    other.file.check(whole=False)
    with other.file.explained():
        orphan = other.file.execute("PRAGMA foreign_key_check").fetchone()
    if orphan is not None:
        raise other.file.damaged(f"the file is damaged (a row of {orphan[0]} belongs to no row of {orphan[2]})")
    counts = {table: _add(store, table, (_sealed(row, where) for row in other.rows(table))) for table in _MERGED}
    return Merged(*counts["measurements"])


def _sealed(row: Row, where: str) -> Row:
    """Return the row if its checksum is right; add the checksum if it has none (version 1)."""
    try:
        return row if opened(row) and row[-1] is not None else sealed(row[:-1])
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"a row is damaged ({error})", where=where, remedy="recover the other rows with felixlike merge"
        ) from error


def _save(store: Store, path: Path, damage: StoreError) -> Merged:
    """Add the rows that can be salvaged from a damaged file."""
    rows: dict[str, set[Row]] = {table: set() for table in VALUES}
    last = 0
    for table, number, row in salvage(path):
        rows[table].add(row)
        last = max(last, number) if table == "measurements" else last
    tasks = {row[0] for row in rows["workloads"]}
    orphans = {row[0]: row[_TARGET] for row in rows["measurements"] if row[0] not in tasks}
    rows["workloads"] |= {sealed((task, "(lost)", "", target, 0.0)) for task, target in orphans.items()}
    rows["sketches"] = {row for row in rows["sketches"] if row[0] in tasks or row[0] in orphans}
    if not rows["measurements"]:
        raise StoreError(
            f"{damage.what}, and none of its measurements can be read",
            where=str(path),
            remedy="restore it from a backup",
        ) from damage
    counts = {table: _add(store, table, sorted(rows[table], key=repr)) for table in _MERGED}
    return Merged(*counts["measurements"], last - len(rows["measurements"]), damage.what)


_TARGET = COLUMNS.index("target")


def _add(store: Store, table: str, rows: Iterable[Row]) -> tuple[int, int]:
    """Add rows to a table and return the numbers of (new, known) rows."""
    total = new = 0
    for some in _chunks(rows):
        with store.file.explained(), store.file.transaction():
            new += store.add_rows(table, some)
        total += len(some)
    return new, total - new


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield lists of up to ROWS_AT_ONCE rows."""
    iterator = iter(rows)
    while some := list(islice(iterator, ROWS_AT_ONCE)):
        yield some
