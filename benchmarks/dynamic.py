"""Measure kernels with dynamic sizes: python -m benchmarks.dynamic [--only NAME] [--step 1] [--static 0].

For dense layers and batch matmuls with every T from 1 to 128, one felixlike kernel for all sizes is compared with
PyTorch eager. Whole calls are timed interleaved, each side in its own process with a thread per core. The baselines
at eight sizes are torch.compile with dynamic shapes, TVM's dynamic code, and, with --static, `optimize` for one size.
The benchmark also reports the cost of padding to the next of eight sizes, and the times of the dispatched program and
of FTuner's program (planner="ftuner", nothing measured) relative to the best program of the pool. It writes
docs/results/dynamic.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from felixlike.dynamic import DynamicKernel
    from felixlike.measure.sides.processes import Sides

SIZES = range(1, 129)
EIGHT = (5, 24, 43, 62, 81, 100, 119, 128)
"""The sizes of FTuner's evaluation, and the largest size."""

_BATCH, _HEAD = 192, 64

_PAIRS = 5
"""Number of timings of the pool's best program next to the dispatched one."""

DENSE = {"dense 768→2304": (768, 2304), "dense 768→768": (768, 768), "dense 3072→768": (3072, 768)}
DENSE |= {"dense 768→3072": (768, 3072)}
NAMES = (*DENSE, "batch matmul NT", "batch matmul NN")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--step", type=int, default=1, help="every so many sizes")
    parser.add_argument("--static", type=int, default=0, help="rounds of `optimize` for each of eight sizes; 0: none")
    arguments = parser.parse_args()
    from benchmarks.dynamic_tables import picture, text_of
    from benchmarks.results import write_for_this_machine
    from felixlike.hardware import placement
    from felixlike.measure.sides.processes import Sides

    rows = {}
    stated = {"threads": placement.threads(), "step": arguments.step}
    options = "".join(
        f" --{o} {v}" for o, v in (("step", arguments.step), ("static", arguments.static)) if v > (o == "step")
    )
    for name in NAMES:
        if arguments.only in name:
            with Sides() as sides:
                rows[name] = _measured(name, sides, range(1, 129, arguments.step), rounds=arguments.static)
            text = text_of(rows, **stated)
            print(text, flush=True)
            if not arguments.only:  # write after each operator, so that a later failure does not lose earlier results
                write_for_this_machine("dynamic", {**stated, "operators": rows}, text, command=f"dynamic{options}")
    if not arguments.only:
        picture(rows, flops)


def function_of(name: str) -> Any:
    """Return the operator with a symbolic T."""
    from support import dynamic_operators as operators

    if name in DENSE:
        return operators.dense(*DENSE[name])
    return operators.scores(_BATCH, _HEAD) if name.endswith("NT") else operators.mixed(_BATCH, _HEAD)


def flops(name: str, t: int) -> int:
    """Return the floating-point operations of a call."""
    if name in DENSE:
        return 2 * t * DENSE[name][0] * DENSE[name][1]
    return 2 * _BATCH * t * t * _HEAD


@functools.cache
def _constants(name: str) -> tuple[Any, ...]:
    import torch

    if name not in DENSE:
        return ()
    k, n = DENSE[name]
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, k, generator=generator), torch.randn(n, generator=generator)


def inputs(name: str, t: int) -> tuple[Any, ...]:
    """Return the inputs of a call."""
    import torch

    generator = torch.Generator().manual_seed(t)
    if name in DENSE:
        return torch.randn(t, DENSE[name][0], generator=generator), *_constants(name)
    first = (_BATCH, t, _HEAD) if name.endswith("NT") else (_BATCH, t, t)
    return torch.randn(first, generator=generator), torch.randn(_BATCH, t, _HEAD, generator=generator)


def reference(name: str) -> Callable[..., Any]:
    """Return PyTorch's function for the operator."""
    import torch

    if name in DENSE:
        return torch.nn.functional.linear
    return _times_transposed if name.endswith("NT") else torch.bmm


def _times_transposed(a: Any, b: Any) -> Any:
    return a.bmm(b.transpose(1, 2))


@functools.cache
def kernel_of(name: str, planner: str = "timed") -> DynamicKernel:
    """Compile one kernel for all sizes."""
    import felixlike as fx
    from felixlike import dynamic

    return dynamic.compile(function_of(name), fx.Dim("T", SIZES), planner=planner)


def ours(name: str, t: int) -> Callable[[], object]:
    """Return a call of the kernel after checking its output."""
    kernel, tensors = kernel_of(name), inputs(name, t)
    expected = reference(name)(*(tensor.double() for tensor in tensors))
    error = float((kernel(*tensors) - expected).abs().max() / expected.abs().max())
    if not error < 1e-5:
        raise AssertionError(f"{name} is wrong at T = {t}: {error}")
    return lambda: kernel(*tensors)


def eager(name: str, t: int) -> Callable[[], object]:
    """Return a call of PyTorch eager."""
    import torch

    torch.set_grad_enabled(False)
    run, tensors = reference(name), inputs(name, t)
    return lambda: run(*tensors)


@functools.cache
def _compiled(name: str) -> Callable[..., Any]:
    import torch

    compiled: Callable[..., Any] = torch.compile(reference(name), dynamic=True)
    return compiled


def torch_compiled(name: str, t: int) -> Callable[[], object]:
    """Return a call of torch.compile with dynamic shapes, compiled once for all sizes."""
    import torch

    torch.set_grad_enabled(False)
    run, tensors = _compiled(name), inputs(name, t)
    return lambda: run(*tensors)


@functools.cache
def _tvm_kernel(name: str) -> Any:
    from felixlike import _tvm
    from felixlike.hardware import resolve_target

    func = function_of(name).with_attr("global_symbol", "main")
    return _tvm.tvm.compile(_tvm.IRModule({"main": func}), target=resolve_target("cpu")).jit()["main"]


def tvm_dynamic(name: str, t: int) -> Callable[[], object]:
    """Return a call of TVM's code for the function, which is unscheduled because its sizes are unknown."""
    import torch

    run, tensors = _tvm_kernel(name), inputs(name, t)
    output = torch.empty(tuple(reference(name)(*tensors).shape))
    return lambda: run(*tensors, output)


def _static(rounds: int, name: str, t: int) -> Callable[[], object]:
    """Return a call of the model that `optimize` compiles for one size."""
    import torch

    import felixlike as fx

    tensors = inputs(name, t)
    model = _Dense(*_constants(name)) if name in DENSE else _Product(reference(name))
    fast = fx.optimize(model.eval(), tensors[:1] if name in DENSE else tensors, rounds, progress=False)
    arguments = tensors[:1] if name in DENSE else tensors
    torch.set_grad_enabled(False)
    return lambda: fast(*arguments)


def _Dense(w: Any, b: Any) -> Any:  # noqa: N802  makes a module, without torch at the top
    import torch

    layer = torch.nn.Linear(w.shape[1], w.shape[0])
    layer.weight.data, layer.bias.data = w, b
    return layer


def _Product(run: Callable[..., Any]) -> Any:  # noqa: N802  makes a module, without torch at the top
    import torch

    class Product(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return run(a, b)

    return Product()


def _measured(name: str, sides: Sides, sizes: Sequence[int], *, rounds: int) -> dict[str, Any]:
    """Measure all sides of one operator."""
    started = time.monotonic()
    kernel = kernel_of(name)
    tuning = time.monotonic() - started
    seconds: dict[str, dict[int, float]] = {}

    def time_sides(makes: Mapping[str, Callable[..., Any]], t: int, *, each: float) -> dict[str, float]:
        calls = {side: partial(make, name, t) for side, make in makes.items()}
        timings = sides.compare(calls, seconds_a_side=each, slot=each / 6)
        return {side: timed.seconds for side, timed in timings.items()}

    def add_seconds(static_seconds: Mapping[str, float], t: int) -> None:
        for side, side_seconds in static_seconds.items():
            seconds.setdefault(side, {})[t] = side_seconds

    for t in sizes:
        add_seconds(time_sides({"ours": ours, "eager": eager}, t, each=0.06), t)
    for t in EIGHT:
        add_seconds(time_sides({"torch.compile": torch_compiled, "TVM dynamic": tvm_dynamic}, t, each=0.06), t)
        if rounds:
            static_seconds = time_sides({"beside static": ours, "static": partial(_static, rounds)}, t, each=0.3)
            add_seconds(static_seconds, t)
    report = kernel.report
    return {
        "tuning": tuning,
        "stages": {stage.name: stage.kernels for stage in report.stages},
        "relaxed": {stage.name: stage.relaxed for stage in report.stages},
        "measured": report.measured,
        "uKernels in code": report.tiles,
        "seconds": {side: {str(t): s for t, s in by_size.items()} for side, by_size in seconds.items()},
        **_of_pool(name, kernel, sizes),
        "padding": statistics.fmean(_padding(name, kernel, t) for t in sizes),
    }


def _of_pool(name: str, kernel: DynamicKernel, sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return the best program's seconds ÷ the dispatched one's and ÷ FTuner's, by size; 1 means equally fast.

    The best program is that of both planners' uKernels. The minimum of many timings is biased, so it is timed again in
    turns with the two others.
    """
    from felixlike.dynamic.emit import Pool
    from felixlike.dynamic.operator import read_operator
    from felixlike.dynamic.program import Program
    from felixlike.dynamic.timing import TileBench
    from felixlike.hardware import host_device, resolve_target

    operator, device = read_operator(function_of(name)), host_device()
    assert operator is not None
    published = kernel_of(name, "ftuner")
    pools = [Pool(k.tiles, device.unit.lanes(operator.item_bits)) for k in (kernel, published)]
    bench = TileBench(operator, resolve_target("cpu"), pools, described=device)
    programs = [(0, Program(rows, 0, vectors)) for rows, vectors in kernel.tiles]
    ratios: dict[str, dict[str, float]] = {"of pool": {}, "FTuner of pool": {}}
    for t in sizes:
        sides = [(0, kernel.program(T=t)), (1, published.program(T=t))]
        trials = [*sides, *(program for program in programs if program not in sides)]
        best = trials[int(bench.seconds([(program, (t,)) for program in trials]).argmin())]
        timed = bench.measure(bench.task((t,)), (t,), [best, *sides] * _PAIRS)
        best_seconds, *others = (float(np.median([m.seconds for m in timed[side::3]])) for side in range(3))
        for key, seconds in zip(ratios, others, strict=True):
            ratios[key][str(t)] = min(1.0, best_seconds / seconds)
    return ratios


def _padding(name: str, kernel: DynamicKernel, t: int) -> float:
    """Return the padded share of the computation. Only columns are padded, because rows are covered exactly."""
    from felixlike.dynamic.emit import Pool, computed_columns
    from felixlike.hardware import host_device

    program = kernel.program(T=t)
    columns = DENSE[name][1] if name in DENSE else t if name.endswith("NT") else _HEAD
    combination = program.at(t)
    assert combination is None or combination.size == t
    return 1 - columns / computed_columns(columns, program.vectors, Pool(kernel.tiles, host_device().unit.lanes(32)))


if __name__ == "__main__":
    from benchmarks import dynamic

    dynamic.main()  # the sides' processes import cached functions by the module's name
