"""Import TVM's names from the paths of this TVM version.

Importing this module imports TVM (1–4 s). `felixlike._tvm` imports it when one of the names is first used.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from felixlike._tvm.loading import quickly
from felixlike._util import supported
from felixlike._util.interrupts import Terminated
from felixlike.errors import CompilationFailed, MissingCompiler

supported.check()

with quickly():
    import tvm as tvm

import tvm.s_tir.schedule._type_checker as type_checker  # noqa: E402
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
from tvm.relax.op import base as relax_base  # noqa: E402
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
from tvm_ffi.serialization import from_json_graph_str  # noqa: E402
from tvm_ffi.structural import structural_equal as structural_equal  # noqa: E402
from tvm_ffi.structural import structural_hash as structural_hash  # noqa: E402
from tvm_ffi.structural import structural_map as structural_map  # noqa: E402
from tvm_ffi.structural import structural_walk as structural_walk  # noqa: E402

ms = meta_schedule

type_checker._dispatcher = functools.cache(type_checker._dispatcher)
"""A call of a schedule's method looks up the type of each argument, which takes longer than many of the methods."""

load_graph = from_json_graph_str
"""Read what `ir.save_json` of this version has written. `ir.load_json` is slower: it converts older formats first."""


_raise_unless = relax_base.relax_assert_op
"""TVM's function that compiled models call for each check of a value."""


def _check(condition: Any, text: Any, *arguments: Any) -> None:
    """Raise an error unless a condition holds. TVM's function copies each condition, which takes some microseconds."""
    on_host = isinstance(condition, runtime.Tensor) and condition.device.type == "cpu"
    if not (on_host and ctypes.c_bool.from_address(condition.data_ptr()).value):
        _raise_unless(condition, text, *arguments)


tvm_ffi.register_global_func("relax.run.assert_op", _check, override=True)


array_item = _ffi_api.ArrayGetItem
"""Return an element of a TVM array, in half the time of array[i]."""


SessionTimeout = tvm.error.RPCSessionTimeoutError
"""Raised by a call on a server after the session has timed out."""


TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""Errors that TVM raises: its FFI turns C++ errors into these (InternalError is a RuntimeError). Python raises them for
felixlike's own mistakes, too, so check with `refusal`."""


def refusal(error: BaseException) -> bool:
    """Return whether an error is TVM's, and not a mistake in felixlike.

    Errors that come out of TVM's FFI have an attribute. A function that is not TVM's, but was called by TVM, may have
    raised them.
    """
    return hasattr(error, "__tvm_ffi_error__") and raised_in_tvm(error)


def raised_in_tvm(error: BaseException) -> bool:
    """Return whether an error was raised in C++ or in TVM's own Python, even if a wrong call is the cause.

    The traceback of an error that comes out of the FFI has the frames of all languages, down to where it was raised.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else frame.tb_frame.f_code.co_filename
    return file.startswith(_FOLDERS) or not file.endswith(".py")


def register_vectorizable(name: str, lowered: Callable[[Any], Any]) -> None:
    """Register an operator of TIR, without effects, that TVM's vectorizer makes an operator of vectors.

    Args:
        name: The operator's name, which begins with "tirx.".
        lowered: Returns the expression that replaces a call of it on CPUs after that.
    """
    ir._ffi_api.RegisterOp(name, lowered.__doc__ or name)
    for attribute, value in (("TVectorizable", True), ("TCallEffectKind", _PURE)):
        ir._ffi_api.RegisterOpAttr(name, attribute, value, 10)
    tirx.register_intrin_lowering(name, target="llvm", f=lowered)


_PURE = 1
"""TVM's CallEffectKind of a function without effects."""

_FOLDERS = tuple(f"{Path(package.__path__[0])}{os.sep}" for package in (tvm, tvm_ffi))
"""Folders of TVM's Python code."""


for _error in (KeyboardInterrupt, Terminated, CompilationFailed, MissingCompiler):
    tvm_ffi.register_error(_error.__name__, _error)  # otherwise one raised in a callback becomes a RuntimeError
