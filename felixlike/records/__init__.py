"""Nothing measured is lost: one SQLite file of workloads and measurements."""

from felixlike.records.record import Record, make_record
from felixlike.records.run import Run, make_run
from felixlike.records.store import Brief, Store, StoredWorkload, WorkloadSummary, open  # noqa: A004

__all__ = [
    "Brief",
    "Record",
    "Run",
    "Store",
    "StoredWorkload",
    "WorkloadSummary",
    "make_record",
    "make_run",
    "open",
]
