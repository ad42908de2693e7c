"""Compile an imported model with schedules; run, verify, save and load the result."""

from felixlike._util.atomic_files import check_writable, written_whole
from felixlike.runtime.artefact import (
    export_library,
    from_bytes,
    linker,
    load,
    read_report,
    save,
    save_again,
    to_bytes,
    writer,
)
from felixlike.runtime.batch_buckets import MOST_SIZE as MOST_BATCH
from felixlike.runtime.batch_buckets import Chunked
from felixlike.runtime.bisect import culprit
from felixlike.runtime.callable import Compiled
from felixlike.runtime.compile_model import compile_model
from felixlike.runtime.verification import Verdict, Verification, max_relative_error

__all__ = [
    "MOST_BATCH",
    "Chunked",
    "Compiled",
    "Verdict",
    "Verification",
    "check_writable",
    "compile_model",
    "culprit",
    "export_library",
    "from_bytes",
    "linker",
    "load",
    "max_relative_error",
    "read_report",
    "save",
    "save_again",
    "to_bytes",
    "writer",
    "written_whole",
]
