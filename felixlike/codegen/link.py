"""Link compiled kernels into an executable with a description, and read it from a file."""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def relink_relax(lowered: Any, kernels: Any, target: Any, description: str) -> Any:
    """Link a second VM executable from compiled kernels and the constants of a lowered module, with a description.

    A virtual machine writes an entry for each constant into the executable it is made from. For every entry, TVM prints
    a line when the executable is saved and again when it is loaded (src/runtime/vm/executable.cc). The second
    executable is therefore never run.

    Args:
        lowered: The lowered Relax module.
        kernels: The module with the compiled kernels; None without any.
        target: A TVM target.
        description: The text that `description_in` returns.

    Returns:
        The VM executable.
    """
    vm_build = _tvm.vm_build()
    builder = _tvm.relax.ExecBuilder()
    vm_build._vmcodegen(builder, lowered)
    with builder.function(_DESCRIPTION, num_inputs=0):
        builder.emit_call("vm.builtin.copy", [builder.convert_constant(description)], dst=builder.r(0))
        builder.emit_ret(builder.r(0))
    return vm_build.VMExecutable(_tvm.relax_api().VMLink(builder, target, kernels, [], {}))


def kernels_of_runnable(runnable: Any) -> Any:
    """Return the module with the compiled kernels of a runnable module; None without any."""
    kernels = [module for module in runnable.imports if module.kind != "relax.VMExecutable"]
    return kernels[0] if kernels else None


_DESCRIPTION = "felixlike_description"
"""Name of the function that returns the description."""


def description_in(machine: Any) -> str | None:
    """Return the description that `relink_relax` put into an executable, or None. No kernel runs.

    Args:
        machine: The executable's virtual machine.
    """
    try:
        function = machine[_DESCRIPTION]
    except AttributeError:
        return None
    return str(function())


def open_library(path: str) -> Any:
    """Load a runnable module from a shared library, which is closed with the last object that uses it.

    Args:
        path: The shared library.
    """
    _tvm.prepare_launch()
    return _tvm.load_module(path, keep_module_alive=False)
