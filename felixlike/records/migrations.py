"""Upgrade a store's tables from version to version inside one transaction, completely or not at all."""

import sqlite3
from collections.abc import Callable

from felixlike.records.schema import INDEX, TABLES, VALUES, VERSION, checksum


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Upgrade a file's tables from `version` to VERSION."""
    for step in range(version, VERSION):
        _STEPS[step](connection)


def _checksums(connection: sqlite3.Connection) -> None:
    """Upgrade 1 → 2: add checksums to rows, and the tables for sketches, runs and commands.

    The tables are created in their newest form; later steps find their changes done."""
    connection.create_function("checksum_of", -1, lambda *values: checksum(values), deterministic=True)
    execute = connection.execute
    execute("DROP INDEX fastest")
    execute("ALTER TABLE measurements RENAME TO old_measurements")
    execute("ALTER TABLE workloads RENAME TO old_workloads")
    for statement in TABLES:
        execute(statement)
    for table in ("workloads", "measurements"):
        names = ", ".join(name for name in VALUES[table] if name != "kernels")
        execute(
            f"INSERT OR IGNORE INTO {table} ({names}, checksum)"
            f" SELECT {names}, checksum_of({names}) FROM old_{table} ORDER BY rowid"
        )
    execute("DROP TABLE old_measurements")
    execute("DROP TABLE old_workloads")


def _kernels(connection: sqlite3.Connection) -> None:
    """Upgrade 2 → 3: add the CUDA compiler's report of the kernels to measurements; checksums do not change."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(measurements)")}
    if "kernels" not in columns:
        connection.execute("ALTER TABLE measurements ADD COLUMN kernels TEXT NOT NULL DEFAULT ''")


def _ukernels(connection: sqlite3.Connection) -> None:
    """Upgrade 3 → 4: add an index of kernels for dynamic sizes, which earlier versions take for schedules."""
    connection.execute(INDEX)


_STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _checksums, 2: _kernels, 3: _ukernels}
