"""Define the parts of the benchmark in the order in which they run: the names of their rows and how a row is
computed.

Input: a Bench and a row's name. Output: numbers as JSON. A part has a share of the whole time, and unused time goes
to the parts after it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu.bench import Bench, torch_sides
from benchmarks.gpu.journal import Row
from benchmarks.gpu.precision import PRECISIONS, layer_on_tensor_cores, names

SEARCHED = ("conv2d 3×3", "dense+bias+relu", "batch matmul", "softmax")
STOCK = "stock"
NETWORKS = ("resnet18", "bert", "mlp", "resnet50", "mobilenet_v2", "vit_b16", "bert_base", "gpt2")
_ROUNDED = ("matmul", "matmul_odd", "dense_bias_relu", "batch_matmul", "conv2d_3x3", "conv2d_1x1", "conv2d_nhwc")
"""Operators whose random points on tensor cores are also compared."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark.

    `share` is its share of the whole time. `names` returns the names of its rows. `row` computes one within some
    seconds. `least` is the minimum number of seconds that a row needs. `turn` is about how many seconds its sides are
    timed for if rows are prepared together.
    """

    name: str
    share: float
    names: Callable[[], Sequence[str]]
    row: Callable[[Bench, str, float], Row]
    least: float = 1.0
    turn: float = 4.0


def points(bench: Bench, name: str, seconds: float) -> Row:
    """Compare random valid points of every sketch of an operator with float64.

    Sketches of felixlike that repack a constant weight are included. With a precision in the name, only sketches that
    round to it are compared. Simulated devices support none of these.
    """
    from support.operators import OPERATORS

    from felixlike import codegen
    from felixlike.hardware import FLOAT32, resolve_target, with_precision
    from felixlike.measure.packing import cut
    from felixlike.search import Candidate
    from felixlike.symbolic import sketches

    operator, _, precision = name.partition(", ")
    func, exact = OPERATORS[operator](), not precision
    target = bench.target if exact or not bench.rehearsal else resolve_target("sm_90")
    target = with_precision(target, precision or FLOAT32.name)
    sketch_groups = [sketches(func, target, space="all"), packing_sketches(target, func)]
    sketch_groups = [tuple(s for s in group if exact or s.precision == precision) for group in sketch_groups]
    drawn = [[(s, tuple(p)) for s in group for p in s.sample(bench.points, seed=7).tolist()] for group in sketch_groups]
    measured = []
    if exact or not bench.rehearsal:
        with bench.pool(target) as pool:
            for pairs in filter(None, drawn):
                measured += pool.measure(pairs[0][0].task, [Candidate(s, p, math.nan, "random") for s, p in pairs])
    all_sketches, all_points = (
        [s for group in sketch_groups for s in group],
        [pair for pairs in drawn for pair in pairs],
    )
    row: Row = {
        "sketches": len(all_sketches),
        "understood": sum(sketch.is_symbolic for sketch in all_sketches),
        "points": len(all_points),
        "outcomes": dict(Counter(m.status.value for m in measured)),
        "error": max((m.error for m in measured if m.error is not None), default=None),
        "fastest": min((m.seconds for m in measured), default=None),
        "build_seconds": [round(m.build_seconds, 3) for m in measured],
        "kernels": [[kernel.told() for kernel in m.kernels] for m in measured],
        "messages": sorted({f"{m.status}: {m.message}" for m in measured if m.message}),
    }
    if bench.rehearsal and codegen.cuda_toolchain():
        arch = str(target.attrs["arch"])
        kernels = [cut(sketch.schedule(point).mod["main"])[0] for sketch, point in all_points]
        binaries = [codegen.cuda_binary(_module(kernel), target) for kernel in kernels]
        row["kernels"] = [[kernel.told() for kernel in codegen.kernels_of(binary, arch)] for binary in binaries]
    return row


def packing_sketches(target: Any, func: Any) -> Sequence[Any]:
    """Return the sketches that pack the second input of an operator, if it is constant."""
    from felixlike.frontend import make_task
    from felixlike.frontend.constants import PACKING
    from felixlike.symbolic import sketches

    if len(func.params) < 3:
        return ()
    task = make_task(func, target, name="packed", constants=[1])
    return [s for s in sketches(task, space="own") if PACKING in s.trace_json()] if task.layout_free else ()


def _module(func: Any) -> Any:
    from felixlike import _tvm

    return _tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def subgraph(bench: Bench, name: str, seconds: float) -> Row:
    """Tune a layer and compare with PyTorch."""
    from benchmarks.subgraphs import LAYERS

    model, inputs = LAYERS[name]()
    return _against_torch(bench, model, inputs, seconds)


def network(bench: Bench, name: str, seconds: float) -> Row:
    """Compare a network with PyTorch: with predicted schedules, and tuned if there is time for it."""
    from felixlike.bench import networks
    from felixlike.frontend import import_model
    from felixlike.runtime.compile_model import lowered_model

    model, inputs = networks.resnet18(size=64) if bench.rehearsal and name == "resnet18" else getattr(networks, name)()
    if bench.rehearsal:
        lowered_model(import_model(model, inputs, bench.target))
        return _against_torch(bench, model, inputs, seconds)
    started = time.monotonic()
    predicted, report = bench.optimized(model, inputs, trials=0)
    row: Row = {"error": report.error, "predicting_seconds": report.total_seconds}
    left = seconds - (time.monotonic() - started)
    tune = left > _LEAST_TUNING
    compared = _against_torch(bench, model, inputs, left if tune else seconds, tune=tune, predicted=lambda: predicted)
    return {**compared, **row}


_LEAST_TUNING, _LEAST_TIMING = 60.0, 120.0
"""Seconds that a network is tuned for at least, and that timing the uKernels of an operator with dynamic sizes needs;
chosen by hand.
"""


def _against_torch(
    bench: Bench,
    model: object,
    inputs: tuple[object, ...],
    seconds: float,
    *,
    tune: bool = True,
    **more: Callable[[], Callable[[], object]],
) -> Row:
    """Time a model, tuned if wanted, and further sides beside PyTorch's."""
    call, row = bench.tuned(model, inputs, seconds * 0.7) if tune else (None, {})
    sides = torch_sides(model, inputs, device=bench.device, compiled=not bench.rehearsal)
    if call is not None:
        sides["tuned"] = lambda: call
    return {**row, **bench.timed({**sides, **more}, seconds_a_side=bench.side_seconds(seconds))}


def search(bench: Bench, name: str, seconds: float) -> Row:
    """Run gradient search or stock MetaSchedule on a subgraph. Both compile CUDA source in the same way."""
    from benchmarks.search import search as searched
    from benchmarks.search_tables import Run
    from benchmarks.stock import stock
    from benchmarks.subgraphs import SUBGRAPHS
    from felixlike.frontend import make_task

    task_name, _, side = name.partition(", ")
    run = Run("default" if bench.rehearsal else "best", task_name, 0, "gradient" if side != STOCK else STOCK)
    if side == STOCK:
        if bench.rehearsal:  # MetaSchedule has no simulated device; the row has what it would run
            task = make_task(SUBGRAPHS[task_name](), bench.target, name=task_name)
            return {"seconds": [], "elapsed": [], "instructions": len(str(task.module))}
        run.seconds, run.elapsed = stock(task_name, 512, 0, target="cuda", limit=seconds)
    else:
        task = make_task(SUBGRAPHS[task_name](), bench.target, name=task_name)
        with bench.pool() as pool:
            searched(run, task, pool, 8 if bench.rehearsal else 512, seconds)
    return {key: value for key, value in asdict(run).items() if key in ("seconds", "elapsed", "sketch", "point")}


def dynamic(bench: Bench, name: str, seconds: float) -> Row:
    """Compare one kernel for every T of 1 … 128 with float64, and time it against cuBLAS at each T.

    If there is little time, formulas alone choose its uKernels. Several calls are timed between two synchronizations,
    and write to preallocated memory.
    """
    import felixlike as fx
    from benchmarks import dynamic as cpu
    from felixlike import codegen
    from felixlike import dynamic as dynamic_shapes
    from felixlike.frontend import make_task

    task = make_task(cpu.function_of(name), bench.target, name=name)
    measure = not bench.rehearsal and seconds > _LEAST_TIMING
    kernel = dynamic_shapes.compile(task, fx.Dim("T", cpu.SIZES), measure=measure)
    report = kernel.report
    row: Row = {
        "stages": [str(stage) for stage in report.stages],
        "programs": report.programs,
        "measured": report.measured,
        "planned_seconds": report.seconds,
        "agreement": report.agreement,
        "tree": kernel.explain(),
        "ours": {},
        "cuBLAS": {},
        "error": None,
    }
    if bench.rehearsal and codegen.cuda_toolchain():
        arch = str(bench.target.attrs["arch"])
        binary = codegen.compile_source(codegen.cuda_source(kernel.library), arch)
        row["kernels"] = [info.told() for info in codegen.kernels_of(binary, arch)]
    sizes = (1, 64, 128) if bench.rehearsal else cpu.SIZES
    with bench.turn():
        _sizes_against_cublas(bench, name, kernel, row, sizes, seconds)
    return row


def _sizes_against_cublas(bench: Bench, name: str, kernel: Any, row: Row, sizes: Sequence[int], seconds: float) -> None:
    """Compare and time a kernel at each size; the row gets the seconds and the largest error."""
    import torch

    from benchmarks import dynamic as cpu

    for t in sizes:
        device_inputs = tuple(tensor.to(bench.device) for tensor in cpu.inputs(name, t))
        sides = {"cuBLAS": _repeated(cpu.reference(name), device_inputs)}
        if not bench.rehearsal:
            expected = cpu.reference(name)(*(tensor.double() for tensor in device_inputs))
            output = kernel(*device_inputs)
            error = float((output - expected).abs().max() / expected.abs().max())
            row["error"] = max(error, row["error"] or 0.0)
            sides["ours"] = _repeated(kernel.library["main"], (*device_inputs, torch.empty_like(output)))
        timed = bench.timed(sides, seconds_a_side=max(0.02, seconds / len(sizes) / 8), recorded=False)
        for side in ("ours", "cuBLAS"):
            row[side][t] = timed[side] / _CALLS if side in timed else None


_CALLS = 20
"""Calls between two synchronizations."""


def _repeated(function: Callable[..., object], arguments: tuple[object, ...]) -> Callable[[], Callable[[], object]]:
    def calls() -> object:
        for _ in range(_CALLS):
            result = function(*arguments)
        return result

    return lambda: calls


def collecting(bench: Bench, name: str, seconds: float) -> Row:
    """Record measurements of the cost model's training workloads in the remaining time."""
    from felixlike import records
    from felixlike.training.collect import Wanted, collect, open_pool
    from felixlike.training.workloads import shipped_lines

    lines = shipped_lines()[: 1 if bench.rehearsal else None]
    settings = Wanted(
        candidates=6 if bench.rehearsal else 64, seconds=seconds, space="default" if bench.rehearsal else "all"
    )
    ended = Counter[str]()
    with records.open(bench.folder / "records.sqlite") as store:
        with bench.pool() if bench.rehearsal else open_pool(bench.target) as pool:
            collected = collect([(line.text, line.make) for line in lines], store, pool, bench.target, settings)
        for task in collected:
            ended.update(task.ended)
        return {"tasks": len(collected), "ended": dict(ended), "records": store.count()}


def _operators() -> Sequence[str]:
    from support.operators import OPERATORS

    rounded = [f"{name}, {precision}" for name in _ROUNDED for precision in PRECISIONS]
    return (*OPERATORS, *rounded)


def _layers() -> Sequence[str]:
    from benchmarks.subgraphs import LAYERS

    return tuple(LAYERS)


def _dynamic() -> Sequence[str]:
    from benchmarks.dynamic import NAMES

    return NAMES


PARTS = (
    Part("points", 0.15, _operators, points, 2.0),
    Part("subgraphs", 0.25, _layers, subgraph, 10.0),
    Part("precision", 0.1, names, layer_on_tensor_cores, 10.0),
    Part("networks", 0.15, lambda: NETWORKS, network, 20.0),
    Part("search", 0.2, lambda: [f"{n}, {who}" for n in SEARCHED for who in ("ours", STOCK)], search, 20.0),
    Part("dynamic", 0.1, _dynamic, dynamic, 5.0, turn=25.0),
    Part("collecting", 1.0, lambda: ("records",), collecting, 5.0),
)
"""A rehearsal has the same parts."""
