"""Implement `felixlike bench`: tune whole models and compare them with the other compilers that are installed here.

Inputs: names of networks and batches, or a user's model; seconds per model. Outputs: for networks a JSON file, which
later runs extend, and a page beside it; for a user's model the page's text and a sentence about the fastest side.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from felixlike._util import option_checks as checks
from felixlike.cli import bench_curves

_NETWORKS = "networks"
"""Word that stands for the networks of `bench.networks`."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike bench`."""
    from felixlike.cli.tune import add_shape

    parser = commands.add_parser(
        "bench",
        help="tune whole models and compare them with other compilers",
        description="Tune a model of yours, or networks (ResNet-18 and -50, MobileNet-v2, R3D-18, a U-Net, DCGAN's "
        "generator, ViT-B/16, BERT-base, Whisper-tiny's encoder, a block of LLaMA-7B, GPT-2, an LSTM, a GRU, an MLP; "
        "random weights), and compare them with PyTorch eager, torch.compile, ONNX Runtime, OpenVINO and zentorch at "
        "their best settings, as far as they are installed. Sides are timed alternately, each in a separate process. "
        "Results are written after each network. Networks that the results already contain are not measured again.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help='"networks", or your model: file.py:factory, package.module:factory, a .pt2 file'
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, default all fourteen")
    bench_curves.add_options(parser)
    add_shape(parser)
    parser.add_argument("--batch", type=int, action="append", help="batch size of networks, default 1; may be repeated")
    parser.add_argument("--seconds", type=float, default=100.0, help="seconds of tuning per model, default 100")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="JSON file of results; the page is written beside it; default networks.json for networks "
        f"({bench_curves.OUTPUT} with --curves), else none",
    )
    parser.add_argument(
        "--against", metavar="SIDES", help=f"what to compare with, separated by commas: {', '.join(_SIDES)}"
    )
    parser.add_argument(
        "--precision",
        default="float32",
        help="precision of products: float32, or bfloat16 for a table of its own, in which PyTorch computes the model "
        "in bfloat16 and OpenVINO products; answers are compared with the model in float64",
    )
    parser.add_argument("--again", action="store_true", help="measure networks that the results already contain again")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no page")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure models. Return 0, or 1 if a network failed."""
    from felixlike._util.atomic_files import check_writable
    from felixlike.errors import InvalidOption, OutputNotWritable

    is_networks = options.model == _NETWORKS
    if not is_networks and (options.names or options.batch):
        raise InvalidOption(
            f"{'--batch' if options.batch else options.names[0]} is for networks, not for a model of yours",
            where="bench",
            remedy="leave it out; --shape sets the sizes of the model's inputs",
        )
    if is_networks and options.shape:
        raise InvalidOption("--shape is for a model of yours", where="bench", remedy="use --batch for networks")
    if options.curves and not is_networks:
        raise InvalidOption("--curves is for networks, not for a model of yours", where="bench", remedy="leave it out")
    bench_curves.check_unused(options)
    default = bench_curves.OUTPUT if options.curves else "networks.json"
    name = options.output or (default if is_networks else None)
    path = None if name is None else checks.path(name, "output", error=OutputNotWritable)
    if path is not None:
        check_writable(path)
    seconds = checks.real(options.seconds, "seconds", unit="seconds")
    checks.one_of(options.precision, "precision", ("float32", "bfloat16"), what="a precision of this comparison")
    if path is not None and options.curves:
        return bench_curves.run(options, path, seconds)
    against = _against(options.against)
    if path is not None and is_networks:
        return _run_networks(options, path, seconds, against)
    return _run_model(options, path, seconds, against)


def _run_networks(options: argparse.Namespace, path: Path, seconds: float, against: tuple[str, ...] | None) -> int:
    """Measure networks. Return 0, or 1 if one failed."""
    from felixlike.bench import page
    from felixlike.bench.results import of_this_machine
    from felixlike.bench.whole import measure
    from felixlike.cli.terminal import complain
    from felixlike.errors import FelixlikeError, first_line

    batches = [checks.whole(batch, "batch", least=1) for batch in options.batch or (1,)]
    jobs = [(name, batch) for batch in batches for name in _names(options.names)]
    precision = options.precision
    rows = {(*page.key(row), page.products(row)): row for row in of_this_machine(path).get("rows", [])}
    failed = False
    for name, batch in jobs:
        if not options.again and rows.get((name, batch, precision), {}).get("limit") == seconds:
            continue
        try:
            row = measure(name, batch, seconds, against=against, progress=not options.quiet, precision=precision)
        except (FelixlikeError, RuntimeError, MemoryError) as error:
            complain(f"{name}, batch {batch}: {type(error).__name__}: {first_line(error)}")
            failed = True
            continue
        rows[name, batch, precision] = row
        _write(path, list(rows.values()), quiet=True)
    _write(path, list(rows.values()), quiet=options.quiet)
    return int(failed)


def _run_model(options: argparse.Namespace, path: Path | None, seconds: float, against: tuple[str, ...] | None) -> int:
    """Measure a user's model. Return 0, or 1 if the tuned model cannot be called."""
    from felixlike.bench import page
    from felixlike.bench.given import given
    from felixlike.bench.results import of_this_machine
    from felixlike.bench.whole import compared
    from felixlike.cli.terminal import complain
    from felixlike.cli.tune import read_model
    from felixlike.measure.sides.processes import SideFailed

    name, make = given(*read_model(options))
    try:
        more: dict[str, Any] = {"progress": not options.quiet, "precision": options.precision}
        row = {"network": options.model, **compared(make, name, seconds, against=against, **more)}
    except SideFailed as failure:
        complain(str(failure))
        return 1
    if path is not None:
        rows = of_this_machine(path).get("rows", [])
        here = options.model, options.precision
        others = [other for other in rows if (other["network"], page.products(other)) != here]
        _write(path, [*others, row], quiet=True)
    if not options.quiet:
        print(page.text([row]), page.verdict(row), sep="\n\n")
    return 0


def _write(path: Path, rows: list[dict[str, Any]], *, quiet: bool) -> None:
    """Write the results, the page and the picture. Print the page unless `quiet`."""
    from felixlike.bench import page
    from felixlike.bench.networks import NETWORKS, SMALL
    from felixlike.bench.results import where, write_for_this_machine

    order = [*NETWORKS, *SMALL]
    rows = sorted(rows, key=lambda row: (page.key(row)[1], [*order, row["network"]].index(row["network"])))
    picture = path.with_name(f"{path.stem}-{where()['mcpu']}.svg")
    first = [row for row in rows if page.products(row) == "float32"] or rows
    drawn = bool(rows) and page.draw(first, picture)
    page_text = write_for_this_machine(
        path, {"rows": rows}, page.text(rows, picture.name if drawn else ""), command="felixlike bench"
    )
    if not quiet:
        print(page_text)


def _names(names: list[str]) -> list[str]:
    """Return the requested networks; all by default. Raise InvalidOption for unknown names."""
    from felixlike._util.wording import choose_from
    from felixlike.bench.networks import NETWORKS, SMALL
    from felixlike.errors import InvalidOption

    known = [*NETWORKS, *SMALL]
    for name in names:
        if name not in known:
            raise InvalidOption(f"unknown network {name!r}", where="bench", remedy=choose_from(name, known))
    return list(dict.fromkeys(names)) or list(NETWORKS)


def _against(sides_text: str | None) -> tuple[str, ...] | None:
    """Return the requested sides; None by default. Raise InvalidOption for unknown names."""
    from felixlike._util.wording import choose_from
    from felixlike.bench import sides
    from felixlike.errors import InvalidOption

    if sides_text is None:
        return None
    names = [name.strip() for name in sides_text.split(",")]
    for name in names:
        if name not in _SIDES:
            raise InvalidOption(f"unknown side {name!r}", where="--against", remedy=choose_from(name, list(_SIDES)))
    return tuple(getattr(sides, constant) for name in names for constant in _SIDES[name])


_SIDES = {
    "eager": ("EAGER",),
    "channels-last": ("CHANNELS_LAST",),
    "compile": ("COMPILED", "COMPILED_BEST"),
    "onnx": ("ONNX", "ONNX_FUSED"),
    "openvino": ("OPENVINO", "OPENVINO_DEFAULT"),
    "zentorch": ("ZENTORCH",),
    "zero-shot": ("ZERO_SHOT",),
    "untuned": ("UNTUNED",),
}
"""Names of sides for --against, with those of their constants in `bench.sides`, which is slow to import."""
