"""Implement `felixlike bench networks`: tune whole networks and compare them with PyTorch and ONNX Runtime here.

Inputs: names, batches, seconds per network. Outputs: a JSON file, which later runs extend, and a page beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from felixlike._util import option_checks as checks


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike bench`."""
    parser = commands.add_parser(
        "bench",
        help="tune whole networks and compare them",
        description="Tune networks (ResNet-50, MobileNet-v2, R3D-18, DCGAN's generator, ViT-B/16, blocks of LLaMA-7B, "
        "GPT-2, an LSTM; random weights) and compare them with PyTorch eager, torch.compile and ONNX "
        "Runtime, timed alternately, each in a separate process. Results are written after each network. Networks that "
        "the results already contain are not measured again.",
    )
    parser.add_argument("what", choices=("networks",), help="what to measure")
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks, default all eight")
    parser.add_argument("--batch", type=int, action="append", help="batch size, default 1; may be repeated")
    parser.add_argument("--seconds", type=float, default=100.0, help="seconds of tuning per network, default 100")
    parser.add_argument(
        "--output", metavar="FILE", default="networks.json", help="JSON file of results; the page is written beside it"
    )
    parser.add_argument(
        "--against",
        metavar="SIDES",
        help="what to compare with, separated by commas: eager, channels-last, compile, onnx, untuned",
    )
    parser.add_argument("--again", action="store_true", help="measure networks that the results already contain again")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no page")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure networks. Return 0, or 1 if a network failed."""
    from felixlike._util.atomic_files import check_writable
    from felixlike.bench import page
    from felixlike.bench.results import of_this_machine
    from felixlike.bench.whole import measure
    from felixlike.cli.terminal import complain
    from felixlike.errors import FelixlikeError, OutputNotWritable, first_line

    path = checks.path(options.output, "output", error=OutputNotWritable)
    check_writable(path)
    seconds = checks.real(options.seconds, "seconds", unit="seconds")
    batches = [checks.whole(batch, "batch", least=1) for batch in options.batch or (1,)]
    against = _against(options.against)
    jobs = [(name, batch) for batch in batches for name in _names(options.names)]
    rows = {page.key(row): row for row in of_this_machine(path).get("rows", [])}
    failed = False
    for name, batch in jobs:
        if not options.again and rows.get((name, batch), {}).get("limit") == seconds:
            continue
        try:
            row = measure(name, batch, seconds, against=against, progress=not options.quiet)
        except (FelixlikeError, RuntimeError, MemoryError) as error:
            complain(f"{name}, batch {batch}: {type(error).__name__}: {first_line(error)}")
            failed = True
            continue
        rows[name, batch] = row
        _write(path, list(rows.values()), quiet=True)
    _write(path, list(rows.values()), quiet=options.quiet)
    return int(failed)


def _write(path: Path, rows: list[dict[str, Any]], *, quiet: bool) -> None:
    """Write the results, the page and the picture. Print the page unless `quiet`."""
    from felixlike.bench import page
    from felixlike.bench.networks import NETWORKS, SMALL
    from felixlike.bench.results import where, write_for_this_machine

    order = [*NETWORKS, *SMALL]
    rows = sorted(rows, key=lambda row: (page.key(row)[1], [*order, row["network"]].index(row["network"])))
    picture = path.with_name(f"{path.stem}-{where()['mcpu']}.svg")
    drawn = bool(rows) and page.draw(rows, picture)
    page_text = write_for_this_machine(
        path, {"rows": rows}, page.text(rows, picture.name if drawn else ""), command="felixlike bench networks"
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


def _against(sides_text: str | None) -> tuple[str, ...]:
    """Return the requested sides; OTHERS by default. Raise InvalidOption for unknown names."""
    from felixlike._util.wording import choose_from
    from felixlike.bench import sides
    from felixlike.bench.whole import OTHERS
    from felixlike.errors import InvalidOption

    known = {
        "eager": sides.EAGER,
        "channels-last": sides.CHANNELS_LAST,
        "compile": sides.COMPILED,
        "onnx": sides.ONNX,
        "untuned": sides.UNTUNED,
    }
    if sides_text is None:
        return OTHERS
    names = [name.strip() for name in sides_text.split(",")]
    for name in names:
        if name not in known:
            raise InvalidOption(f"unknown side {name!r}", where="--against", remedy=choose_from(name, known))
    return tuple(known[name] for name in names)
