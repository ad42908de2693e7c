"""Compile a whole model for every size.

Each contraction with symbolic sizes gets a kernel of uKernels. Functions of fixed sizes are tasks for schedules, as in
other models. Everything else runs row by row on CPUs and with TVM's default schedules on GPUs. Input: a model, shapes
with dimensions. Output: a `Compiled` that accepts tensors of every size in range, and its parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from felixlike import _tvm, codegen, runtime
from felixlike._util.garbage import collecting_later
from felixlike.dynamic.bench import Timings
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.gpu.plan import pool_for
from felixlike.dynamic.inputs import doubtful_sizes, dynamic_inputs, resized, sizes_of_examples
from felixlike.dynamic.memory import largest_shape
from felixlike.dynamic.operator import read_operator, symbols_of
from felixlike.dynamic.plan import Plan, device_of, plan_operator
from felixlike.dynamic.planner import Planner, Timed
from felixlike.dynamic.rows import rowwise
from felixlike.dynamic.sources import read_network
from felixlike.dynamic.workloads import workload_at
from felixlike.errors import CompilationFailed, first_line
from felixlike.frontend import OutputSpec
from felixlike.frontend.constants import (
    CONSTANTS,
    LEAST_INFINITE,
    constant_arguments,
    largest_finite,
    with_indices,
)
from felixlike.frontend.extract import extract
from felixlike.frontend.imported import Imported, Source
from felixlike.frontend.importers.pytorch_regions import check_target, operators_in
from felixlike.frontend.importers.relax import leaves
from felixlike.frontend.rewrites.pipeline import fuse_dynamic
from felixlike.frontend.signature.layouts import in_users_order
from felixlike.hardware import Device, device_name, kind_of, resolve_target
from felixlike.runtime.compile_model import as_private
from felixlike.runtime.constant_packing import Pieces, with_packed_constants
from felixlike.runtime.fresh_outputs import with_fresh_outputs


@dataclass(frozen=True, slots=True)
class Part:
    """One function of a model.

    Attributes:
        name: Its name.
        key: Hash that is equal for equal functions.
        calls: How often it is called.
        plan: The plan of its kernel, None without uKernels.
        flops: Floating-point operations of the kernel at the largest sizes.
        is_fixed: Whether it has neither symbolic sizes nor numbers that are computed from these.
        layers: What its call sites compute, see `layers.layers_of`.
    """

    name: str
    key: str
    calls: int
    plan: Plan | None
    flops: float
    is_fixed: bool = False
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """A compiled model.

    Attributes:
        compiled: The compiled model.
        source: The imported model.
        dims: The Dim of each symbolic size, by its name in the source.
        parts: Its functions, those with a plan first.
        seconds: Compilation time in seconds, planning included.
    """

    compiled: runtime.Compiled
    source: Source
    dims: dict[str, Dim]
    parts: tuple[Part, ...]
    seconds: float

    def examples(self) -> Iterator[tuple[Mapping[str, int], tuple[Any, ...]]]:
        """Yield sizes by name and inputs of them: smallest sizes, those of the examples, largest and doubtful ones."""
        sizes = self.compiled.sizes
        assert sizes is not None
        dims = self.dims.values()
        for numbers in (
            {dim.name: dim.least for dim in dims},
            sizes_of_examples(self.source, sizes),
            {dim.name: dim.most for dim in dims},
            *doubtful_sizes(self.source, sizes, self.dims),
        ):
            if sizes.broken(numbers) is None:
                yield numbers, resized(self.source, sizes, numbers)


def compile_network(model: Any, shapes: Any, target: Any = "cpu", *, measure: bool = True) -> Network:
    """Compile a model for all sizes of its dimensions.

    Args:
        model: As for `read_network`.
        shapes: Shapes with a `Dim` in them, or None for an ExportedProgram with dynamic shapes.
        target: "cpu", "cuda" or a TVM target.
        measure: Whether programs are timed.

    Returns:
        The compiled model and its parts.

    Raises:
        InvalidDim: A dimension is invalid.
        InvalidShape: The shapes do not match the model.
        InvalidModel: The model cannot be imported.
        UnknownTarget: The target is unknown, or its device is missing.
        CompilationFailed: TVM cannot compile the model.
    """
    target = resolve_target(target)
    device_name(target)
    return compile_source(*read_network(model, shapes), target, measure=measure)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered model.

    Attributes:
        module: The lowered Relax module.
        executable: TVM's executable.
        parts: The functions.
    """

    module: Any
    executable: Any
    parts: tuple[Part, ...]


def compile_source(
    source: Source,
    dims: dict[str, Dim],
    target: Any,
    *,
    measure: bool = True,
    kernels: bool = True,
    planner: Planner = Timed(),  # noqa: B008  immutable
    timings: Timings | None = None,
) -> Network:
    """Compile an imported model, without schedules for its functions of fixed sizes.

    Args:
        source: The model.
        dims: The Dim of each symbolic size of the source, by its name there.
        target: The TVM target.
        measure: Whether programs are timed.
        kernels: If False, everything runs row by row, for comparison.
        planner: How the programs of kernels are chosen.
        timings: The timings of the run, with its store and limits. None for new ones without limits.
    """
    planned = plan_source(source, dims, target, measure=measure, kernels=kernels, planner=planner, timings=timings)
    return planned.network(planned.compiled({}))


@collecting_later()
def plan_source(
    source: Source,
    dims: dict[str, Dim],
    target: Any,
    *,
    measure: bool = True,
    kernels: bool = True,
    planner: Planner = Timed(),  # noqa: B008  immutable
    timings: Timings | None = None,
) -> Planned:
    """Fuse an imported model and plan its functions with symbolic sizes.

    The target need not exist on this machine. See `compile_source` for the arguments. Raise CompilationFailed or
    UnsupportedOperator.
    """
    started = time.monotonic()
    check_target(source.module, target, source.name)
    kernel_dims = dims if kernels else {}
    measure = measure and planner.measures
    with _explained(source), pool_for(target, measure=measure and bool(kernel_dims)) as pool:
        module, layers = fuse_dynamic(source.module, target)
        device = device_of(None, target)
        plan = partial(
            plan_operator,
            target=target,
            planner=planner,
            measure=measure,
            pool=pool,
            timings=timings or Timings(),
        )
        module, parts, pieces = _planned(module, layers, kernel_dims, device, target, plan)
    return Planned(source, dims, target, module, parts, pieces, started)


@dataclass(frozen=True, slots=True)
class Planned:
    """A fused model whose functions with symbolic sizes are planned. Those with fixed sizes have no schedule yet.

    Attributes:
        source: The imported model.
        dims: The Dim of each symbolic size, by its name in the source.
        target: The TVM target.
        module: The fused module, with planned kernels.
        parts: All functions.
        pieces: Kernels with packed constants, which are not in the module yet.
        started: When planning started, by `time.monotonic`.
    """

    source: Source
    dims: dict[str, Dim]
    target: Any
    module: Any
    parts: tuple[Part, ...]
    pieces: Pieces
    started: float

    def imported(self) -> Imported:
        """Return the model with its functions of fixed sizes as tasks. On GPUs it has none."""
        source = self.source
        names = self.fixed if kind_of(self.target).on_host else ()
        tasks, functions = extract(
            self.module, self.target, {part.name: part.layers for part in self.parts}, names=names
        )
        inputs, _ = dynamic_inputs(source.module["main"], source, self.dims)
        return source.imported(self.module, self.target, inputs=inputs, tasks=tasks, functions=functions)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the functions of fixed sizes."""
        return tuple(part.name for part in self.parts if part.is_fixed)

    @collecting_later()
    def lowered(self, schedules: Mapping[str, Any]) -> Lowered:
        """Lower the model.

        Args:
            schedules: Scheduled functions of fixed sizes by name. Those without a schedule run row by row on CPUs, and
                with TVM's default schedules on GPUs.
        """
        with _explained(self.source):
            module = _tvm.IRModule(dict(self.module.functions), attrs=self.module.attrs)
            lanes = _lanes(device_of(None, self.target))
            for name in self.fixed:
                variable = module.get_global_var(name)
                if name in schedules:
                    module.update_func(variable, as_private(schedules[name]))
                elif not kind_of(self.target).binds_threads:  # on GPUs `codegen.default_schedules` does it
                    module.update_func(variable, as_private(rowwise(module[variable], lanes)))
            module = with_packed_constants(module, self.pieces)
            module = with_fresh_outputs(module, self.source.roots, changed=len(self.source.mutations.places))
            return Lowered(*codegen.compile_relax(module, self.target), self.parts)

    def compiled(self, schedules: Mapping[str, Any]) -> runtime.Compiled:
        """Compile the model; see `lowered` for the argument."""
        source = self.source
        lowered = self.lowered(schedules)
        main = source.module["main"]
        inputs, sizes = dynamic_inputs(main, source, self.dims)
        return runtime.Compiled(
            lowered.executable.jit(),
            inputs=inputs,
            outputs=_outputs(main, source, self.dims),
            signature=source.signature,
            structure=source.structure,
            target=self.target,
            name=source.name,
            lowered=lowered.module,
            parallel=_tvm.runs_in_parallel(lowered.module),
            sizes=sizes,
            unaligned=kind_of(self.target).on_host,
            mutations=source.mutations,
            pytorch=operators_in(source.module),
        )

    def network(self, compiled: runtime.Compiled) -> Network:
        """Return the compiled model with its parts."""
        return Network(compiled, self.source, self.dims, self.parts, time.monotonic() - self.started)


@contextlib.contextmanager
def _explained(source: Source) -> Iterator[None]:
    """Raise CompilationFailed for what TVM refuses."""
    try:
        yield
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        raise CompilationFailed(
            f"TVM could not compile the model for all sizes: {first_line(error)}",
            where=source.name,
            remedy="rewrite the part that the message names with other operators, or optimize for fixed sizes",
        ) from error


def _planned(
    module: Any,
    layers: Mapping[str, tuple[str, ...]],
    dims: dict[str, Dim],
    device: Device,
    target: Any,
    plan_function: Callable[..., Plan],
) -> tuple[Any, tuple[Part, ...], Pieces]:
    """Schedule the functions with symbolic sizes; return the module, its parts, and kernels with packed constants.

    layers: What the call sites of each function compute.
    plan_function: Plans a function for its dimensions and a device, under a name.
    """
    constants = constant_arguments(module)
    calls = _calls(module)
    exact = _unrounded(module) if device.multiplies_pairs else set()
    scheduled = _tvm.IRModule(dict(module.functions), attrs=module.attrs)
    plans: dict[str, Plan | None] = {}
    parts: list[Part] = []
    pieces: dict[str, tuple[Any, Any]] = {}
    for variable, func in module.functions.items():
        name = str(variable.name_hint)
        if not isinstance(func, _tvm.PrimFunc):
            continue
        marked = with_indices(func, CONSTANTS, constants.get(name, ()))
        key = f"{_tvm.structural_hash(marked)} {[str(s.name) for s in symbols_of(func)]}"
        key += " float32" if name in exact else ""
        if key not in plans:
            func_dims = _dims_of(marked, dims)
            plans[key] = None
            if func_dims is not None:
                may_round = device.multiplies_pairs and name not in exact
                plans[key] = plan_function(
                    marked, func_dims, device=replace(device, multiplies_pairs=may_round), where=name
                )
        plan = plans[key]
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        is_fixed = not symbols_of(func) and all(map(_tvm.tirx.is_buffer_var, func.params))
        parts.append(Part(name, digest, calls.get(name, 0), plan, _flops(plan, dims), is_fixed, layers.get(name, ())))
        if plan is None:
            if not (is_fixed or kind_of(target).binds_threads):
                scheduled.update_func(variable, as_private(rowwise(func, _lanes(device))))
        elif plan.packings:
            pieces[name] = (as_private(plan.kernel), plan.packings)
        else:
            scheduled.update_func(variable, as_private(plan.kernel))
    parts.sort(key=lambda part: (part.plan is None, part.name))
    return scheduled, tuple(parts), pieces


def _dims_of(func: Any, dims: dict[str, Dim]) -> list[Dim] | None:
    """Return the dimensions of a contraction with symbolic sizes; None for other functions."""
    symbols = symbols_of(func)
    if not symbols or any(str(symbol.name) not in dims for symbol in symbols) or read_operator(func) is None:
        return None
    return [dims[str(symbol.name)] for symbol in symbols]


def _flops(plan: Plan | None, dims: dict[str, Dim]) -> float:
    """Return the floating-point operations of a kernel at the largest sizes, 0 without a plan."""
    if plan is None:
        return 0.0
    largest = [dims[str(symbol.name)].most for symbol in plan.operator.symbols]
    return float(workload_at(plan.operator, largest).flops)


def _lanes(device: Device) -> int:
    """Return how many float32 elements a vector of a device has."""
    return device.vector_bits // 32


def _calls(module: Any) -> Mapping[str, int]:
    """Return how often each PrimFunc is called."""
    return Counter(str(call.args[0].name_hint) for call in _call_sites(module))


def _unrounded(module: Any) -> set[str]:
    """Return the names of the PrimFuncs with a constant that has a finite number which bfloat16 makes infinite."""
    return {
        str(call.args[0].name_hint)
        for call in _call_sites(module)
        for argument in call.args[1].fields
        if isinstance(argument, _tvm.ir.GenericConst) and largest_finite(argument) >= LEAST_INFINITE
    }


def _call_sites(module: Any) -> list[Any]:
    """Return all calls of PrimFuncs."""
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    calls: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op == call_tir:
            calls.append(node)

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return calls


def _outputs(main: Any, source: Source, dims: dict[str, Dim]) -> tuple[OutputSpec, ...]:
    """Return the output specifications at the largest sizes."""
    names = source.structure.places()
    specs = []
    for place, (name, kind) in enumerate(zip(names, list(leaves(main.ret_ty))[: len(names)], strict=True)):
        shape, order = largest_shape(kind, dims), source.orders[place] if source.orders else ()
        specs.append(OutputSpec(name, in_users_order(shape, order), str(kind.dtype), order))
    return tuple(specs)
