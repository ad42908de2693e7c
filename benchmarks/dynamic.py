"""Sizes that a call decides: python -m benchmarks.dynamic [--only NAME] [--step 1] [--static 0].

For dense layers and batch matmuls with every T from 1 to 128: one kernel of ours for all of them beside PyTorch eager,
both whole calls, interleaved, each in a process of its own with a thread on each core; torch.compile with dynamic
shapes and TVM's own dynamic code at eight sizes; padding to the next of eight sizes; what the dispatched program takes
beside the best of the whole pool; and, if asked for, at eight sizes what `optimize` finds for that size alone. Writes
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
    from felixlike.bench.processes import Sides
    from felixlike.dynamic import DynamicKernel

SIZES = range(1, 129)
EIGHT = (5, 24, 43, 62, 81, 100, 119, 128)
"""FTuner's sizes, and the largest."""

_BATCH, _HEAD = 192, 64

_PAIRS = 5
"""Timings of the best of a pool beside what is dispatched."""

DENSE = {"dense 768→2304": (768, 2304), "dense 768→768": (768, 768), "dense 3072→768": (3072, 768)}
DENSE |= {"dense 768→3072": (768, 3072)}
NAMES = (*DENSE, "batch matmul NT", "batch matmul NN")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--step", type=int, default=1, help="every so many sizes")
    parser.add_argument("--static", type=int, default=0, help="rounds of `optimize` for each of eight sizes; 0: none")
    arguments = parser.parse_args()
    from benchmarks.dynamic_tables import picture, text_of
    from benchmarks.results import write_for_this_machine
    from felixlike.bench.processes import Sides
    from felixlike.hardware import placement

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
            if not arguments.only:  # what is there already is not lost with what fails later
                write_for_this_machine("dynamic", {**stated, "operators": rows}, text, command=f"dynamic{options}")
    if not arguments.only:
        picture(rows, flops)


def function_of(name: str) -> Any:
    """The operator with a symbolic T."""
    from support import dynamic_operators as operators

    if name in DENSE:
        return operators.dense(*DENSE[name])
    return operators.scores(_BATCH, _HEAD) if name.endswith("NT") else operators.mixed(_BATCH, _HEAD)


def flops(name: str, t: int) -> int:
    """Of a call."""
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
    """Of a call."""
    import torch

    generator = torch.Generator().manual_seed(t)
    if name in DENSE:
        return torch.randn(t, DENSE[name][0], generator=generator), *_constants(name)
    first = (_BATCH, t, _HEAD) if name.endswith("NT") else (_BATCH, t, t)
    return torch.randn(first, generator=generator), torch.randn(_BATCH, t, _HEAD, generator=generator)


def reference(name: str) -> Callable[..., Any]:
    """What PyTorch computes it with."""
    import torch

    if name in DENSE:
        return torch.nn.functional.linear
    return _times_transposed if name.endswith("NT") else torch.bmm


def _times_transposed(a: Any, b: Any) -> Any:
    return a.bmm(b.transpose(1, 2))


@functools.cache
def kernel_of(name: str) -> DynamicKernel:
    """One for all sizes."""
    import felixlike as fx
    from felixlike import dynamic

    return dynamic.compile(function_of(name), fx.Dim("T", SIZES))


def ours(name: str, t: int) -> Callable[[], object]:
    """A call of the kernel, checked first."""
    kernel, given = kernel_of(name), inputs(name, t)
    wide = reference(name)(*(tensor.double() for tensor in given))
    error = float((kernel(*given) - wide).abs().max() / wide.abs().max())
    if not error < 1e-5:
        raise AssertionError(f"{name} is wrong at T = {t}: {error}")
    return lambda: kernel(*given)


def eager(name: str, t: int) -> Callable[[], object]:
    """PyTorch's call."""
    import torch

    torch.set_grad_enabled(False)
    run, given = reference(name), inputs(name, t)
    return lambda: run(*given)


@functools.cache
def _compiled(name: str) -> Callable[..., Any]:
    import torch

    compiled: Callable[..., Any] = torch.compile(reference(name), dynamic=True)
    return compiled


def torch_compiled(name: str, t: int) -> Callable[[], object]:
    """torch.compile with dynamic shapes, compiled once for all sizes."""
    import torch

    torch.set_grad_enabled(False)
    run, given = _compiled(name), inputs(name, t)
    return lambda: run(*given)


@functools.cache
def _plain(name: str) -> Any:
    from felixlike import _tvm
    from felixlike.hardware import resolve_target

    func = function_of(name).with_attr("global_symbol", "main")
    return _tvm.tvm.compile(_tvm.IRModule({"main": func}), target=resolve_target("cpu")).jit()["main"]


def tvm_dynamic(name: str, t: int) -> Callable[[], object]:
    """TVM's code of the same function, which has no schedule for sizes that it does not know."""
    import torch

    run, given = _plain(name), inputs(name, t)
    output = torch.empty(tuple(reference(name)(*given).shape))
    return lambda: run(*given, output)


def _static(rounds: int, name: str, t: int) -> Callable[[], object]:
    """What `optimize` finds for one size."""
    import torch

    import felixlike as fx

    given = inputs(name, t)
    model = _Dense(*_constants(name)) if name in DENSE else _Product(reference(name))
    fast = fx.optimize(model.eval(), given[:1] if name in DENSE else given, rounds, progress=False)
    own = given[:1] if name in DENSE else given
    torch.set_grad_enabled(False)
    return lambda: fast(*own)


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
    """Everything about one operator."""
    started = time.monotonic()
    kernel = kernel_of(name)
    tuning = time.monotonic() - started
    seconds: dict[str, dict[int, float]] = {}

    def note(makes: Mapping[str, Callable[..., Any]], t: int, *, each: float) -> dict[str, float]:
        made = {side: partial(make, name, t) for side, make in makes.items()}
        found = sides.compare(made, seconds_a_side=each, slot=each / 6)
        return {side: timed.seconds for side, timed in found.items()}

    def keep(found: Mapping[str, float], t: int) -> None:
        for side, taken in found.items():
            seconds.setdefault(side, {})[t] = taken

    for t in sizes:
        keep(note({"ours": ours, "eager": eager}, t, each=0.06), t)
    for t in EIGHT:
        keep(note({"torch.compile": torch_compiled, "TVM dynamic": tvm_dynamic}, t, each=0.06), t)
        if rounds:
            found = note({"beside static": ours, "static": partial(_static, rounds)}, t, each=0.3)
            keep(found, t)
    report = kernel.report
    return {
        "tuning": tuning,
        "stages": {stage.name: stage.kernels for stage in report.stages},
        "relaxed": {stage.name: stage.relaxed for stage in report.stages},
        "measured": report.measured,
        "uKernels in code": report.tiles,
        "seconds": {side: {str(t): s for t, s in own.items()} for side, own in seconds.items()},
        "of pool": {str(t): share for t, share in _of_pool(name, kernel, sizes).items()},
        "padding": statistics.fmean(_padding(name, kernel, t) for t in sizes),
    }


def _of_pool(name: str, kernel: DynamicKernel, sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of the best program of the pool over those of the one that is dispatched, in turns; 1 is best.

    The best of many timings is partly luck: it is timed again beside the other before it counts."""
    from felixlike.dynamic.emit import Pool
    from felixlike.dynamic.operator import read_operator
    from felixlike.dynamic.program import Program
    from felixlike.dynamic.timing import Bench
    from felixlike.hardware import host_device, resolve_target

    operator, device = read_operator(function_of(name)), host_device()
    assert operator is not None
    bench = Bench(operator, resolve_target("cpu"), cores=device.cores)
    bench.open([Pool(kernel.tiles, device.unit.lanes(operator.item_bits))])
    programs = [Program(rows, 0, vectors) for rows, vectors in kernel.tiles]
    found = {}
    for t in sizes:
        own = kernel.program(T=t)
        trials = [own, *(p for p in programs if p != own)]
        taken = bench.seconds([(0, program, (t,)) for program in trials])
        pair = [(0, own, (t,)), (0, trials[int(taken.argmin())], (t,))]
        again = bench.seconds(pair * _PAIRS)
        found[t] = min(1.0, float(np.median(again[1::2]) / np.median(again[::2])))
    return found


def _padding(name: str, kernel: DynamicKernel, t: int) -> float:
    """The share of the computation that is padding: of columns, since rows are covered exactly."""
    from felixlike.dynamic.padding import padding_share
    from felixlike.hardware import host_device

    program = kernel.program(T=t)
    columns = DENSE[name][1] if name in DENSE else t if name.endswith("NT") else _HEAD
    combination = program.at(t)
    assert combination is None or combination.size == t
    return padding_share((columns,), (program.vectors * host_device().unit.lanes(32),))


if __name__ == "__main__":
    main()
