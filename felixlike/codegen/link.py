"""Compiled kernels linked into an executable with a text in it, and read back from a file."""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def relink_relax(lowered: Any, runnable: Any, target: Any, description: str) -> Any:
    """A second VM executable over the compiled kernels of a runnable module and the same constants, never run, with a
    description that `description_in` reads.

    A virtual machine writes an entry per constant into the executable it is made from, and every one of them makes
    TVM print a line when the executable is saved and again when it is loaded (src/runtime/vm/executable.cc)."""
    vm_build = _tvm.vm_build()
    builder = _tvm.relax.ExecBuilder()
    vm_build._vmcodegen(builder, lowered)
    with builder.function(_DESCRIPTION, num_inputs=0):
        builder.emit_call("vm.builtin.copy", [builder.convert_constant(description)], dst=builder.r(0))
        builder.emit_ret(builder.r(0))
    kernels = [module for module in runnable.imports if module.kind != "relax.VMExecutable"]
    library = kernels[0] if kernels else None
    return vm_build.VMExecutable(_tvm.relax_api().VMLink(builder, target, library, [], {}))


_DESCRIPTION = "felixlike_description"
"""Name of a function without parameters."""


def description_in(machine: Any) -> str | None:
    """The text that `relink_relax` put into the executable of a virtual machine; None where there is none.  Runs no
    kernel."""
    try:
        function = machine[_DESCRIPTION]
    except AttributeError:
        return None
    return str(function())


def open_library(path: str) -> Any:
    """A runnable module from a shared library, which is closed again with the last object that uses it."""
    return _tvm.load_module(path, keep_module_alive=False)
