"""A whole model for every size: each contraction gets a kernel of uKernels, everything else runs row by row, or on a
GPU as TVM's default schedules have it.

In: a model, shapes with dimensions. Out: a `Compiled` that takes tensors of every size in range, and what was done.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm, codegen, runtime
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.gpu.plan import pool_for
from felixlike.dynamic.memory import largest_shape
from felixlike.dynamic.operator import read_operator, symbols_of
from felixlike.dynamic.plan import Plan, device_of, plan_operator
from felixlike.dynamic.rows import rowwise
from felixlike.dynamic.sources import read_network
from felixlike.dynamic.workloads import workload_at
from felixlike.errors import CompilationFailed, first_line
from felixlike.frontend import InputSpec, OutputSpec, Sizes
from felixlike.frontend.constants import CONSTANTS, constant_arguments, with_indices
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.relax import leaves
from felixlike.frontend.rewrites.pipeline import fuse_dynamic
from felixlike.hardware import Device, device_name, kind_of, resolve_target
from felixlike.measure import Pool
from felixlike.runtime.constant_packing import Pieces, with_packed_constants


@dataclass(frozen=True, slots=True)
class Part:
    """One function of a model.  name: of it.  key: the same for equal ones.  calls: how often it is called.  plan: of
    its kernel; None of what runs row by row.  flops: of the kernel at the largest sizes."""

    name: str
    key: str
    calls: int
    plan: Plan | None
    flops: float


@dataclass(frozen=True, slots=True)
class Network:
    """compiled: the model.  source: what it was made from.  dims: its dimensions.  parts: its functions, those with a
    kernel first.  seconds: what planning took."""

    compiled: runtime.Compiled
    source: Source
    dims: tuple[Dim, ...]
    parts: tuple[Part, ...]
    seconds: float

    def examples(self) -> list[tuple[Any, ...]]:
        """Inputs of a few sizes: the smallest, those that it was exported with, and the largest."""
        largest = {dim.name: dim.most for dim in self.dims}
        return [self._resized({dim.name: dim.least for dim in self.dims}), self.source.examples, self._resized(largest)]

    def _resized(self, sizes: dict[str, int]) -> tuple[Any, ...]:
        """The examples at other sizes, their elements again and again along dynamic dimensions."""
        import torch

        assert self.compiled.sizes is not None
        found = []
        for tensor, places in zip(self.source.examples, self.compiled.sizes.inputs, strict=True):
            for place, name in enumerate(places):
                if name is not None:
                    tensor = tensor.index_select(place, torch.arange(sizes[name]) % tensor.shape[place])
            found.append(tensor.contiguous())
        return tuple(found)


def compile_network(model: Any, shapes: Any, target: Any = "cpu", *, measure: bool = True) -> Network:
    """Compile a model for all sizes of its dimensions.

    model: as `read_network` takes it, with shapes that have a Dim in them, or an ExportedProgram with dynamic shapes.
    measure: whether programs are timed.  Raises InvalidDim, InvalidShape, InvalidModel and its kinds, UnknownTarget and
    its kinds where the target's device is missing, CompilationFailed."""
    target = resolve_target(target)
    device_name(target)
    return compile_source(*read_network(model, shapes), target, measure=measure)


@dataclass(frozen=True, slots=True)
class Lowered:
    """module: as Relax has it, lowered.  executable: TVM's.  parts: its functions."""

    module: Any
    executable: Any
    parts: tuple[Part, ...]


def compile_source(
    source: Source, dims: dict[str, Dim], target: Any, *, measure: bool = True, kernels: bool = True
) -> Network:
    """The same for a model that was read, and its dimensions by the names that its symbolic sizes have there.

    kernels: False for everything row by row, to compare with."""
    started = time.monotonic()
    lowered = lowered_source(source, dims, target, measure=measure, kernels=kernels)
    main = source.module["main"]
    inputs, sizes = _inputs(main, source, dims)
    compiled = runtime.Compiled(
        lowered.executable.jit(),
        inputs=inputs,
        outputs=_outputs(main, source, dims),
        signature=source.signature,
        structure=source.structure,
        target=target,
        name=source.name,
        lowered=lowered.module,
        parallel=_tvm.runs_in_parallel(lowered.module),
        sizes=sizes,
        unaligned=kind_of(target).on_host,
    )
    return Network(compiled, source, tuple(dims.values()), lowered.parts, time.monotonic() - started)


def lowered_source(
    source: Source, dims: dict[str, Dim], target: Any, *, measure: bool = True, kernels: bool = True
) -> Lowered:
    """The code of a model that was read, which need not be able to run here.  Raises CompilationFailed."""
    try:
        module = fuse_dynamic(source.module, target)
        known = dims if kernels else {}
        with pool_for(target, measure=measure and bool(known)) as pool:
            device = device_of(None, target)
            module, parts, pieces = _planned(module, known, device, target, measure=measure, pool=pool)
        module = with_packed_constants(module, pieces)
        return Lowered(*codegen.compile_relax(module, target), parts)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        raise CompilationFailed(
            f"TVM could not compile the model for all sizes: {first_line(error)}",
            where=source.name,
            remedy="write the part it names with other operators, or optimize it for fixed sizes",
        ) from error


def _planned(
    module: Any, dims: dict[str, Dim], device: Device, target: Any, *, measure: bool, pool: Pool | None = None
) -> tuple[Any, tuple[Part, ...], Pieces]:
    """The module whose functions are scheduled, what they became, and kernels that want packed constants.  pool: as
    `plan_operator` has it."""
    constants = constant_arguments(module)
    calls = _calls(module)
    changed = _tvm.IRModule(dict(module.functions), attrs=module.attrs)
    known: dict[str, Plan | None] = {}
    parts: list[Part] = []
    pieces: dict[str, tuple[Any, Any]] = {}
    for variable, func in module.functions.items():
        name = str(variable.name_hint)
        if not isinstance(func, _tvm.PrimFunc):
            continue
        marked = with_indices(func, CONSTANTS, constants.get(name, ()))
        key = f"{_tvm.structural_hash(marked)} {[str(s.name) for s in symbols_of(func)]}"
        if key not in known:
            own = _dims_of(marked, dims)
            known[key] = None
            if own is not None:
                known[key] = plan_operator(marked, own, device, target, measure=measure, pool=pool, where=name)
        plan = known[key]
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        parts.append(Part(name, digest, calls.get(name, 0), plan, _flops(plan, dims)))
        if plan is None:
            if not kind_of(target).binds_threads:  # else it is left to `codegen.default_schedules`
                changed.update_func(variable, _private(rowwise(func, device.vector_bits // 32)))
        elif plan.packings:
            pieces[name] = (_private(plan.kernel), plan.packings)
        else:
            changed.update_func(variable, _private(plan.kernel))
    parts.sort(key=lambda part: (part.plan is None, part.name))
    return changed, tuple(parts), pieces


def _dims_of(func: Any, dims: dict[str, Dim]) -> list[Dim] | None:
    """The dimensions of a contraction's sizes; None of everything else, and of what has no symbolic size."""
    symbols = symbols_of(func)
    if not symbols or any(str(symbol.name) not in dims for symbol in symbols) or read_operator(func) is None:
        return None
    return [dims[str(symbol.name)] for symbol in symbols]


def _flops(plan: Plan | None, dims: dict[str, Dim]) -> float:
    """Of a kernel, at the largest sizes."""
    if plan is None:
        return 0.0
    largest = [dims[str(symbol.name)].most for symbol in plan.operator.symbols]
    return float(workload_at(plan.operator, largest).flops)


def _private(func: Any) -> Any:
    func = _tvm.without_attributes(func, "global_symbol", CONSTANTS)
    return func.with_attr("tirx.is_scheduled", True).with_attr("tirx.noalias", True)


def _calls(module: Any) -> dict[str, int]:
    """How often each PrimFunc is called."""
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    found: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and node.op == call_tir:
            name = str(node.args[0].name_hint)
            found[name] = found.get(name, 0) + 1

    for function in module.functions.values():
        if isinstance(function, _tvm.relax.Function):
            _tvm.relax.analysis.post_order_visit(function, visit)
    return found


def _inputs(main: Any, source: Source, dims: dict[str, Dim]) -> tuple[tuple[InputSpec, ...], Sizes]:
    """The inputs at their largest, and where sizes are dynamic."""
    specs, places = [], []
    for name, parameter in zip(source.signature.names, main.params, strict=True):
        own = [dims.get(str(size.name)) if isinstance(size, _tvm.tirx.Var) else None for size in _sizes(parameter.ty)]
        specs.append(InputSpec(name, largest_shape(parameter.ty, dims), str(parameter.ty.dtype)))
        places.append(tuple(None if dim is None else dim.name for dim in own))
    ranges = tuple((dim.name, dim.least, dim.most) for dim in {dim.name: dim for dim in dims.values()}.values())
    return tuple(specs), Sizes(ranges, tuple(places))


def _outputs(main: Any, source: Source, dims: dict[str, Dim]) -> tuple[OutputSpec, ...]:
    """The outputs at their largest."""
    pairs = zip(source.structure.places(), leaves(main.ret_ty), strict=True)
    return tuple(OutputSpec(name, largest_shape(kind, dims), str(kind.dtype)) for name, kind in pairs)


def _sizes(kind: Any) -> Sequence[Any]:
    return list(kind.shape.values)
