"""Measure networks with dynamic sizes: python -m benchmarks.dynamic_networks [--only NAME] [--seconds 100].

One artefact for all sizes is compared with PyTorch eager and torch.compile with dynamic shapes. Whole calls are timed
interleaved, each side in its own process with a thread per core. The networks are ResNet-18 with batches of 1 to 16,
and BERT-base, BERT-large and GPT-2 with lengths of 1 to 128. Eight sizes each are timed and compared with float64. The
benchmark writes docs/results/dynamic_networks.json and .md.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.dynamic import EIGHT

if TYPE_CHECKING:
    from felixlike.measure.sides.processes import Sides

BATCHES = (1, 2, 3, 5, 8, 11, 13, 16)
NETWORKS = {"ResNet-18, batch": BATCHES}
NETWORKS |= dict.fromkeys(("BERT-base, length", "BERT-large, length", "GPT-2, length"), EIGHT)

_BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
"""Options of BertConfig; its defaults are BERT-base."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this; other rows stay")
    parser.add_argument("--seconds", type=float, default=100.0, help="of tuning, where sizes of parts are tuned")
    arguments = parser.parse_args()
    from benchmarks.results import of_this_machine, write_for_this_machine
    from felixlike.measure.sides.processes import Sides

    rows = dict(of_this_machine("dynamic_networks").get("networks", {}))
    for name in NETWORKS:
        if arguments.only in name:
            with Sides() as sides, tempfile.TemporaryDirectory(prefix="felixlike-") as folder:
                rows[name] = _measured(name, sides, Path(folder) / "model.fx", arguments.seconds)
            ordered = {network_name: rows[network_name] for network_name in NETWORKS if network_name in rows}
            write_for_this_machine("dynamic_networks", {"networks": ordered}, _text(ordered))


@functools.cache
def network(name: str) -> Any:
    """Return the model."""
    import torch

    from felixlike.bench import networks

    torch.manual_seed(0)
    if name.startswith("ResNet"):
        return networks.resnet18()[0]
    if name.startswith("GPT"):
        return networks.Output(networks.gpt2()[0].model, "last_hidden_state").eval()
    import transformers

    config = transformers.BertConfig(**_BERT_LARGE if name.startswith("BERT-large") else {})
    return networks.Output(transformers.BertModel(config), "last_hidden_state").eval()


def inputs(name: str, size: int) -> tuple[Any, ...]:
    """Return the inputs of a call of this size."""
    import torch

    generator = torch.Generator().manual_seed(size)
    if name.startswith("ResNet"):
        return (torch.randn(size, 3, 224, 224, generator=generator),)
    return (torch.randint(0, 10_000, (1, size), generator=generator),)


def optimized(name: str, seconds: float) -> Any:
    """Optimize one artefact for all sizes."""
    import torch

    import felixlike as fx

    model = network(name)
    if name.startswith("ResNet"):
        return fx.optimize(model, ((fx.Dim("N", range(1, 17)), 3, 224, 224),), seconds=seconds, progress=False)
    dynamic = {"x": {1: torch.export.Dim("T", min=1, max=128)}}
    return fx.optimize(torch.export.export(model, inputs(name, 9), dynamic_shapes=dynamic), progress=False)


@functools.cache
def _loaded(path: Path) -> Any:
    import felixlike as fx

    return fx.load(path)


def ours(path: Path, name: str, size: int) -> Callable[[], object]:
    """Return a call of the saved artefact."""
    model, tensors = _loaded(path), inputs(name, size)
    return lambda: model(*tensors)


def eager(name: str, size: int) -> Callable[[], object]:
    """Return a call of PyTorch eager."""
    import torch

    torch.set_grad_enabled(False)
    model, tensors = network(name), inputs(name, size)
    return lambda: model(*tensors)


@functools.cache
def _compiled(name: str) -> Any:
    import torch

    return torch.compile(network(name), dynamic=True)


def compiled(name: str, size: int) -> Callable[[], object]:
    """Return a call of torch.compile with dynamic shapes, compiled once for all sizes."""
    import torch

    torch.set_grad_enabled(False)
    model, tensors = _compiled(name), inputs(name, size)
    return lambda: model(*tensors)


def _measured(name: str, sides: Sides, path: Path, seconds: float) -> dict[str, Any]:
    """Measure all sides of one network."""
    started = time.monotonic()
    artefact = optimized(name, seconds)
    spent = time.monotonic() - started
    artefact.save(path)
    errors = {size: _error(name, artefact, size) for size in NETWORKS[name]}
    seconds_by_size: dict[str, dict[str, float]] = {}
    for size in NETWORKS[name]:
        makes: dict[str, Callable[..., Any]] = {"ours": partial(ours, path), "eager": eager, "torch.compile": compiled}
        timed = sides.compare({side: partial(make, name, size) for side, make in makes.items()}, seconds_a_side=1.5)
        seconds_by_size[str(size)] = {side: timing.seconds for side, timing in timed.items()}
        print(
            name,
            size,
            {side: round(1e3 * side_seconds, 2) for side, side_seconds in seconds_by_size[str(size)].items()},
            flush=True,
        )
    return {
        "seconds": seconds_by_size,
        "spent": spent,
        "bytes": path.stat().st_size,
        "error": max(errors.values()),
        "how": artefact.report.stopped,
    }


def _error(name: str, artefact: Any, size: int) -> float:
    """Maximum relative error against float64."""
    import copy

    import torch

    tensors = inputs(name, size)
    wide_tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    with torch.no_grad():
        expected = copy.deepcopy(network(name)).double()(*wide_tensors)
    return float((artefact(*tensors) - expected).abs().max() / expected.abs().max())


def _text(rows: Mapping[str, Any]) -> str:
    from felixlike.bench.results import geometric_mean

    lines = [
        "One artefact for all sizes. eager ÷ ours, torch.compile ÷ ours: above 1 ours is faster; geometric mean and"
        " worst of the sizes.",
        "",
        "| network | eager ÷ ours | worst | torch.compile ÷ ours | worst | optimizing | artefact | max error | how |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        cells = []
        for side in ("eager", "torch.compile"):
            ratios = [by_side[side] / by_side["ours"] for by_side in row["seconds"].values() if side in by_side]
            cells += [f"**{geometric_mean(ratios):.2f}**", f"{min(ratios):.2f}"] if ratios else ["–", "–"]
        size = f"{row['bytes'] / 2**20:.0f} MiB"
        lines.append(
            f"| {name} | {' | '.join(cells)} | {row['spent']:.0f} s | {size} | {row['error']:.1e} | {row['how']} |"
        )
    for name, row in rows.items():
        sides = list(next(iter(row["seconds"].values())))
        lines += ["", f"{name}, ms:", "", f"| size | {' | '.join(sides)} |", f"| --- |{' --- |' * len(sides)}"]
        for size_name, by_side in row["seconds"].items():
            lines.append(
                f"| {size_name} | {' | '.join(f'{1e3 * by_side[s]:.2f}' if s in by_side else '–' for s in sides)} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    from benchmarks import dynamic_networks

    dynamic_networks.main()  # the sides' processes import cached functions by the module's name
