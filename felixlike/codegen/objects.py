"""Keep the machine code of single kernels in object files, and link it.

Input: an executable with one function for a CPU. Output: its object file, which any C compiler links into a library
that runs now, or joins with other kernels into the code of a model. LLVM then compiles a kernel once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util import scratch
from felixlike.codegen.compile import compile_primfuncs

_SHARED = ("-shared", "-nostdlib", "-Wl,-z,now")
"""Options for a library that this process uses. The standard libraries are loaded already, and finding them takes most
of a link's time. A missing symbol is an error when the library is opened, not at the first call."""

_JOINED = ("-r", "-nostdlib")
"""Options for one object file of several."""


@dataclass(frozen=True, slots=True)
class KernelObject:
    """The machine code of a task's kernel.

    Attributes:
        module: TVM's JSON of the scheduled module, with the packing of its constants.
        code: Content of the object file.
    """

    module: str
    code: bytes


def write_object(executable: Any, path: Path) -> None:
    """Write the machine code of an executable for a CPU, which was made without Relax, to an object file."""
    executable.mod.write_to_file(str(path), "o")


def open_object(path: Path, compiler: str) -> Any:
    """Link an object file to a library beside it, and load that.

    Args:
        path: The object file.
        compiler: Any C compiler.

    Raises:
        OSError, subprocess.CalledProcessError, RuntimeError: The compiler fails, or the library cannot be loaded.
    """
    library = path.with_suffix(".so")
    _link(compiler, _SHARED, library, path)
    _tvm.prepare_launch()
    return _tvm.load_module(str(library), keep_module_alive=False)


def joined_kernels(lowered: Any, target: Any, objects: Mapping[str, bytes], compiler: str) -> Any | None:
    """Return a module with the kernels of a lowered Relax module, some of which are compiled already.

    Args:
        lowered: The module of `lower_relax`, for a CPU.
        target: A TVM target.
        objects: Object files of some of its functions, by their symbols. Those of `reads_inputs` must check arguments.
        compiler: Any C compiler.

    Returns:
        The module, for `relink_relax`; None if the compiler cannot join the files.
    """
    functions = {v: f for v, f in lowered.functions.items() if isinstance(f, _tvm.PrimFunc)}
    rest = {v: f for v, f in functions.items() if str(f.attrs["global_symbol"]) not in objects}
    with scratch.temporary("kernels") as folder:
        paths = [folder / f"{number}.o" for number in range(len(objects))]
        for path, code in zip(paths, objects.values(), strict=True):
            path.write_bytes(code)
        if rest:
            paths.append(folder / "rest.o")
            write_object(compile_primfuncs(_tvm.IRModule(rest), target), paths[-1])
        joined = folder / "kernels.o"
        try:
            _link(compiler, _JOINED, joined, *paths)
        except (OSError, subprocess.CalledProcessError):  # such as two kernels with a helper of the same name
            return None
        return _tvm.runtime.load_static_library(str(joined), [])


def reads_inputs(lowered: Any) -> set[str]:
    """Return the symbols of a lowered Relax module's kernels that may read a tensor of the caller.

    Only these need checks of their arguments: all other tensors are those that the module itself allocates.
    """
    symbols: set[str] = set()
    for variable, function in lowered.functions.items():
        if not isinstance(function, _tvm.relax.Function):
            continue
        if str(variable.name_hint) != "main":
            symbols |= _kernels_in(function, lowered)
            continue
        inputs = {_tvm.identity(parameter) for parameter in function.params}
        for block in function.body.blocks:
            for binding in block.bindings:
                if inputs.isdisjoint(map(_tvm.identity, _nodes(binding.value, _tvm.relax.Var))):
                    continue
                kernels = _kernels_in(binding.value, lowered)
                symbols |= kernels
                if not kernels:  # such as a view; kernels write to tensors that were allocated before
                    inputs.add(_tvm.identity(binding.var))
    return symbols


def _kernels_in(value: Any, lowered: Any) -> set[str]:
    """Return the symbols of the kernels that a Relax expression names."""
    functions = (lowered[variable] for variable in _nodes(value, _tvm.ir.GlobalVar))
    return {str(func.attrs["global_symbol"]) for func in functions if isinstance(func, _tvm.PrimFunc)}


def _nodes(value: Any, kind: type) -> list[Any]:
    """Return the nodes of a class in a Relax expression."""
    nodes: list[Any] = []
    _tvm.relax.analysis.post_order_visit(value, lambda node: nodes.append(node) if isinstance(node, kind) else None)
    return nodes


def _link(compiler: str, options: tuple[str, ...], output: Path, *inputs: Path) -> None:
    """Run a C compiler on object files."""
    command = (compiler, *options, "-o", str(output), *map(str, inputs))
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
