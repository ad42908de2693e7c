"""Compile an imported model with the schedules of its tasks.

Inputs: an imported model and scheduled PrimFuncs by task key. Output: `Compiled`. Nothing is legalized or fused again,
so the compiled functions are the tuned ones. Parameters are constants of the executable, packed at compile time if a
schedule requires it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from felixlike import _tvm, codegen, hardware
from felixlike._util.garbage import collecting_later
from felixlike._util.spent import on
from felixlike._util.torch_modes import default_modes
from felixlike._util.wording import kind_of
from felixlike.errors import CompilationFailed, InvalidModel, InvalidSchedule, OutputNotWritable, first_line
from felixlike.frontend import Imported, outputs_of
from felixlike.frontend.constants import CONSTANTS, LAYOUT_FREE
from felixlike.frontend.importers.pytorch_regions import operators_in
from felixlike.measure.packing import cut, kernel_name
from felixlike.runtime.artefact import linked_model
from felixlike.runtime.callable import Compiled
from felixlike.runtime.constant_packing import with_packed_constants
from felixlike.runtime.fresh_outputs import with_fresh_outputs
from felixlike.runtime.in_place_kernels import with_writes_in_place

_OTHERWISE = "rewrite the part that the message names with other operators"


@default_modes()
@collecting_later()
def compile_model(
    imported: Imported,
    schedules: Mapping[str, Any] | None = None,
    *,
    linked: bool = False,
    objects: Mapping[str, codegen.KernelObject] | None = None,
) -> Compiled:
    """Compile a model with schedules for some or all of its tasks.

    Args:
        imported: The model.
        schedules: Maps task keys to a scheduled PrimFunc, an IRModule with "main", or a Schedule. Other tasks remain
            unscheduled.
        linked: Whether to link a model for a CPU into a shared library, which `save` writes as it is, instead of
            generating its machine code in memory. It takes as long. It has no effect if the model cannot be saved:
            without a C compiler, without a kernel, with outputs that have no name in a file.
        objects: Machine code of kernels by the names of their tasks. A linked model takes it for the functions that are
            equal to these kernels and do not read the model's inputs. Only the others are compiled.

    Returns:
        The compiled model.

    Raises:
        InvalidSchedule: A key is unknown, or a schedule is not one of its task.
        CompilationFailed: TVM could not compile the model.
    """
    on_host = hardware.kind_of(imported.target).on_host
    linked = linked and on_host and hardware.c_compiler() is not None
    with _refusals_named(imported, schedules):
        lowered = _lowered(imported, schedules)
        kernels = _known_kernels(lowered, imported.target, objects) if linked and objects else None
        executable = codegen.compile_lowered(lowered, imported.target) if kernels is None else None
    attributes: dict[str, Any] = {
        "inputs": imported.inputs,
        "outputs": outputs_of(imported.module["main"], imported.structure, imported.orders, where=imported.name),
        "signature": imported.signature,
        "structure": imported.structure,
        "target": imported.target,
        "name": imported.name,
        "parallel": _tvm.runs_in_parallel(lowered),
        "unaligned": on_host,
        "mutations": imported.mutations,
        "pytorch": operators_in(imported.module),
    }
    with on("linking"):
        if linked:
            if executable is not None:
                kernels = codegen.kernels_of_runnable(executable.jit())
            with suppress(CompilationFailed, InvalidModel, OutputNotWritable):
                return linked_model(kernels, lowered, attributes)
        if executable is None:
            with _refusals_named(imported, schedules):
                executable = codegen.compile_lowered(lowered, imported.target)
        return Compiled(executable.jit(), lowered=lowered, **attributes)


def lowered_model(imported: Imported, schedules: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """Return (lowered Relax module, executable) of a model, as `compile_model` does.

    The target need not be able to run on this machine."""
    with _refusals_named(imported, schedules):
        lowered = _lowered(imported, schedules)
        return lowered, codegen.compile_lowered(lowered, imported.target)


def _lowered(imported: Imported, schedules: Mapping[str, Any] | None) -> Any:
    """Return the lowered Relax module of a model with its schedules."""
    module = imported.module
    chosen = {key: _primfunc(schedule) for key, schedule in (schedules or {}).items()}
    if chosen:
        module = _substitute(imported, chosen)
    if hardware.kind_of(imported.target).on_host:
        module = with_writes_in_place(module, imported.mutations.places)
    module = with_fresh_outputs(module, imported.roots, changed=len(imported.mutations.places))
    return codegen.lower_relax(with_packed_constants(module), imported.target)


def _known_kernels(lowered: Any, target: Any, objects: Mapping[str, codegen.KernelObject]) -> Any | None:
    """Return the module with the kernels of a lowered model, of which those with known machine code are not compiled.

    None if there are none, or if they cannot be joined."""
    functions = {str(f.attrs["global_symbol"]): f for f in lowered.functions.values() if isinstance(f, _tvm.PrimFunc)}
    for name in codegen.reads_inputs(lowered):
        functions.pop(name, None)
    codes: dict[str, bytes] = {}
    for task_name, known in objects.items():
        kernel, packings = cut(_tvm.load_graph(known.module)["main"])
        name = kernel_name(task_name, packings)
        if name in functions and _tvm.structural_equal(_bare(kernel), _bare(functions[name])):
            codes[name] = known.code
    compiler = hardware.c_compiler()
    return codegen.joined_kernels(lowered, target, codes, compiler) if codes and compiler is not None else None


def _bare(func: Any) -> Any:
    """Return a function without the attributes that do not change its machine code."""
    return _tvm.without_attributes(func, "global_symbol", "tirx.is_scheduled", LAYOUT_FREE, CONSTANTS)


@contextmanager
def _refusals_named(imported: Imported, schedules: Mapping[str, Any] | None) -> Iterator[None]:
    """Raise CompilationFailed in place of TVM's errors."""
    try:
        yield
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        raise CompilationFailed(
            f"TVM could not compile the model: {first_line(error)}",
            where=imported.name,
            remedy='a schedule may be the cause: try the schedules of space="default"' if schedules else _OTHERWISE,
        ) from error


def _primfunc(schedule: Any) -> Any:
    """Return the PrimFunc of a PrimFunc, an IRModule or a Schedule. Raise InvalidSchedule."""
    if isinstance(schedule, _tvm.PrimFunc):
        return schedule
    module = schedule.mod if isinstance(schedule, _tvm.Schedule) else schedule
    if not isinstance(module, _tvm.IRModule) or "main" not in [str(var.name_hint) for var in module.get_global_vars()]:
        raise InvalidSchedule(
            f"expected a schedule of a task, got {kind_of(schedule)}",
            where="schedules",
            remedy='give a PrimFunc, an IRModule with "main", or a Schedule',
        )
    return module["main"]


def _substitute(imported: Imported, chosen: Mapping[str, Any]) -> Any:
    """Return the module with each task's functions replaced by its schedule."""
    names = {task.key: task.name for task in imported.tasks}
    module = _tvm.IRModule(dict(imported.module.functions), attrs=imported.module.attrs)
    for key, func in chosen.items():
        if key not in imported.functions:
            raise InvalidSchedule(
                f"the model has no task {key!r}",
                where=imported.name,
                remedy="use the keys of the tasks that felixlike.extract_tasks returns",
            )
        for name in imported.functions[key]:
            original = imported.module[name]
            if _signature(func) != _signature(original):
                raise InvalidSchedule(
                    f"expected buffers {_signature(original)}, got a schedule with {_signature(func)}",
                    where=names[key],
                    remedy="give a schedule of this task",
                )
            module.update_func(imported.module.get_global_var(name), as_private(func))
    return module


def as_private(func: Any) -> Any:
    """Return a scheduled function without its symbol, marked so that no pass schedules it again."""
    func = _tvm.without_attributes(func, "global_symbol", LAYOUT_FREE, CONSTANTS)
    return func.with_attr("tirx.is_scheduled", True).with_attr("tirx.noalias", True)


def _signature(func: Any) -> str:
    """Return the dtypes and shapes of a function's parameters, as text."""
    shapes = ((parameter, getattr(parameter, "shape", None)) for parameter in func.params)
    return ", ".join("scalar" if s is None else f"{p.dtype}[{', '.join(map(str, s))}]" for p, s in shapes)
