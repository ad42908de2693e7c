"""Implement `felixlike tc`: run a tensor comprehension from a file on random inputs.

Inputs: a file with one or more definitions, sizes. Outputs: shapes of the outputs and the time of a call. The
comprehension is tuned on request.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from felixlike._util import option_checks as checks
from felixlike.errors import InvalidModel, InvalidOption

_SIZE = 64
"""Default size of dimensions. Chosen by hand."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike tc`."""
    parser = commands.add_parser(
        "tc",
        help="run a tensor comprehension on random inputs",
        description="Run a tensor comprehension on random inputs and show the time of a call. Compiled code and "
        "the results of tuning are cached for later runs and for felixlike.tc.define.",
    )
    parser.add_argument("file", metavar="FILE", help="text file with definitions")
    parser.add_argument("--name", help="name of the definition; required if there are several")
    parser.add_argument(
        "--size", action="append", default=[], metavar="N=128", help=f"a size, default {_SIZE}; may be repeated"
    )
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--explain", action="store_true", help="print ranges and functions first")
    parser.add_argument(
        "--schedule-tree", action="store_true", help="print the schedule tree that isl computes, and run nothing"
    )
    parser.add_argument("--c", action="store_true", help="print readable C of the schedule, and run nothing")
    parser.add_argument(
        "--fusion",
        help="fusion strategy of isl: Max, Preserve3Coincident or Min (one by one); default felixlike's rules, and Max "
        "for trees and C",
    )
    parser.add_argument("--tune", action="store_true", help="tune, and show the time before and after")
    parser.add_argument("--rounds", type=int, help="with --tune: rounds of one task each")
    parser.add_argument("--trials", type=int, help="with --tune: total number of measured candidates")
    parser.add_argument("--seconds", type=float, help="with --tune: seconds of tuning")
    parser.add_argument("--effort", default="normal", help="with --tune: instant, quick, normal or thorough")
    parser.add_argument("--store", metavar="PATH", help="with --tune: save every measurement in this file")
    parser.add_argument("--strategy", default="gradient", help="with --tune: search strategy, default gradient")
    parser.add_argument("--space", default="best", help="with --tune: design space: best, own, default or all")
    parser.add_argument("--precision", default="float32", help="with --tune: as of felixlike tune")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs and of the search")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run, tune and run again. Return 0."""
    from felixlike.tc import Options, define
    from felixlike.tc.trial import random_inputs, seconds_of

    unused = [name for name in ("rounds", "trials", "seconds", "store") if getattr(options, name) is not None]
    if unused and not options.tune:
        raise InvalidOption(f"--{unused[0]} is for --tune", where="tc", remedy="add --tune, or leave it out")
    path = checks.path(options.file, "file", error=InvalidModel)
    try:
        source = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidModel("it is not a text file", where=str(path), remedy="give a file with definitions") from None
    mapping = Options() if options.fusion is None else Options().fuse(options.fusion)
    defined = define(source, options.name, options.target, options=mapping)
    inputs, out_tensors = random_inputs(defined.program, _sizes(options.size), _SIZE, seed=checks.seed(options.seed))
    if options.schedule_tree:
        print(defined.schedule_tree(*inputs))
    if options.c:
        print(defined.to_c(*inputs))
    if options.schedule_tree or options.c:
        return 0
    if options.explain:
        print(defined.explain(*inputs))
    result = defined(*inputs, out=out_tensors or None)
    outputs = result if isinstance(result, tuple) else (result,)
    for output, tensor in zip(defined.program.outputs, outputs, strict=True):
        print(f"{output.name}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    print(f"{defined.name}: {_shown(seconds_of(defined, inputs, out_tensors))} per call")
    if options.tune:
        defined.tune(
            *inputs,
            out=out_tensors or None,
            rounds=options.rounds,
            trials=options.trials,
            seconds=options.seconds,
            effort=options.effort,
            store=options.store,
            strategy=options.strategy,
            space=options.space,
            precision=options.precision,
            seed=options.seed,
            progress=not options.quiet,
        )
        print(defined.report)
        print(f"{defined.name}: {_shown(seconds_of(defined, inputs, out_tensors))} per call, tuned")
    return 0


def _shown(seconds: float) -> str:
    """Return seconds as text, in ms or µs."""
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _sizes(texts: list[str]) -> dict[str, int]:
    """Parse sizes in the form N=128. Raise InvalidOption."""
    sizes = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not name.isidentifier() or not re.fullmatch(r"0*[1-9]\d{0,17}", number):
            raise InvalidOption(
                f"expected NAME=SIZE with a positive size, got {text!r}", where="--size", remedy="for example N=128"
            )
        sizes[name] = int(number)
    return sizes
