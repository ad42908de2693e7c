"""The only module that knows TVM's unstable import paths, and the versions they are true for.

In: nothing. Out: TVM's names under short ones; everyone else imports them from here. Importing this module imports TVM
(2–4 s), so the package does it only when something needs TVM.
"""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from felixlike.errors import VersionMismatch

TVM_VERSION = "0.27"
FFI_VERSION = "0.1.14"


def check_versions(installed: dict[str, str] | None = None) -> None:
    """Raise VersionMismatch unless TVM and its FFI are the versions this package was written for.

    installed: package name → version; None reads what is installed. Called before TVM is imported, since
    apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault: too late for an exception."""
    for package, wanted in (("apache-tvm", TVM_VERSION), ("apache-tvm-ffi", FFI_VERSION)):
        try:
            found = metadata.version(package) if installed is None else installed[package]
        except (metadata.PackageNotFoundError, KeyError):
            found = "none"
        if found != wanted and not found.startswith(wanted + "."):
            raise VersionMismatch(
                f"{package} is {found}, but {wanted}.* is needed",
                where="installed packages",
                remedy='install what the constraints file names: pip install "apache-tvm==0.27.0.post1" '
                '"apache-tvm-ffi>=0.1.14,<0.1.15"',
            )


check_versions()

import tvm  # noqa: E402
import tvm.s_tir as s_tir  # noqa: E402
from tvm import IRModule, ir, relax, runtime, te, tirx, topi, transform  # noqa: E402
from tvm.ir.instrument import pass_instrument  # noqa: E402
from tvm.s_tir import Schedule, ScheduleError  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.analysis import estimate_tir_flops  # noqa: E402
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply  # noqa: E402
from tvm.s_tir.schedule import Trace  # noqa: E402
from tvm.target import Target  # noqa: E402
from tvm.tirx import PrimFunc  # noqa: E402
from tvm_ffi.structural import structural_hash, structural_map, structural_walk  # noqa: E402

__all__ = [
    "IRModule",
    "PostOrderApply",
    "PrimFunc",
    "Schedule",
    "ScheduleError",
    "Target",
    "Trace",
    "check_versions",
    "estimate_tir_flops",
    "host_cpu",
    "ir",
    "ms",
    "pass_instrument",
    "relax",
    "runtime",
    "s_tir",
    "structural_hash",
    "structural_map",
    "structural_walk",
    "te",
    "tirx",
    "topi",
    "transform",
    "tune_context",
    "tvm",
    "version",
]

_INTRINSICS = "tvm.s_tir.tensor_intrin"


def version() -> str:
    """TVM's version, as stored beside measurements."""
    return str(tvm.__version__)


def host_cpu() -> str:
    """LLVM's name of the processor of this machine."""
    return str(tvm.target.codegen.llvm_get_system_cpu())


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Let a TuneContext be made without importing TVM's tensor intrinsics, which takes 20 s.

    TuneContext imports `tvm.s_tir.tensor_intrin`, whose ~500 TVMScript functions each walk inspect.stack(). The plain
    "llvm" and "cuda" rules never look an intrinsic up, so an empty module stands in for the import, and is
    taken away again: others in this process still get the real one."""
    if _INTRINSICS in sys.modules:
        yield
        return
    stand_in = types.ModuleType(_INTRINSICS)
    sys.modules[_INTRINSICS] = stand_in
    s_tir.tensor_intrin = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_INTRINSICS) is stand_in:
            del sys.modules[_INTRINSICS]
        if getattr(s_tir, "tensor_intrin", None) is stand_in:
            del s_tir.tensor_intrin


def tune_context(module: Any, target: Any, *, rules: str = "llvm", seed: int = 1) -> Any:
    """A MetaSchedule context for one PrimFunc's module under a named set of rules ("llvm" or "cuda").

    The kind is given explicitly because TVM otherwise picks rules by the target, silently."""
    with without_tensor_intrinsics():
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules),
            search_strategy="replay-trace",
            task_name="main",
            rand_state=seed,
            num_threads=1,
        )
