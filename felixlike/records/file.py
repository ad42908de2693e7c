"""The SQLite file under a store: opening, upgrading, health, transactions, and errors in words.

WAL with synchronous=FULL: killed at any moment, it reopens with everything reported. On a network file system a
rollback journal takes its place: WAL keeps an index of its log in memory that processes share, which those of different
hosts cannot, and their writes would damage the file (https://sqlite.org/wal.html). Several processes may use one file;
each waits its turn. Everything SQLite complains about becomes a StoreError. A file is not touched before it is
known to be a store of a version that is understood.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from felixlike._util import scratch
from felixlike._util.mounts import is_network
from felixlike.errors import StoreError
from felixlike.records.migrations import upgrade
from felixlike.records.place import MEMORY, refuse
from felixlike.records.schema import APPLICATION, TABLES, VERSION

BUSY_MILLISECONDS = 30_000

_SMALL = 8 * 2**20
"""Bytes up to which a file is checked as a whole when it is opened; beyond, rows are checked when they are read."""

_PAGE = 4096
"""Bytes of the smallest store."""

_WAL_FORMAT = b"\2\2"
"""Bytes 18 and 19 of a file that SQLite has switched to WAL; it stays so until it is switched back."""

REPLACE = (
    "give the name of a file that does not exist yet, restore this one from a copy, or save what can be read of it:"
    " felixlike merge NEW.sqlite THIS.sqlite"
)


class StoreFile:
    """An open file, or a store in memory.  where: its name in messages.  version: of its tables, VERSION unless it is
    read only."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.where = "the store in memory" if path is None else str(path)
        self._copy: Path | None = None
        self._network = False
        if path is not None:
            refuse(path, read_only=read_only)
            self._network = is_network(path)
        elif read_only:
            raise StoreError("it is new, so there is nothing to read", where=self.where, remedy="name a file")
        with self.explained():
            self.connection = sqlite3.connect(
                self._address(), timeout=BUSY_MILLISECONDS / 1000, isolation_level=None, uri=True
            )
        try:
            with self.explained():
                self._prepare()
                if not read_only:
                    self._refuse_read_only()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it.  May be called again."""
        with self.explained():
            self.connection.close()
        if self._copy is not None:
            scratch.discard(self._copy)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """One statement."""
        return self.connection.execute(statement, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, alone in the file."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def explained(self) -> Iterator[None]:
        """SQLite's errors as StoreErrors with a remedy."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StoreError(
                str(error), where=self.where, remedy="use a store in the thread that opened it, before it is closed"
            ) from error
        except sqlite3.OperationalError as error:
            if "readonly" in str(error) and not self.read_only:
                raise StoreError(
                    f"it is read-only ({error})",
                    where=self.where,
                    remedy="see that file and directory can be written, or copy the store to where they can",
                ) from error
            raise StoreError(
                str(error),
                where=self.where,
                remedy="see that the file and its directory can be written, the disk has room, and nobody holds a lock",
            ) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.damaged(f"it is damaged or not a store ({error})") from error

    def damaged(self, what: str) -> StoreError:
        """The error that says so."""
        return StoreError(what, where=self.where, remedy=REPLACE)

    def check(self, *, whole: bool = True) -> None:
        """Raise StoreError where SQLite finds the file's structure damaged.  whole: indices too."""
        with self.explained():
            (health,) = self.execute(f"PRAGMA {'integrity' if whole else 'quick'}_check(1)").fetchone()
        if health != "ok":
            raise self.damaged(f"it is damaged ({' '.join(health.split())})")

    def _address(self) -> str:
        """What sqlite3.connect takes: a URI, in which nothing of the path is special."""
        if self.path is None:
            return MEMORY
        path = self.path.absolute()
        if not self.read_only:
            return path.as_uri()
        if self._network and _is_wal(path):
            return self._address_of_copy(path)  # reading it in place would share its log's index with other hosts
        if os.access(path, os.W_OK) and os.access(_folder(path), os.W_OK | os.X_OK):
            return f"{path.as_uri()}?mode=rw"  # so that what SQLite puts beside the file is cleared away again
        log = _log(path)
        if not log.exists() or not log.stat().st_size:
            return f"{path.as_uri()}?immutable=1"
        # SQLite reads a log only with a third file beside it, which it cannot make here: of both, a copy is read.
        return self._address_of_copy(path)

    def _address_of_copy(self, path: Path) -> str:
        """The address of a copy of the file and its log, which is removed when this is closed."""
        self._copy = scratch.folder("store")
        copied = self._copy / "store"
        shutil.copyfile(path, copied)
        if _log(path).exists():
            shutil.copyfile(_log(path), _log(copied))
        return f"{copied.as_uri()}?mode=rw"

    def _prepare(self) -> None:
        """Set the connection up; make the tables of a new file, upgrade those of an old one."""
        self.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        if self._network and not self.read_only and self.path is not None and _is_wal(self.path):
            # With the file to itself, SQLite reads its log without an index that others share.
            self.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.version = self._identify()
        if self.read_only:
            self.execute("PRAGMA query_only = ON")
        else:
            self._set_journal()
            if self.version < VERSION:
                with self.transaction():
                    self._bring_up_to_date()
            self.execute("PRAGMA foreign_keys = ON")
        if self.path is not None and self.path.stat().st_size <= _SMALL:
            self.check()

    def _set_journal(self) -> None:
        """Choose how writes survive a crash: a rollback journal on network file systems, WAL in new files elsewhere.

        A store that has a rollback journal keeps it, since a file server's local disk may be other hosts' network file
        system."""
        wanted = "DELETE" if self._network else "WAL" if self.version == 0 else ""
        if wanted:
            (found,) = self.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
            if self._network and found.upper() != wanted:
                raise StoreError(
                    f"it lies on a network file system, and its journal is {found}, which is not safe there",
                    where=self.where,
                    remedy="close the programs that have it open, or give the path of a file on a local disk",
                )
        if self._network:
            self.execute("PRAGMA locking_mode = NORMAL")  # from the next statement on
        self.execute("PRAGMA synchronous = FULL")

    def _refuse_read_only(self) -> None:
        """Notice now, not after an hour of measuring, what permissions do not tell: a read-only disk, say."""
        with self.transaction():
            pass

    def _bring_up_to_date(self) -> None:
        """Inside a transaction, since another process may be doing the same."""
        self.version = self._identify()
        if self.version == 0:
            for statement in TABLES:
                self.execute(statement)
            self.execute(f"PRAGMA application_id = {APPLICATION}")
        elif self.version < VERSION:
            self.check()  # nothing is copied out of a damaged file unseen
            upgrade(self.connection, self.version)
        self.execute(f"PRAGMA user_version = {VERSION}")
        self.version = VERSION

    def _identify(self) -> int:
        """The version of the file's tables; 0 for an empty file.  Raises StoreError for files that are no store, and
        for stores of a newer version."""
        (application,) = self.execute("PRAGMA application_id").fetchone()
        (version,) = self.execute("PRAGMA user_version").fetchone()
        (tables,) = self.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == version == tables == 0 and not self.read_only:
            if self.path is not None and 0 < self.path.stat().st_size < _PAGE:
                raise self.damaged("it is damaged or not a store (it ends after its first bytes)")  # empty, to SQLite
            return 0
        if application != APPLICATION or version < 1:
            raise StoreError(
                "it is a SQLite file of another program", where=self.where, remedy="give the name of another file"
            )
        if version > VERSION:
            raise StoreError(
                f"it has version {version}, but this felixlike knows only versions up to {VERSION}",
                where=self.where,
                remedy="use the newer felixlike that wrote it, or another file",
            )
        return int(version)


def _is_wal(path: Path) -> bool:
    """Whether there is a file that says that SQLite keeps a log beside it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(20)[18:] == _WAL_FORMAT


def _log(path: Path) -> Path:
    """SQLite's log of a file, which it keeps beside the file itself, whatever links lead there."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + "-wal")


def _folder(path: Path) -> Path:
    return Path(os.path.realpath(path)).parent
