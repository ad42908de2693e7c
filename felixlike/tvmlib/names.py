"""TVM's names under short ones, from wherever this version keeps them.

Importing this module imports TVM (2–4 s); `felixlike.tvmlib` does so when the first of them is used."""

from __future__ import annotations

from felixlike.interrupts import Terminated
from felixlike.tvmlib.versions import check_versions

check_versions()


import tvm  # noqa: E402
import tvm.s_tir as s_tir  # noqa: E402
import tvm_ffi  # noqa: E402
from tvm import IRModule, ir, relax, rpc, runtime, sym, te, tirx, topi, transform  # noqa: E402
from tvm.ir.instrument import pass_instrument  # noqa: E402
from tvm.ir.utils import derived_object  # noqa: E402
from tvm.s_tir import Schedule, ScheduleError  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.analysis import estimate_tir_flops  # noqa: E402
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply  # noqa: E402
from tvm.s_tir.schedule import Trace  # noqa: E402
from tvm.target import Target  # noqa: E402
from tvm.tirx import PrimFunc  # noqa: E402
from tvm_ffi import _ffi_api, load_module  # noqa: E402
from tvm_ffi.structural import structural_equal, structural_hash, structural_map, structural_walk  # noqa: E402

__all__ = [
    "TVM_ERRORS",
    "IRModule",
    "PostOrderApply",
    "PrimFunc",
    "Schedule",
    "ScheduleError",
    "SessionTimeout",
    "Target",
    "Trace",
    "array_item",
    "derived_object",
    "estimate_tir_flops",
    "ir",
    "load_module",
    "ms",
    "pass_instrument",
    "refusal",
    "relax",
    "rpc",
    "runtime",
    "s_tir",
    "structural_equal",
    "structural_hash",
    "structural_map",
    "structural_walk",
    "sym",
    "te",
    "tirx",
    "topi",
    "transform",
    "tvm",
    "tvm_ffi",
]

array_item = _ffi_api.ArrayGetItem
"""An element of one of TVM's arrays, in half the time of array[i]."""


SessionTimeout = tvm.error.RPCSessionTimeoutError
"""What a call on a server raises once the session's time is up."""


TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""What TVM raises when it refuses something: its FFI turns C++ errors into these (InternalError is a RuntimeError).
Python raises them for our own mistakes, too: ask `refusal` before calling one TVM's."""


def refusal(error: BaseException) -> bool:
    """Whether an error is TVM's, and no mistake of ours: whatever comes out of its FFI carries the error that it was
    there.  An error of a function of ours that TVM calls looks the same, so such functions are called directly where
    that can be."""
    return hasattr(error, "__tvm_ffi_error__")


for _interrupt in (KeyboardInterrupt, Terminated):
    tvm_ffi.register_error(_interrupt.__name__, _interrupt)  # else one that arrives in a callback is a RuntimeError
