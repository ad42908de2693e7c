"""Keep workloads and measurements in a record store: one SQLite file."""

from felixlike.records.compacting import Compacted, compact
from felixlike.records.merging import Merged, merge
from felixlike.records.place import path_of
from felixlike.records.record import Record, make_record
from felixlike.records.run import Run, make_run
from felixlike.records.store import Brief, Store, StoredWorkload, WorkloadSummary, open  # noqa: A004

__all__ = [
    "Brief",
    "Compacted",
    "Merged",
    "Record",
    "Run",
    "Store",
    "StoredWorkload",
    "WorkloadSummary",
    "compact",
    "make_record",
    "make_run",
    "merge",
    "open",
    "path_of",
]
