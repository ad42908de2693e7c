"""Compare design spaces: python -m benchmarks.space [--default 256] [--own 16 64] [--only NAME].

For each of the ten subgraphs (with constant weights where the network has them), on one core and on all, the
benchmark tunes some candidates in MetaSchedule's default space and fewer in felixlike's space. The baselines are
PyTorch eager in its better layout, oneDNN with prepacked weights, which torch.compile's frozen graphs use, and the
machine's peak. All sides are whole calls from torch tensors to torch tensors, interleaved, each in its own process
with as many threads, on different cores. It writes docs/results/space.json and .md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike.hardware.probe import usable_processors

if TYPE_CHECKING:
    from felixlike.measure.sides.processes import Make, Sides

_PEAK = Path(__file__).with_name("peak.c")
"""Measures independent fused multiply-adds in registers, and reads from more memory than any cache holds."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--default", type=int, default=256, help="candidates in the default space; 0 leaves it out")
    parser.add_argument("--own", type=int, nargs="+", default=[16, 64], help="candidates in ours")
    parser.add_argument("--cores", type=int, nargs="+", help="default: one, and all")
    parser.add_argument("--only", default="", help="subgraphs whose name contains this")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.result:
        _measure_all(arguments)
        return
    usable = [min(core) for core in usable_processors()]
    data = {}
    for count in arguments.cores or sorted({1, len(usable)}):
        data[str(count)] = _in_process(usable[:count], arguments)
        if not arguments.only:
            from benchmarks.results import write_for_this_machine

            command = f"space --default {arguments.default} --own {' '.join(map(str, arguments.own))}"
            write_for_this_machine("space", {"cores": data}, _text(data), command=command)
    if arguments.only:
        print(_text(data))


def _in_process(cores: Sequence[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the rows for some cores, from a process that is restricted to them."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        own_counts = [str(count) for count in arguments.own]
        command = [sys.executable, "-m", "benchmarks.space", "--default", str(arguments.default), "--own", *own_counts]
        command += ["--only", arguments.only, "--result", str(result)]
        number = str(len(cores))
        threads = {"OMP_NUM_THREADS": number, "TVM_NUM_THREADS": number, "MKL_NUM_THREADS": number}
        subprocess.run(
            command, check=True, env={**os.environ, **threads}, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        )
        result_rows: dict[str, Any] = json.loads(result.read_text())
        return result_rows


def _measure_all(arguments: argparse.Namespace) -> None:
    from benchmarks.subgraphs import LAYERS
    from felixlike.measure.sides.processes import Sides

    with Sides() as sides:
        rows = [_row(name, arguments, sides) for name in LAYERS if arguments.only in name]
    Path(arguments.result).write_text(json.dumps({"peak": _peak(), "rows": rows}))


def layer(name: str) -> Any:
    """Return a layer of `subgraphs.LAYERS` and its inputs, seeded."""
    import torch

    from benchmarks.subgraphs import LAYERS

    torch.manual_seed(0)
    return LAYERS[name]()


def _row(name: str, arguments: argparse.Namespace, sides: Sides) -> dict[str, Any]:
    row: dict[str, Any] = {"subgraph": name, "tuning": {}}
    make = partial(layer, name)
    makes: dict[str, Make] = {label: partial(pytorch, make, label) for label in pytorch_sides(*make())}
    budgets = [("default", arguments.default), *(("own", count) for count in arguments.own)]
    with tempfile.TemporaryDirectory(prefix="felixlike-space-") as folder:
        for space, count in budgets:
            if count:
                label = f"{space} {count}"
                makes[label] = _tuned(make, space, count, row, Path(folder) / f"{label}.flx")
        times = sides.compare(makes, seconds_a_side=1.5, slot=0.05)
    row["seconds"] = {label: t.seconds for label, t in times.items()}
    row["mean"] = {label: t.mean for label, t in times.items()}
    row["quartiles"] = {label: [t.low, t.high] for label, t in times.items()}
    print(json.dumps(row), flush=True)
    return row


def _tuned(make: Callable[[], Any], space: str, count: int, row: dict[str, Any], path: Path) -> Make:
    import felixlike as fx
    from felixlike.bench.sides import saved

    module, inputs = make()
    tuned = fx.optimize(module, inputs, trials=count, space="best" if space == "own" else space, progress=False)
    row["flops"] = sum(task.flops * task.weight for task in tuned.report.tasks)
    row["error"] = max(tuned.report.error, row.get("error", 0.0))
    row["tuning"][f"{space} {count}"] = tuned.report.seconds
    tuned.save(path)
    return partial(saved, path, make)


def pytorch(make: Callable[[], Any], label: str) -> Callable[[], object]:
    """Return one of the `pytorch_sides` of a module."""
    return pytorch_sides(*make())[label]


def pytorch_sides(module: Any, inputs: Sequence[Any]) -> dict[str, Callable[[], object]]:
    """Return PyTorch eager and oneDNN with packed weights, each in both layouts where the layer supports them."""
    import torch

    from felixlike.bench.sides import inference

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(inputs[0].dim())
    sides: dict[str, Callable[[], object]] = {"eager": inference(module, inputs)}
    last = None
    if layout is not None:
        last = [x.contiguous(memory_format=layout) for x in inputs]
        sides["eager channels last"] = inference(copy.deepcopy(module).to(memory_format=layout), last)
    packed = _packed(module, inputs)
    for suffix, side_inputs in (("", inputs), (" channels last", last)):
        if packed is not None and side_inputs is not None:
            sides[f"oneDNN packed{suffix}"] = inference(packed, side_inputs)
    return sides


def _packed(module: Any, inputs: Sequence[Any]) -> Callable[..., object] | None:
    """Return oneDNN's kernel with fused relu and prepacked weights, or None if there is none for the layer."""
    import torch
    from torch import nn

    layer = module[0] if isinstance(module, nn.Sequential) else None
    ops, size = torch.ops.mkldnn, list(inputs[0].shape)
    if isinstance(layer, nn.Linear):
        weight = ops._reorder_linear_weight(layer.weight.detach(), size[0])
        return lambda x: ops._linear_pointwise(x, weight, layer.bias, "relu", [], "")
    if isinstance(layer, nn.ConvTranspose2d):
        how = (list(layer.padding), [0, 0], list(layer.stride), [1, 1], layer.groups)
        weight = ops._reorder_convolution_transpose_weight(layer.weight.detach(), *how, size)
        return lambda x: ops._convolution_transpose_pointwise(x, weight, layer.bias, *how, "relu", [], "")
    if isinstance(layer, nn.Conv2d | nn.Conv3d):
        shape = (list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups)
        weight = ops._reorder_convolution_weight(layer.weight.detach(), *shape, size)
        return lambda x: ops._convolution_pointwise(x, weight, layer.bias, *shape, "relu", [], "")
    return None


def _peak() -> dict[str, float]:
    """Return GFLOPS of multiply-adds and GB/s of memory reads on all cores of this process."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "peak")
        subprocess.run(["cc", "-O3", "-march=native", "-pthread", str(_PEAK), "-o", program], check=True)
        cores = str(len(os.sched_getaffinity(0)))
        out = subprocess.run([program, cores], check=True, capture_output=True, text=True).stdout.split()
    return {"gflops": float(out[0]), "gbs": float(out[1])}


def _best(row: dict[str, Any], start: str) -> float | None:
    """Return the lowest median of the sides whose names start with `start`."""
    label = _fastest(row, start)
    return None if label is None else float(row["seconds"][label])


def _fastest(row: dict[str, Any], start: str) -> str | None:
    seconds = row["seconds"]
    return min((label for label in seconds if label.startswith(start)), key=seconds.__getitem__, default=None)


def _text(data: dict[str, Any]) -> str:
    from benchmarks.results import geometric_mean

    lines = [
        "Microseconds of a call, median / mean, in interleaved turns; ratios of medians are PyTorch ÷ ours, above 1",
        "ours is faster; in brackets the seconds of tuning.",
        "eager: the better of PyTorch's two layouts; packed: oneDNN with packed weights, likewise. of peak: the FLOP",
        "that its tasks do, which are fewer for fast convolutions, over what the cores could do in that time.",
    ]
    for cores, core_results in data.items():
        rows, peak = core_results["rows"], core_results["peak"]
        labels = list(rows[0]["tuning"])
        own_label = labels[-1]
        lines += [
            "",
            f"## {cores} core{'s' if cores != '1' else ''}: {peak['gflops']:.0f} GFLOPS, {peak['gbs']:.0f} GB/s",
            "",
            f"| subgraph | eager | packed | {' | '.join(f'{label} (s)' for label in labels)} "
            f"| {' | '.join(f'eager ÷ {label}' for label in labels)} | packed ÷ {own_label} | of peak | error |",
            "| --- " * (6 + 2 * len(labels)) + "|",
            *(_line(row, labels, peak) for row in rows),
            "",
        ]
        for label in labels:
            ratios = [(_best(row, "eager") or 0) / row["seconds"][label] for row in rows]
            level = sum(ratio >= 1 for ratio in ratios)
            mean = geometric_mean(ratios)
            lines.append(f"eager ÷ {label}, geometric mean: **{mean:.2f}**; at least 1 on {level} of {len(rows)}.")
        packed = [p / row["seconds"][own_label] for row in rows if (p := _best(row, "oneDNN"))]
        if packed:
            near = sum(ratio >= 0.97 for ratio in packed)
            mean = geometric_mean(packed)
            lines.append(
                f"packed ÷ {own_label}, geometric mean: **{mean:.2f}**; at least 0.97 on {near} of {len(packed)}."
            )
    return "\n".join(lines)


def _line(row: dict[str, Any], labels: Sequence[str], peak: dict[str, float]) -> str:
    seconds = row["seconds"]
    eager, packed = _best(row, "eager") or 0.0, _best(row, "oneDNN")
    own_seconds = seconds[labels[-1]]
    cells = [_cell(row, _fastest(row, start)) for start in ("eager", "oneDNN")]
    cells += [f"{_cell(row, label)} ({row['tuning'][label]:.0f})" for label in labels]
    cells += [f"{eager / seconds[label]:.2f}" for label in labels]
    cells.append("–" if packed is None else f"{packed / own_seconds:.2f}")
    cells += [f"{row['flops'] / own_seconds / 1e9 / peak['gflops']:.0%}", f"{row['error']:.1e}"]
    return f"| {row['subgraph']} | {' | '.join(cells)} |"


def _cell(row: dict[str, Any], label: str | None) -> str:
    """Format median / mean in µs."""
    return "–" if label is None else f"{row['seconds'][label] * 1e6:.0f} / {row['mean'][label] * 1e6:.0f}"


if __name__ == "__main__":
    main()
