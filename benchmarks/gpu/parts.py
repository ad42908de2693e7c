"""The parts of the benchmark, in the order in which they run: what each has rows of, and how a row is made.

In: a Bench and a row's name. Out: numbers as JSON. A part's share is of the whole time; what a part leaves is for those
after it. A name's most: seconds without a row after which its process is ended, as by a kernel that hangs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu.bench import Bench, torch_sides
from benchmarks.gpu.journal import Row
from benchmarks.gpu.precision import PRECISIONS, layer_on_tensor_cores, names

SEARCHED = ("conv2d 3×3", "dense+bias+relu", "batch matmul", "softmax")
STOCK = "stock"
_ROUNDED = ("matmul", "matmul_odd", "dense_bias_relu", "batch_matmul", "conv2d_3x3", "conv2d_1x1", "conv2d_nhwc")
"""Operators whose random points on tensor cores are compared, too."""


@dataclass(frozen=True, slots=True)
class Part:
    """name: of the part.  share: of the whole time.  names: of its rows.  row: makes one within some seconds.
    least: seconds that a row needs at least."""

    name: str
    share: float
    names: Callable[[], Sequence[str]]
    row: Callable[[Bench, str, float], Row]
    least: float = 1.0


def points(bench: Bench, name: str, seconds: float) -> Row:
    """Random valid points of every sketch of an operator, compared with float64; also of those sketches of ours that
    lay a constant weight out anew.  Of a precision, those that round: simulated devices know none."""
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
    found = [sketches(func, target, space="all"), packing_sketches(target, func)]
    found = [tuple(s for s in some if exact or s.precision == precision) for some in found]
    drawn = [[(s, tuple(p)) for s in some for p in s.sample(bench.points, seed=7).tolist()] for some in found]
    measured = []
    if exact or not bench.rehearsal:
        with bench.pool(target) as pool:
            for pairs in filter(None, drawn):
                measured += pool.measure(pairs[0][0].task, [Candidate(s, p, math.nan, "random") for s, p in pairs])
    known, tried = [s for some in found for s in some], [pair for pairs in drawn for pair in pairs]
    row: Row = {
        "sketches": len(known),
        "understood": sum(sketch.understood for sketch in known),
        "points": len(tried),
        "outcomes": dict(Counter(m.status.value for m in measured)),
        "error": max((m.error for m in measured if m.error is not None), default=None),
        "fastest": min((m.seconds for m in measured), default=None),
        "build_seconds": [round(m.build_seconds, 3) for m in measured],
        "kernels": [[kernel.told() for kernel in m.kernels] for m in measured],
        "messages": sorted({f"{m.status}: {m.message}" for m in measured if m.message}),
    }
    if bench.rehearsal and codegen.cuda_toolchain():
        arch = str(target.attrs["arch"])
        kernels = [cut(sketch.schedule(point).mod["main"])[0] for sketch, point in tried]
        binaries = [codegen.cuda_binary(_module(kernel), target) for kernel in kernels]
        row["kernels"] = [[kernel.told() for kernel in codegen.kernels_of(binary, arch)] for binary in binaries]
    return row


def packing_sketches(target: Any, func: Any) -> Sequence[Any]:
    """Sketches of an operator whose second input is constant, if they pack it."""
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
    """A layer tuned, against PyTorch."""
    from benchmarks.subgraphs import LAYERS

    model, inputs = LAYERS[name]()
    return _against_torch(bench, model, inputs, seconds)


def network(bench: Bench, name: str, seconds: float) -> Row:
    """A network tuned, and as TVM's default schedules have it, against PyTorch."""
    from felixlike.bench import networks
    from felixlike.frontend import import_model
    from felixlike.runtime import compile_model
    from felixlike.runtime.compile_model import lowered_model

    model, inputs = networks.resnet18(size=64) if bench.rehearsal and name == "resnet18" else getattr(networks, name)()
    imported = import_model(model, inputs, bench.target)
    if bench.rehearsal:
        lowered_model(imported)
        return _against_torch(bench, model, inputs, seconds)
    plain = compile_model(imported)
    given = tuple(tensor.cuda() for tensor in inputs)
    return _against_torch(bench, model, inputs, seconds, default=lambda: lambda: plain(*given))


def _against_torch(
    bench: Bench,
    model: object,
    inputs: tuple[object, ...],
    seconds: float,
    **more: Callable[[], Callable[[], object]],
) -> Row:
    call, row = bench.tuned(model, inputs, seconds * 0.7)
    sides = torch_sides(model, inputs, device=bench.device, compiled=not bench.rehearsal)
    if call is not None:
        sides["tuned"] = lambda: call
    return {**row, **bench.timed({**sides, **more}, seconds_a_side=min(2.0, seconds * 0.04))}


def search(bench: Bench, name: str, seconds: float) -> Row:
    """Gradient search of a subgraph, or stock MetaSchedule's; both compile CUDA source in the same way."""
    from benchmarks.search import search as searched
    from benchmarks.search_tables import Run
    from benchmarks.stock import stock
    from benchmarks.subgraphs import SUBGRAPHS
    from felixlike.frontend import make_task

    task_name, _, who = name.partition(", ")
    run = Run("default" if bench.rehearsal else "best", task_name, 0, "gradient" if who != STOCK else STOCK)
    if who == STOCK:
        if bench.rehearsal:  # it has no simulated device; what it would run is there
            task = make_task(SUBGRAPHS[task_name](), bench.target, name=task_name)
            return {"seconds": [], "elapsed": [], "instructions": len(str(task.module))}
        run.seconds, run.elapsed = stock(task_name, 512, 0, target="cuda", limit=seconds)
    else:
        task = make_task(SUBGRAPHS[task_name](), bench.target, name=task_name)
        with bench.pool() as pool:
            searched(run, task, pool, 8 if bench.rehearsal else 512, seconds)
    return {key: value for key, value in asdict(run).items() if key in ("seconds", "elapsed", "sketch", "point")}


def dynamic(bench: Bench, name: str, seconds: float) -> Row:
    """One kernel for every T of 1 … 128, compared with float64 and timed against cuBLAS at each: several calls between
    two waits for the GPU, into memory that is there already."""
    import torch

    import felixlike as fx
    from benchmarks import dynamic as cpu
    from felixlike import codegen
    from felixlike import dynamic as dynamic_shapes
    from felixlike.frontend import make_task

    task = make_task(cpu.function_of(name), bench.target, name=name)
    kernel = dynamic_shapes.compile(task, fx.Dim("T", cpu.SIZES), measure=not bench.rehearsal)
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
        row["kernels"] = [found.told() for found in codegen.kernels_of(binary, arch)]
    sizes = (1, 64, 128) if bench.rehearsal else cpu.SIZES
    for t in sizes:
        given = tuple(tensor.to(bench.device) for tensor in cpu.inputs(name, t))
        sides = {"cuBLAS": _repeated(cpu.reference(name), given)}
        if not bench.rehearsal:
            wide = cpu.reference(name)(*(tensor.double() for tensor in given))
            found = kernel(*given)
            error = float((found - wide).abs().max() / wide.abs().max())
            row["error"] = max(error, row["error"] or 0.0)
            sides["ours"] = _repeated(kernel.library["main"], (*given, torch.empty_like(found)))
        timed = bench.timed(sides, seconds_a_side=max(0.02, seconds / len(sizes) / 8))
        for side in ("ours", "cuBLAS"):
            row[side][t] = timed[side] / _CALLS if side in timed else None
    return row


_CALLS = 20
"""Between two waits for the GPU."""


def _repeated(function: Callable[..., object], given: tuple[object, ...]) -> Callable[[], Callable[[], object]]:
    def calls() -> object:
        for _ in range(_CALLS):
            result = function(*given)
        return result

    return lambda: calls


def collecting(bench: Bench, name: str, seconds: float) -> Row:
    """Records of the workloads that the cost model learns from, in the time that is left."""
    from felixlike import records
    from felixlike.training.collect import Wanted, collect, open_pool
    from felixlike.training.workloads import shipped_lines

    lines = shipped_lines()[: 1 if bench.rehearsal else None]
    wanted = Wanted(
        candidates=6 if bench.rehearsal else 64, seconds=seconds, space="default" if bench.rehearsal else "all"
    )
    ended = Counter[str]()
    with records.open(bench.folder / "records.sqlite") as store:
        with bench.pool() if bench.rehearsal else open_pool(bench.target) as pool:
            found = collect([(line.text, line.make) for line in lines], store, pool, bench.target, wanted)
        for task in found:
            ended.update(task.ended)
        return {"tasks": len(found), "ended": dict(ended), "records": store.count()}


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
    Part("networks", 0.15, lambda: ("resnet18", "bert", "mlp"), network, 20.0),
    Part("search", 0.2, lambda: [f"{n}, {who}" for n in SEARCHED for who in ("ours", STOCK)], search, 20.0),
    Part("dynamic", 0.1, _dynamic, dynamic, 5.0),
    Part("collecting", 1.0, lambda: ("records",), collecting, 5.0),
)
"""A rehearsal has the same ones."""
