"""TVM's names under short ones, from wherever this version keeps them.

Importing this module imports TVM (2–4 s); `felixlike._tvm` does so when the first of them is used."""

from __future__ import annotations

import os
from pathlib import Path

from felixlike._tvm.versions import check_versions
from felixlike._util.interrupts import Terminated
from felixlike.errors import CompilationFailed, MissingCompiler

check_versions()


import tvm as tvm  # noqa: E402
import tvm_ffi as tvm_ffi  # noqa: E402
from tvm import IRModule as IRModule  # noqa: E402
from tvm import ir as ir  # noqa: E402
from tvm import relax as relax  # noqa: E402
from tvm import rpc as rpc  # noqa: E402
from tvm import runtime as runtime  # noqa: E402
from tvm import s_tir as s_tir  # noqa: E402
from tvm import sym as sym  # noqa: E402
from tvm import te as te  # noqa: E402
from tvm import tirx as tirx  # noqa: E402
from tvm import topi as topi  # noqa: E402
from tvm import transform as transform  # noqa: E402
from tvm.ir.instrument import pass_instrument as pass_instrument  # noqa: E402
from tvm.ir.utils import derived_object as derived_object  # noqa: E402
from tvm.s_tir import Schedule as Schedule  # noqa: E402
from tvm.s_tir import ScheduleError as ScheduleError  # noqa: E402
from tvm.s_tir import meta_schedule  # noqa: E402
from tvm.s_tir.analysis import estimate_tir_flops as estimate_tir_flops  # noqa: E402
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply as PostOrderApply  # noqa: E402
from tvm.s_tir.schedule import Trace as Trace  # noqa: E402
from tvm.target import Target as Target  # noqa: E402
from tvm.tirx import PrimFunc as PrimFunc  # noqa: E402
from tvm_ffi import _ffi_api  # noqa: E402
from tvm_ffi import load_module as load_module  # noqa: E402
from tvm_ffi.structural import structural_equal as structural_equal  # noqa: E402
from tvm_ffi.structural import structural_hash as structural_hash  # noqa: E402
from tvm_ffi.structural import structural_map as structural_map  # noqa: E402
from tvm_ffi.structural import structural_walk as structural_walk  # noqa: E402

ms = meta_schedule


array_item = _ffi_api.ArrayGetItem
"""An element of one of TVM's arrays, in half the time of array[i]."""


SessionTimeout = tvm.error.RPCSessionTimeoutError
"""What a call on a server raises once the session's time is up."""


TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""What TVM raises when it refuses something: its FFI turns C++ errors into these (InternalError is a RuntimeError).
Python raises them for our own mistakes, too: ask `refusal` before calling one TVM's."""


def refusal(error: BaseException) -> bool:
    """Whether an error is TVM's, and no mistake of ours: whatever comes out of its FFI carries the error that it was
    there, unless a function raised it that is not TVM's, but was called by it."""
    return hasattr(error, "__tvm_ffi_error__") and raised_in_tvm(error)


def raised_in_tvm(error: BaseException) -> bool:
    """Whether an error was raised in C++ or in TVM's own Python, be it that this was called in a wrong way.

    What comes out of the FFI has in its traceback the frames of all languages, down to where it was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else frame.tb_frame.f_code.co_filename
    return file.startswith(_FOLDERS) or not file.endswith(".py")


_FOLDERS = tuple(f"{Path(package.__path__[0])}{os.sep}" for package in (tvm, tvm_ffi))
"""Where TVM's Python is."""


for _own in (KeyboardInterrupt, Terminated, CompilationFailed, MissingCompiler):
    tvm_ffi.register_error(_own.__name__, _own)  # else one that is raised in a callback becomes a RuntimeError
