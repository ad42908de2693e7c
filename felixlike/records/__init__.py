"""Nothing measured is lost: one SQLite file of workloads and measurements."""

from felixlike.records.record import Record, make_record
from felixlike.records.store import Store, WorkloadSummary, open  # noqa: A004

__all__ = ["Record", "Store", "WorkloadSummary", "make_record", "open"]
