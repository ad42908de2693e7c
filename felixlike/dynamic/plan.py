"""Plan an operator with symbolic sizes: one kernel for every size, from FTuner's filter, DietCode's model and timings.

Input: a PrimFunc or Task, its dimensions, a device. Output: a `DynamicKernel`, or a `Plan` to compile into a larger
module. The number of timings does not grow with the number of sizes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from felixlike import _tvm, codegen
from felixlike._util.torch_modes import default_modes
from felixlike._util.wording import shown
from felixlike.codegen.pair_functions import LANES
from felixlike.dynamic.bench import Timings
from felixlike.dynamic.bounds import fits_registers
from felixlike.dynamic.construct import tile_programs
from felixlike.dynamic.dims import Dim, check_dims
from felixlike.dynamic.dispatch import Tree, highest_of, programs_of, statements
from felixlike.dynamic.emit import Pool, emit
from felixlike.dynamic.gpu.plan import Planned, plan_blocks, pool_for
from felixlike.dynamic.joint import Instances, checked, with_instances
from felixlike.dynamic.kernel import Buffer, DynamicKernel, Report
from felixlike.dynamic.memory import size_shown
from felixlike.dynamic.operator import Operator, read_operator, symbols_of
from felixlike.dynamic.planner import DietCode, FTuner, Planner, Timed, check_target, make_planner
from felixlike.dynamic.program import Program
from felixlike.dynamic.search import Found, Search
from felixlike.dynamic.selection import CPU, TILES
from felixlike.dynamic.sia import tile_scores
from felixlike.dynamic.stages import STAGES, Stage, compile_stage
from felixlike.dynamic.timing import TileBench
from felixlike.dynamic.ukernel import UKernels, Workload
from felixlike.dynamic.workloads import workloads_of
from felixlike.errors import InvalidDevice, InvalidDim, InvalidModel, InvalidOption, NoUKernels
from felixlike.frontend import Task
from felixlike.hardware import (
    Device,
    check_device,
    described,
    device_name,
    kind_of,
    read_description,
    resolve_target,
    target_device,
)
from felixlike.hardware.vectors import TILE
from felixlike.measure import Pool as MeasuringPool
from felixlike.measure.packing import Packing


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned operator.

    Attributes:
        operator: The operator.
        tiles: The uKernels: (rows, vectors) on a CPU, `BlockTile`s on a GPU.
        tree: Decision tree that chooses a program by the sizes of a call.
        kernel: The generated PrimFunc.
        packings: Packings of constant operands, none or one.
        report: How the plan was made.
        rounds: Whether its factors are rounded to bfloat16.
    """

    operator: Operator
    tiles: tuple[Any, ...]
    tree: Tree[Any]
    kernel: Any
    packings: tuple[Packing, ...]
    report: Report
    rounds: bool = False


@default_modes()
def compile(
    task: Any,
    dims: Any,
    device: Any = None,
    sia: Any = None,
    *,
    planner: Any = None,
    measure: bool | None = None,
    instances: Instances | None = None,
) -> DynamicKernel:
    """Compile an operator for all sizes of its dimensions.

    Args:
        task: A Task or PrimFunc whose buffers have symbolic sizes; the last buffer is the output.
        dims: One Dim per symbolic size, with its name. A single one may have any name.
        device: A Device, the name of a hardware preset, or the path of a .toml file. None for this machine.
        sia: Three weights of the SIA score, or a `Sia`. None for the planner's, which are 1, 1, 1 if it is a name.
        planner: How programs are chosen: "timed" (default), "ftuner" (as published, without timings), "dietcode" (its
            search, on GPUs), or an object with options such as `FTuner(psi=1)`.
        measure: Whether programs are timed; None if the planner decides. If False, they are ranked by formulas alone.
        instances: Joint sizes for which programs are chosen, in the order of `dims`; see `felixlike.instances`. None
            for all combinations of the sizes of each Dim.

    Returns:
        A kernel to call with torch tensors.

    Raises:
        InvalidDim: The dimensions do not match the symbolic sizes, or an instance is out of their ranges.
        InvalidDevice: The device description is invalid or does not match the target.
        InvalidOption: The planner or the SIA weights are invalid, or `measure` contradicts the planner.
        InvalidModel: `task` is not a Task or PrimFunc, or not a contraction with an elementwise epilogue.
        NoUKernels: No uKernel fits the device.
        NoGPU: The target needs a GPU to measure on, and there is none.

    Example:
        kernel = dynamic.compile(func, fx.Dim("T", range(1, 129)))
        y = kernel(x, w, b)
    """
    func, name, target = _function_of(task)
    chosen_planner = make_planner(planner, sia)
    measure = _measures(chosen_planner, measure)
    checked_dims = check_dims(dims)
    if instances is not None:
        checked_dims = tuple(with_instances({dim.name: dim for dim in checked_dims}, checked(instances)).values())
    func_dims = matched(func, checked_dims, where=name)
    names = [dim.name for dim in func_dims]
    buffers = _buffers(func, names, where=name)
    described_device = device_of(device, target)
    if measure and not kind_of(target).on_host:
        device_name(target)  # raises if the GPU is missing
    with pool_for(target, measure=measure) as pool:
        plan = plan_operator(
            func, func_dims, described_device, target, planner=chosen_planner, measure=measure, pool=pool, where=name
        )
    library = built(plan, target)
    return DynamicKernel(
        name=name,
        library=library,
        dims=func_dims,
        symbols=tuple(names),
        buffers=buffers,
        constants=tuple(p.parameter for p in plan.packings),
        packed_shape=plan.packings[0].shape if plan.packings else (),
        packed_dtype=plan.packings[0].dtype if plan.packings else "",
        tree=plan.tree,
        tiles=plan.tiles,
        report=plan.report,
        device=str(_tvm.device_of(target).type),
    )


def _measures(planner: Planner, measure: bool | None) -> bool:
    """Return whether programs are timed. Raise InvalidOption if the planner does not time them."""
    if measure and not planner.measures:
        raise InvalidOption(
            "FTuner's planner measures nothing", where="measure", remedy='leave it out, or pass planner="timed"'
        )
    return planner.measures if measure is None else measure


def _function_of(task: Any) -> tuple[Any, str, Any]:
    """Return the PrimFunc, name and target of a Task or PrimFunc. Raise InvalidModel."""
    if isinstance(task, Task):
        return task.module["main"], task.name, task.target
    if isinstance(task, _tvm.PrimFunc):
        symbol = task.attrs["global_symbol"] if task.attrs and "global_symbol" in task.attrs else "operator"
        return task, str(symbol), resolve_target("cpu")
    raise InvalidModel(f"expected an operator, got {shown(task)}", where="task", remedy="give a Task or a PrimFunc")


def device_of(device: Any, target: Any) -> Device:
    """Return the checked device description. Raise InvalidDevice, UnknownTarget."""
    if device is None:
        description = target_device(target)
    elif isinstance(device, Device):
        description = device
    elif isinstance(device, Path) or (isinstance(device, str) and device.endswith(".toml")):
        description = read_description(device)
    elif isinstance(device, str):
        description = described(device)
    else:
        raise InvalidDevice(
            f"expected a hardware description, got {shown(device)}",
            where="device",
            remedy="give a Device, a name or a file",
        )
    check_device(description)
    if description.kind != kind_of(target).device:
        raise InvalidDevice(
            f"{description.name} is a {description.kind}, but the target is {target.kind.name}",
            where="device",
            remedy="describe a device of the target's kind, or omit device",
        )
    return description


def matched(func: Any, dims: Sequence[Dim], *, where: str) -> tuple[Dim, ...]:
    """Return the Dim of each symbolic size of a function, in the order of the sizes. Raise InvalidDim."""
    names = [str(symbol.name) for symbol in symbols_of(func)]
    by_name = {dim.name: dim for dim in dims}
    if not names:
        raise InvalidDim(
            "the operator has no symbolic sizes", where=where, remedy="use felixlike.optimize, without dimensions"
        )
    if len(names) == 1 == len(dims):
        return (dims[0],)
    missing = [name for name in names if _plain(name) not in by_name and name not in by_name]
    if missing:
        raise InvalidDim(
            f"no Dim is given for the symbolic size {missing[0]!r}",
            where=where,
            remedy=f"give a Dim for each symbolic size: {', '.join(names)}",
        )
    return tuple(by_name.get(name) or by_name[_plain(name)] for name in names)


def _plain(name: str) -> str:
    """Remove a numeric suffix that TVM may have added to a name."""
    head, _, tail = name.rpartition("_")
    return head if head and tail.isdigit() else name


def plan_operator(
    func: Any,
    dims: Sequence[Dim],
    device: Device,
    target: Any,
    *,
    planner: Planner = Timed(),  # noqa: B008  immutable
    measure: bool = True,
    pool: MeasuringPool | None = None,
    timings: Timings | None = None,
    where: str = "operator",
) -> Plan:
    """Plan an operator without compiling the final module.

    Args:
        func: A PrimFunc with symbolic sizes.
        dims: The Dim of each symbolic size, in the order of `symbols_of`.
        device: The hardware description.
        target: The TVM target.
        planner: How programs are chosen.
        measure: Whether programs are timed on a CPU, unless the planner measures nothing.
        pool: The pool that times programs on a GPU, from `pool_for`. None for formulas only.
        timings: The timings of the run, with its store and limits. None for new ones without limits.
        where: Name of the operator in messages.

    Returns:
        The plan.

    Raises:
        InvalidModel: The function is not a contraction with an elementwise epilogue.
        NoUKernels: No uKernel fits the device.
        InvalidOption: The planner does not support the target.
    """
    check_target(planner, target)
    started = time.monotonic()
    timings = timings or Timings()
    by_score = isinstance(planner, FTuner)
    if not all(map(_tvm.tirx.is_buffer_var, func.params)):  # sizes as numbers, which timings do not pass
        measure, pool = False, None
    if measure and not by_score:
        timings.say(f"timing kernels of {where}")
    operator = read_operator(func, [dim.most for dim in dims] if by_score else None)
    if operator is None:
        raise InvalidModel(
            "expected a contraction with an elementwise epilogue",
            where=where,
            remedy="use felixlike.optimize, which supports other operators with dynamic sizes",
        )
    if kind_of(target).binds_threads:
        planned = plan_blocks(operator, dims, device, target, planner, pool=pool, timings=timings, name=where)
        return _of_blocks(operator, planned, started)
    assert not isinstance(planner, DietCode)  # `check_target` refuses it
    if isinstance(planner, FTuner):
        tiles, choice, stages = _constructed(operator, dims, device, planner)
    else:
        analysed, _ = workloads_of(operator, dims, CPU.analysed)
        kernels, stages = compile_stage(analysed, device, stages=STAGES[device.kind])
        workloads, sizes = workloads_of(operator, dims, CPU.instances)
        pools = pools_of(operator, kernels, analysed, device)
        search = Search(operator, pools, workloads, sizes, device, tile_scores(kernels, planner.sia))
        bench = TileBench(operator, target, pools, described=device, timings=timings, name=where)
        choice = search.measured(bench) if measure else search.predicted()
        ragged = not isinstance(operator.along.extent, int)
        tiles = needed(pools[choice.pool], choice.tree, ragged=ragged)
    kernel, packings = emit(
        operator,
        tiles,
        lambda rows: statements(choice.tree, operator.symbols, rows, highest_of(tiles)),
        device=device,
    )
    report = Report(
        stages=stages,
        tiles=len(tiles.tiles),
        programs=choice.programs,
        measured=choice.measured,
        seconds=time.monotonic() - started,
        agreement=choice.agreement,
        among_top=choice.among_top,
        repaired=choice.repaired,
    )
    rounds = tiles.pairs and not operator.has_half_factors
    return Plan(operator, tiles.tiles, choice.tree, kernel, packings, report, rounds)


def in_pairs(operator: Operator, device: Device) -> tuple[bool, ...]:
    """Return whether an operator's products may be computed in pairs: no, yes, or both, among which timings decide.

    Pairs of factors that are bfloat16 round nothing. Others are rounded only if the device's precision allows it.
    """
    has_instruction = device.has_pairs or (device.has_tiles and operator.has_half_factors)
    if not has_instruction or not operator.has_pairs or device.unit.lanes(operator.item_bits) not in LANES:
        return (False,)
    if operator.has_half_factors:
        return (True,)
    return (False, True) if device.multiplies_pairs else (False,)


def _constructed(
    operator: Operator, dims: Sequence[Dim], device: Device, planner: FTuner
) -> tuple[Pool, Found, tuple[Stage, ...]]:
    """Return the uKernels, the choice and the counts of FTuner's algorithm for a CPU."""
    workloads, sizes = workloads_of(operator, dims, CPU.instances)
    kernels, stages = compile_stage(workloads, device, stride=planner.stride, psi=planner.psi)
    lanes = device.unit.lanes(operator.item_bits)
    programs = tile_programs(
        tile_scores(kernels, planner.sia), workloads, lanes, one_width=operator.constant is not None
    )
    tree = programs.tree(sizes, [w.weight for w in workloads])
    used = {(height, p.vectors) for p in programs_of(tree) for height in (p.large, p.small or p.large)}
    # Sizes between those, which the chosen program may not cover, are covered evenly: by any height up to its highest.
    highest = highest_rows(tree)
    heights = sorted((i, width) for width, most in highest.items() for i in range(1, most + 1))
    tiles = Pool(tuple(heights), lanes, in_pairs(operator, device)[-1])
    return tiles, Found(0, tree, programs.programs), (*stages, programs.stage(len(used)))


def _of_blocks(operator: Operator, planned: Planned, started: float) -> Plan:
    """Return the plan of an operator on a GPU."""
    report = Report(
        stages=planned.stages,
        tiles=len(planned.tiles),
        programs=planned.programs,
        measured=planned.measured,
        seconds=time.monotonic() - started,
        agreement=planned.agreement,
        among_top=planned.among_top,
        repaired=planned.repaired,
    )
    return Plan(operator, planned.tiles, planned.tree, planned.kernel, (), report)


def needed(pool: Pool, tree: Tree[Program], *, ragged: bool) -> Pool:
    """Return the uKernels that a tree needs: for each width all heights up to the highest, to cover every size.

    ragged: Whether the number of columns is dynamic, so that narrower uKernels compute the last ones."""
    highest = highest_rows(tree)

    def limit(width: int) -> int:
        return max((rows for wide, rows in highest.items() if wide == width or (ragged and wide > width)), default=0)

    return replace(pool, tiles=tuple((rows, width) for rows, width in pool.tiles if rows <= limit(width)))


def highest_rows(tree: Tree[Program]) -> dict[int, int]:
    """Return for each width of a tree's programs the greatest height."""
    highest: dict[int, int] = {}
    for program in programs_of(tree):
        highest[program.vectors] = max(highest.get(program.vectors, 0), program.large)
    return highest


def built(plan: Plan, target: Any) -> Any:
    """Compile a plan to a library with "main" and, if a constant is packed, "pack0"."""
    functions = {"main": plan.kernel.with_attr("global_symbol", "main")}
    for packing in plan.packings:
        functions["pack0"] = packing.function.with_attr("global_symbol", "pack0")
    return codegen.compile_primfuncs(_tvm.IRModule(functions), target).jit()


def _buffers(func: Any, names: Sequence[str], *, where: str) -> tuple[Buffer, ...]:
    """Return the parameters with the names of dimensions as sizes. Raise InvalidModel for other sizes, and scalars."""
    named = dict(zip((str(symbol.name) for symbol in symbols_of(func)), names, strict=True))
    buffers = []
    for parameter in func.params:
        shape = getattr(parameter, "shape", None)
        if shape is None or not all(isinstance(size, _tvm.tirx.IntImm | _tvm.tirx.Var) for size in shape):
            raise InvalidModel(
                "expected buffers whose sizes are numbers or symbols,"
                f" got {parameter.name} of shape {size_shown(shape)}",
                where=where,
                remedy="give each size that a call decides a symbol of its own, and pass no scalars",
            )
        sizes = [named[str(size.name)] if isinstance(size, _tvm.tirx.Var) else int(size) for size in shape]
        buffers.append(Buffer(str(parameter.name), tuple(sizes), str(parameter.dtype)))
    return tuple(buffers)


def pools_of(operator: Operator, kernels: UKernels, workloads: list[Workload], device: Device) -> list[Pool]:
    """Return the pools of register tiles among which timings decide.

    A constant operand gives one pool per width, since it is packed for one width. Other operators get one pool with
    several widths. The widths are the fastest by estimate: SIA's scores of widths differ by less than a thousandth
    where all divide the columns. Each pool has all heights, so that every size can be covered. Where factors may be
    rounded, pools that multiply pairs come after those in float32.
    """
    lanes = device.unit.lanes(operator.item_bits)
    most_rows = max(w.i for w in workloads)
    registers = device.unit.registers

    def tiles(width: int) -> Pool:
        heights = [rows for rows in range(1, min(most_rows, TILE.rows) + 1) if fits_registers(rows, width, registers)]
        return Pool(tuple((rows, width) for rows in heights or [1]), lanes)

    widths = {columns // lanes for columns in kernels.reg[:, 1].tolist()}
    alone = [tiles(width) for width in sorted(widths & set(TILES.widths)) or sorted(widths)[:1]]
    if not alone:
        raise NoUKernels("no register tile fits", where=device.name, remedy="describe a device with more registers")
    pools = [alone[n] for n in Search(operator, alone, workloads, [], device, {}).fastest(TILES.widths_timed)]
    if operator.constant is None:
        pools = [Pool(tuple(sorted(tile for pool in pools for tile in pool.tiles)), lanes)]
    return [replace(pool, pairs=pairs) for pairs in in_pairs(operator, device) for pool in pools]
