"""Run a candidate's process: build a module, and on request call, check and time it.

The input is messages from the pool: a build request, a run request, and any number of turns. The output is one answer
to each. This follows MetaSchedule's default_build (tvm/s_tir/meta_schedule), without files, a C++ compiler or a new
Python process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from felixlike import _tvm, codegen
from felixlike.hardware import kind_of, placement
from felixlike.hardware.occupancy import Kernel
from felixlike.measure import messages
from felixlike.measure.check.runner import Built, Parameters, failure, packed_file, run
from felixlike.measure.child import rpc_session_process
from felixlike.measure.child.confine import confine, limit_memory
from felixlike.measure.measurement import Status
from felixlike.measure.packing import Packing, compiled_packings, cut, kernel_name, packing_functions

_PACK = "pack"
"""Prefix of the names of functions that pack constants, followed by a number; see `Built`."""


def main(channel_fd: int, server: int) -> NoReturn:
    """Serve one candidate, then exit without cleaning up the state that is copied from the server."""
    try:
        confine(server)
        _serve(socket.socket(fileno=channel_fd))
    except BaseException:
        os._exit(1)
    os._exit(0)


def prepare() -> None:
    """Compile a small function. Processes that are forked afterwards find TVM's passes and LLVM initialized.

    Each of them compiles in some 13 ms less on a Zen 4, of 50 ms or more."""
    index, a, b = _tvm.tirx.Var("i", "int32"), *(_tvm.tirx.decl_buffer((1,), "float32", name=name) for name in "ab")
    body = _tvm.tirx.For(index, 0, 1, _tvm.tirx.ForKind.SERIAL, _tvm.tirx.BufferStore(b, a[index] + 1.0, [index]))
    module = _tvm.IRModule({"main": _tvm.PrimFunc([a, b], body).with_attr("global_symbol", "main")})
    build(str(_tvm.ir.save_json(module)), _tvm.Target({"kind": "llvm", "opt-level": 0}))


def _serve(channel: socket.socket) -> None:
    """Receive the requests of one candidate and answer them."""
    request = messages.receive(channel)
    limit_memory(request["memory"])
    if "server" in request:
        messages.send(channel, rpc_session_process.visit_without_rights(request, channel.fileno()))
        return
    started = time.perf_counter()
    try:
        target = _tvm.Target(request["target"])
        if "export" in request:
            code = export(request["module"], target, **request["export"])
            messages.send(channel, {"status": Status.OK, "code": code, "elapsed": time.perf_counter() - started})
            return
        kernels: list[Kernel] = []
        if "object" in request:
            built, code = build_object(request["module"], target, **request["object"])
        else:
            built, code = build(request["module"], target, kernels)
        device = _tvm.device_of(target)
        device.sync()  # creates a GPU's context now, while others build, and not between two timings
    except Exception as error:
        messages.send(channel, failure(error, Status.BUILD_ERROR, started))
        return
    reports = [kernel.told() for kernel in kernels]
    elapsed = time.perf_counter() - started
    messages.send(channel, {"status": Status.OK, "code": code, "kernels": reports, "elapsed": elapsed})
    request = messages.receive(channel)
    started = time.perf_counter()
    stopwatch = None
    try:
        if device.type == "cpu":
            placement.hold()
        answer, stopwatch = run(built, device, request)
    except Exception as error:
        answer = failure(error, Status.RUN_ERROR, started)
    messages.send(channel, {**answer, "elapsed": time.perf_counter() - started})
    while stopwatch is not None:
        request = messages.receive(channel)
        started = time.perf_counter()
        repeats = stopwatch.turn(request["calls"])
        messages.send(channel, {"status": Status.OK, "repeats": repeats, "elapsed": time.perf_counter() - started})


def build(module: str, target: Any, kernels: list[Kernel] | None = None) -> tuple[Built, str]:
    """Compile a module for a target.

    "main" is looked up so that LLVM generates its machine code here, not at the first call.

    Args:
        module: TVM's JSON of the IRModule.
        target: TVM's target.
        kernels: Receives the CUDA compiler's report of each kernel.

    Returns:
        The library and the digest of its code.
    """
    loaded = _tvm.load_graph(module)
    if kind_of(target).on_host:
        executable, code, built = _compile_apart(loaded["main"], target, "main")
    else:
        executable, packed = _compile(loaded, target, kernels)
        code = codegen.code_digest(executable)
        built = partial(Built, packed=packed, parameters=_parameters(loaded["main"]))
    result = built(executable.jit())
    result.library[result.name]
    return result, code


def build_object(module: str, target: Any, *, path: str, name: str, compiler: str) -> tuple[Built, str]:
    """Compile a module for a CPU like `build`, and write the machine code of its kernel to an object file.

    The model takes the kernel from the file, so it is compiled as for the model: under its name there, and without
    the functions that pack constants. The library is linked from the file, since LLVM would
    compile the kernel again in memory.

    Args:
        module: TVM's JSON of the IRModule.
        target: TVM's target.
        path: Path of the object file.
        name: Name of the module's function in the model.
        compiler: Any C compiler.
    """
    executable, code, built = _compile_apart(_tvm.load_graph(module)["main"], target, name)
    codegen.write_object(executable, Path(path))
    try:
        library = codegen.open_object(Path(path), compiler)
    except (*_tvm.TVM_ERRORS, OSError, subprocess.CalledProcessError):  # a compiler without these options
        library = executable.jit()
    result = built(library)
    result.library[result.name]
    return result, code


def export(module: str, target: Any, *, path: str, compiler: str) -> str:
    """Compile a module to a library file for servers, with the list of its packed constants beside it.

    Args:
        module: TVM's JSON of the IRModule.
        target: TVM's target.
        path: Path of the library; intermediate files lie beside it.
        compiler: Any C compiler, which links the library.

    Returns:
        The digest of the code.
    """
    executable, packed = _compile(_tvm.load_graph(module), target)
    executable.export_library(path, cc=compiler, workspace_dir=os.path.dirname(path))
    packed_file(Path(path)).write_text(json.dumps(packed))
    return codegen.code_digest(executable)


def _parameters(func: Any) -> Parameters | None:
    """Return the shape and the dtype of each parameter; None if one is not a compact buffer of known sizes."""
    parameters = []
    for parameter in func.params:
        sizes = getattr(parameter, "shape", None)
        if sizes is None or parameter.strides or not all(isinstance(size, _tvm.tirx.IntImm) for size in sizes):
            return None
        parameters.append(([int(size) for size in sizes], str(parameter.dtype)))
    return parameters


def _compile_apart(func: Any, target: Any, name: str) -> tuple[Any, str, Callable[[Any], Built]]:
    """Compile a function for this machine's CPU, and apart from it the functions that pack its constants.

    Returns the kernel's executable, the digest of all code, and what makes a Built of the kernel's library."""
    parameters = _parameters(func)
    kernel, packings = cut(func)
    name = kernel_name(name, packings)
    functions = _tvm.IRModule({name: kernel.with_attr("global_symbol", name)})
    executable = codegen.compile_primfuncs(functions, target, checks_arguments=parameters is None)
    code, packer = codegen.code_digest(executable), None
    if packings:
        packing = compiled_packings(_by_name(packings))
        code, packer = code + codegen.code_digest(packing), packing.jit()
    packed = _descriptions(packings)
    return executable, code, partial(Built, packed=packed, parameters=parameters, name=name, packer=packer)


def _compile(
    module: Any, target: Any, kernels: list[Kernel] | None = None
) -> tuple[Any, list[tuple[int, Sequence[int], str]]]:
    """Compile an IRModule, with separate functions that pack constants.

    Returns the executable and (parameter, shape, dtype) of each packed constant."""
    names = [str(variable.name_hint) for variable in module.get_global_vars()]
    kernel, packings = cut(module["main"]) if "main" in names else (module, ())  # servers get other functions, too
    if not packings:
        return codegen.compile_primfuncs(module, target, kernels=kernels), []
    functions = packing_functions(_by_name(packings), target)
    functions["main"] = kernel.with_attr("global_symbol", "main")
    executable = codegen.compile_primfuncs(functions, target, kernels=kernels)
    if kernels is not None:
        kernels[:] = [kernel for kernel in kernels if not kernel.name.startswith(_PACK)]
    return executable, _descriptions(packings)


def _by_name(packings: Sequence[Packing]) -> dict[str, Packing]:
    """Return packings by the names of their functions in a library."""
    return {f"{_PACK}{i}": packing for i, packing in enumerate(packings)}


def _descriptions(packings: Sequence[Packing]) -> list[tuple[int, Sequence[int], str]]:
    """Return (parameter, shape, dtype) of each packed constant."""
    return [(packing.parameter, packing.shape, packing.dtype) for packing in packings]
