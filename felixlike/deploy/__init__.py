"""From an imported model and schedules to something that runs, is verified, saved and loaded."""

from felixlike.deploy.artefact import export_library, from_bytes, linker, load, read_report, save, save_again, to_bytes
from felixlike.deploy.callable import Compiled
from felixlike.deploy.chunks import MOST_SIZE as MOST_BATCH
from felixlike.deploy.chunks import Chunked
from felixlike.deploy.compile import compile_model
from felixlike.deploy.culprit import culprit
from felixlike.deploy.verify import Verdict, Verification, max_relative_error
from felixlike.output import check_writable, written_whole

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
    "written_whole",
]
