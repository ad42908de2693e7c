"""Import parts of TVM that few callers need, on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from felixlike._tvm.names import TVM_ERRORS, relax, transform


def dlight() -> Any:
    """Return TVM's module of default GPU schedules."""
    from tvm.s_tir import dlight

    return dlight


def nvcc() -> Any:
    """Return TVM's module that calls nvcc."""
    from tvm.support import nvcc

    return nvcc


def relax_pipeline(kind: str) -> Any:
    """Return TVM's module of passes over a fused Relax module, for a target kind."""
    return import_module(f"tvm.relax.backend.{_BACKENDS[kind]}.pipeline")


_BACKENDS = {"llvm": "cpu_generic", "cuda": "cuda"}
"""TVM's folder of a target kind."""


def with_last_pass(name: str, change: Callable[[Any], Any]) -> str:
    """Register TVM's pipeline with one more pass over host functions, after all others, and return TVM's name of it.

    change: Maps a lowered IRModule to one that LLVM's code generator takes.
    """
    pipelines = import_module("tvm.tirx.compilation_pipeline")
    name = f"felixlike.{name}"

    def with_one_more() -> Any:
        lower, host, device = pipelines.get_tir_pipeline("s_tir")
        last = transform.module_pass(lambda module, _: change(module), opt_level=0)
        return lower, lambda: transform.Sequential([host(), last]), device

    pipelines.register_tir_pipeline(name, with_one_more)
    return name


def vm_build() -> Any:
    """Return TVM's module that makes executables of Relax's virtual machine."""
    from tvm.relax import vm_build

    return vm_build


def relax_api() -> Any:
    """Return the functions of Relax that have no Python wrapper."""
    from tvm.relax import _ffi_api

    return _ffi_api


def torch_importer() -> Any:
    """Return TVM's module that translates an ExportedProgram to Relax."""
    from tvm.relax.frontend.torch import exported_program_translator

    return exported_program_translator


def onnx_importer() -> Any:
    """Return TVM's module that translates an ONNX model to Relax."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return onnx_frontend


@contextmanager
def onnx_converters(more: Mapping[str, Any]) -> Iterator[None]:
    """Let TVM's ONNX importer know more converters, by operator. They replace those of the same names."""
    importer = onnx_importer()
    with _importing:
        original = importer._get_convert_map
        importer._get_convert_map = lambda: {**original(), **more}
        try:
            yield
        finally:
            importer._get_convert_map = original


@contextmanager
def builders_end_their_blocks() -> Iterator[None]:
    """Let an importer fail without TVM's warnings on stderr about blocks that were not ended.

    BlockBuilder leaves the outermost block of a function open when an error passes through its scope, and its
    destructor then prints a warning (src/relax/ir/block_builder.cc).
    """

    def leave(builder: Any, kind: Any, error: Any, at: Any) -> None:
        if kind is not None:
            with suppress(*TVM_ERRORS):
                builder._end_block()
        original(builder, kind, error, at)

    with _importing:
        original = relax.BlockBuilder._exit_function_scope
        relax.BlockBuilder._exit_function_scope = leave
        try:
            yield
        finally:
            relax.BlockBuilder._exit_function_scope = original


_importing = threading.RLock()
"""Held while BlockBuilder or the ONNX importer is patched."""
