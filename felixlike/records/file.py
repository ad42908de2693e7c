"""Open, upgrade and check the SQLite file of a record store, and run its transactions.

The journal is a write-ahead log (WAL) with synchronous=FULL: a process may be killed at any moment, and the file
reopens with everything that was committed. On a network file system a rollback journal is used instead: WAL needs an
index of its log in shared memory, which processes of different hosts cannot share, so their writes would damage the
file (https://sqlite.org/wal.html). Several processes may use one file; each waits for the lock. Every error of SQLite
becomes a StoreError. A file is not written before it is identified as a store of a known version.
"""

import os
import shutil
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from felixlike._util import scratch
from felixlike._util.mounts import is_network
from felixlike.errors import StoreError
from felixlike.records.migrations import upgrade
from felixlike.records.place import MEMORY, UNCOPIED, WRITABLE, refuse
from felixlike.records.schema import APPLICATION, TABLES, VERSION

BUSY_MILLISECONDS = 30_000
"""Time to wait for another process's lock, ms; chosen by hand."""

CHECKED_BYTES = 8 * 2**20
"""Largest size of a file that is checked as a whole when it is opened, bytes; chosen by hand.

The rows of larger files are checked when they are read."""

_PAGE = 4096
"""Size of the smallest store, bytes: SQLite's default page."""

_ATTEMPTS = 5
"""Largest number of times that a store is copied to be read; chosen by hand."""

_LOG_HEADER = 32
"""Bytes at the start of a log that differ for each log (SQLite's file format)."""

_WAL_FORMAT = b"\2\2"
"""Bytes 18 and 19 of a file in WAL mode, which is permanent until the mode is changed back (SQLite's file format)."""

REPLACE = (
    "use a new file, restore this one from a backup, or recover its readable measurements:"
    " felixlike merge NEW.sqlite THIS.sqlite"
)


class StoreFile:
    """Open SQLite file, or SQLite database in memory.

    Attributes:
        path: Path of the file; None in memory.
        read_only: Whether the file must not be changed.
        where: Name of the store in error messages.
        version: Version of the tables. It is VERSION unless the file is read-only.
        connection: SQLite's connection.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.where = "the store in memory" if path is None else str(path)
        self._copy: Path | None = None
        self._network = False
        if path is not None:
            refuse(path, read_only=read_only)
            self._network = is_network(path)
        elif read_only:
            raise StoreError("it is new and empty", where=self.where, remedy="give the path of a file to read")
        with self.explained():
            self.connection = sqlite3.connect(
                self._address(), timeout=BUSY_MILLISECONDS / 1000, isolation_level=None, uri=True
            )
        weakref.finalize(self, _close, self.connection).atexit = False
        try:
            with self.explained():
                self._prepare()
                if not read_only:
                    self._refuse_read_only()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. Calling it again has no effect."""
        with self.explained():
            self.connection.close()
        if self._copy is not None:
            scratch.discard(self._copy)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self.connection.execute(statement, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body as an immediate transaction; roll back if it raises."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let all statements of the body read the same state of the file."""
        nested = self.connection.in_transaction
        if nested:
            yield
            return
        self.execute("BEGIN")
        try:
            yield
        finally:
            if self.connection.in_transaction:  # SQLite ends it itself after some errors
                self.execute("ROLLBACK")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert SQLite's errors into StoreErrors with a remedy."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise StoreError(
                str(error),
                where=self.where,
                remedy="use a store only in the thread that opened it, before it is closed",
            ) from error
        except sqlite3.OperationalError as error:
            if "readonly" in str(error) and not self.read_only:
                raise StoreError(
                    f"the store is read-only ({error})",
                    where=self.where,
                    remedy=WRITABLE,
                ) from error
            raise StoreError(
                str(error),
                where=self.where,
                remedy="check that the file and its directory are writable, the disk has space, and no other process"
                " locks the store",
            ) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.damaged(f"the file is damaged or not a store ({error})") from error

    def damaged(self, what: str) -> StoreError:
        """Return the StoreError for a damaged file."""
        return StoreError(what, where=self.where, remedy=REPLACE)

    def check(self, *, whole: bool = True) -> None:
        """Raise StoreError if SQLite finds the file's structure damaged. `whole` includes the indices."""
        with self.explained():
            (health,) = self.execute(f"PRAGMA {'integrity' if whole else 'quick'}_check(1)").fetchone()
        if health != "ok":
            raise self.damaged(f"the file is damaged ({' '.join(health.split())})")

    def _address(self) -> str:
        """Return the URI for sqlite3.connect, with the path's special characters escaped."""
        if self.path is None:
            return MEMORY
        path = self.path.absolute()
        if not self.read_only:
            return path.as_uri()
        if self._network and _is_wal(path):
            return self._address_of_copy(path)  # reading in place would share the log's index with other hosts
        if os.access(path, os.W_OK) and os.access(_folder(path), os.W_OK | os.X_OK):
            return f"{path.as_uri()}?mode=rw"  # lets SQLite remove the files that it creates beside the store
        if not any(_log_headers(path)):
            return f"{path.as_uri()}?immutable=1"
        # SQLite must write here to read the log, or to undo what a killed process has begun, so a copy is read.
        return self._address_of_copy(path)

    def _address_of_copy(self, path: Path) -> str:
        """Copy the file and its logs and return the copy's URI; `close` removes the copy.

        They are copied again if SQLite has begun a new log meanwhile, since the copies would be of different states."""
        self._copy = scratch.folder("store")
        target = self._copy / "store"
        try:
            for _ in range(_ATTEMPTS):
                before = _log_headers(path)
                shutil.copyfile(path, target)
                for log, copy in zip(_logs(path), _logs(target), strict=True):
                    copy.unlink(missing_ok=True)
                    with suppress(FileNotFoundError):
                        shutil.copyfile(log, copy)
                if _log_headers(path) == before:
                    return f"{target.as_uri()}?mode=rw"
        except OSError as error:
            scratch.discard(self._copy)
            raise StoreError(
                f"{UNCOPIED}: {error.strerror}",
                where=self.where,
                remedy="check that it is readable, or set TMPDIR to a folder with more space",
            ) from error
        scratch.discard(self._copy)
        raise StoreError(
            f"{UNCOPIED}: another process writes much to it",
            where=self.where,
            remedy="read it later, or where its directory is writable",
        )

    def _prepare(self) -> None:
        """Configure the connection; create the tables of a new file, upgrade those of an old one."""
        self.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        if self._network and not self.read_only and self.path is not None and _is_wal(self.path):
            # In exclusive mode, SQLite reads its log without a shared index.
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
        if self.path is not None and self.path.stat().st_size <= CHECKED_BYTES:
            self.check()

    def _set_journal(self) -> None:
        """Set the journal mode: a rollback journal on network file systems, WAL in new files elsewhere.

        A store that has a rollback journal keeps it, since a file server's local disk may be a network file system for
        other hosts."""
        mode = "DELETE" if self._network else "WAL" if self.version == 0 else ""
        if mode:
            actual_mode = self._journal(mode)
            if self._network and actual_mode.upper() != mode:
                raise StoreError(
                    f"the file is on a network file system, where its journal mode {actual_mode} is not safe",
                    where=self.where,
                    remedy="close the programs that use it, or give the path of a file on a local disk",
                )
        if self._network:
            self.execute("PRAGMA locking_mode = NORMAL")  # from the next statement on
        self.execute("PRAGMA synchronous = FULL")

    def _journal(self, mode: str) -> str:
        """Set the journal mode and return the actual one.

        Where two connections set the mode of a new file, each could wait for the other, so SQLite waits for neither
        and says that the file is locked; the second attempt finds the mode set."""
        end = time.monotonic() + BUSY_MILLISECONDS / 1000
        while True:
            try:
                return str(self.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _refuse_read_only(self) -> None:
        """Raise StoreError now, not after an hour of measuring, if the file cannot be written (a read-only disk)."""
        with self.transaction():
            pass

    def _bring_up_to_date(self) -> None:
        """Create or upgrade the tables; needs a transaction, since another process may be doing the same."""
        self.version = self._identify()
        if self.version == 0:
            for statement in TABLES:
                self.execute(statement)
            self.execute(f"PRAGMA application_id = {APPLICATION}")
        elif self.version < VERSION:
            self.check()  # the upgrade must not copy rows of a damaged file unnoticed
            upgrade(self.connection, self.version)
        self.execute(f"PRAGMA user_version = {VERSION}")
        self.version = VERSION

    def _identify(self) -> int:
        """Return the version of the file's tables, 0 for an empty file.

        Raises StoreError if the file is not a store or has a newer version."""
        with self._snapshot():  # another process may be creating the tables
            (application,) = self.execute("PRAGMA application_id").fetchone()
            (version,) = self.execute("PRAGMA user_version").fetchone()
            (tables,) = self.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == version == tables == 0 and not self.read_only:
            if self.path is not None and 0 < self.path.stat().st_size < _PAGE:
                raise self.damaged(
                    "the file is damaged or not a store (it ends after its first bytes)"
                )  # SQLite takes it for empty
            return 0
        if application == version == tables == 0:
            raise StoreError(
                "the file is empty: nothing was saved in it", where=self.where, remedy="give the path of another file"
            )
        if application != APPLICATION or version < 1:
            raise StoreError(
                "the file is a SQLite database of another program",
                where=self.where,
                remedy="give the path of another file",
            )
        if version > VERSION:
            raise StoreError(
                f"the store has version {version}, but this felixlike supports only versions up to {VERSION}",
                where=self.where,
                remedy="use the newer felixlike that wrote it, or another file",
            )
        return int(version)


def _is_wal(path: Path) -> bool:
    """Return whether the file exists and is in WAL mode."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(20)[18:] == _WAL_FORMAT


def _logs(path: Path) -> tuple[Path, Path]:
    """Return the paths of SQLite's write-ahead log and rollback journal, beside the file that links resolve to."""
    real = Path(os.path.realpath(path))
    return real.with_name(f"{real.name}-wal"), real.with_name(f"{real.name}-journal")


def _log_headers(path: Path) -> tuple[bytes, ...]:
    """Return the headers of SQLite's logs, which differ for each log; empty without one."""
    return tuple(map(_header, _logs(path)))


def _header(log: Path) -> bytes:
    """Return the header of one log."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        return file.read(_LOG_HEADER)
    return b""


def _folder(path: Path) -> Path:
    """Return the folder of the file that links resolve to."""
    return Path(os.path.realpath(path)).parent


def _close(connection: sqlite3.Connection) -> None:
    """Close the connection of a dropped store, unless another thread, which alone may close it, opened it."""
    with suppress(sqlite3.ProgrammingError):
        connection.close()
