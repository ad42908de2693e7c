"""Implement `felixlike tune`: tune a model from a file and save it.

Inputs: file.py:factory, a .pt2 or .onnx file, shapes, a budget. Outputs: an artefact and a report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from felixlike._util import interrupts
from felixlike._util import option_checks as checks
from felixlike.cli import authorship
from felixlike.cli.dimensions import dynamic_shapes, example_sizes, parse_dims
from felixlike.cli.keep import FirstCopy, kept, unverified
from felixlike.cli.model_file import file_of, model_from, named_from_anywhere
from felixlike.cli.terminal import complain
from felixlike.errors import InvalidWeights, OutputNotWritable


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike tune`."""
    parser = commands.add_parser(
        "tune",
        help="tune a model and save the result",
        description="Tune a model. MODEL is file.py:factory or package.module:factory (a function that returns a "
        "module, or a module and example inputs), a .pt2 file or a .onnx file.",
    )
    add_model(parser)
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=1..128",
        help="a size that differs between calls, for names in --shape: --shape x=1xT --dim T=1..128; also a list: "
        "T=16,32,64; may be repeated",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of one task each; limits are totals over all runs with a store"
    )
    parser.add_argument("--trials", type=int, help="total number of measured candidates")
    parser.add_argument("--seconds", type=float, help="seconds of tuning")
    parser.add_argument(
        "--effort", default="normal", help="without limits: instant (measure nothing), quick, normal or thorough"
    )
    parser.add_argument("--output", metavar="PATH", help="path of the tuned model")
    parser.add_argument(
        "--store", metavar="PATH", help="save every measurement in this file, and continue from its measurements"
    )
    parser.add_argument(
        "--strategy", default="gradient", help="search strategy, default gradient; others are in docs/strategies.md"
    )
    parser.add_argument(
        "--planner", help="kernels for dynamic sizes: timed (default), ftuner, dietcode (docs/dynamic-shapes.md)"
    )
    parser.add_argument(
        "--sia",
        metavar="C0,C1,C2",
        help="weights of FTuner's score in these kernels, or a store whose timings they are fitted to",
    )
    parser.add_argument("--space", default="best", help="design space: best, own, default or all")
    parser.add_argument(
        "--precision",
        default="float32",
        help="precision of products: float32; on CPUs also bfloat16, on a GPU's tensor cores tf32, float16, bfloat16",
    )
    parser.add_argument(
        "--tolerance", type=float, help="largest error of the outputs, relative to the largest one, due to --precision"
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="weights of the cost model, from felixlike train; default: the shipped ones"
    )
    parser.add_argument("--tracker", metavar="HOST:PORT", help="measure on the servers of this tracker")
    parser.add_argument("--key", help="key of these servers")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search, default 0")
    parser.add_argument("--compare", action="store_true", help="also time the original in eager PyTorch")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no report")
    parser.add_argument("--in-background-of", type=int, metavar="PID", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def add_model(parser: Any) -> None:
    """Add the arguments that name a model, its inputs and a target."""
    parser.add_argument(
        "model", metavar="MODEL", help="file.py:factory, package.module:factory, a .pt2 or a .onnx file"
    )
    add_shape(parser)
    parser.add_argument(
        "--target", default="cpu", help="cpu, cuda, sm_90, a10g (docs/gpu.md), simulated:cpu (docs/simulated.md)"
    )


def add_shape(parser: Any) -> None:
    """Add the argument for the sizes of a model's inputs."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x3x224x224[:DTYPE]",
        help="sizes of an input; repeat for each input",
    )


def run(options: argparse.Namespace) -> int:
    """Tune a model.

    Return 0; 1 if verification failed, the search failed or the model was saved elsewhere; or 128 + the signal that
    stopped it. The model is saved before the report is printed.
    """
    if options.in_background_of is not None:
        from felixlike.cli.background import in_background_of

        with in_background_of(options.in_background_of, Path(options.model).parent):
            return _tune(options)
    with interrupts.terminable(), interrupts.joined() as stopped:
        code = _tune(options)
    return code or stopped.code


def _tune(options: argparse.Namespace) -> int:
    """Tune, save and print. Return the exit code without signals."""
    from felixlike import runtime
    from felixlike.errors import SearchFailedWarning, VerificationFailed

    if options.output is not None:
        inputs = (options.store, options.weights, options.sia, file_of(options.model))
        runtime.check_writable(options.output, *filter(None, inputs))
        runtime.linker()
    read = _read if options.in_background_of is None else _written_for_us
    model, shapes, dynamic = read(options)
    from felixlike.api import optimize  # slow to import, so it comes after errors in the model

    settings: dict[str, Any] = {name: getattr(options, name) for name in _SETTINGS}
    settings |= {"progress": not options.quiet, "threads": None}
    planner = _planner(options)
    if options.store is not None and options.in_background_of is None:
        _check(settings)  # a command with wrong options must not replace the one to resume
        _remember_command(options)
    path = None if options.output is None else checks.path(options.output, "output", error=OutputNotWritable)
    failure = ""
    with _warnings_as_sentences() as warned, FirstCopy(path) as first:
        try:
            tuned = optimize(model, shapes, dynamic_shapes=dynamic, planner=planner, **settings)
        except VerificationFailed as error:
            if error.optimized is None:
                raise
            tuned, failure = error.optimized, error.what
            path = None if path is None else unverified(path)
    saved_path = None if path is None else kept(tuned, path, first)
    if failure:
        complain(
            f"{failure}. "
            + ("Nothing was saved." if saved_path is None else f"The model is saved to {saved_path} anyway.")
        )
    if not options.quiet:
        print(tuned.report)
        if saved_path is not None:
            print(f"Saved to {saved_path}.")
    return int(bool(failure) or saved_path != path or SearchFailedWarning in warned)


_SETTINGS = (
    *("target", "strategy", "space", "rounds", "trials", "seconds", "effort", "store", "seed", "tracker", "key"),
    *("precision", "tolerance", "weights", "compare"),
)
"""Options that `optimize` has under the same name."""


def _check(settings: Mapping[str, Any]) -> None:
    """Raise the errors of wrong options that `optimize` would raise."""
    from felixlike.costmodel import load_weights
    from felixlike.tuning.config import RunConfig

    RunConfig.checked(**settings)
    if settings["weights"] is not None:
        load_weights(checks.path(settings["weights"], "weights", error=InvalidWeights))


def _planner(options: argparse.Namespace) -> Any:
    """Return the planner that the options describe, None for the default. Raise InvalidOption or StoreError."""
    if options.planner is None and options.sia is None:
        return None
    from felixlike import dynamic

    return dynamic.make_planner(options.planner, None if options.sia is None else _weights(options))


def _weights(options: argparse.Namespace) -> Any:
    """Return the weights of --sia: three numbers, or fitted to a store."""
    from felixlike import dynamic
    from felixlike.errors import InvalidOption

    if Path(options.sia).exists():
        weights = dynamic.fitted_sia(options.sia, options.target)
        if not options.quiet:
            print(f"SIA weights fitted to {options.sia}: {weights}")
        return weights
    try:
        return tuple(map(float, options.sia.split(",")))
    except ValueError:
        raise InvalidOption(
            f"expected three numbers or a store, got {options.sia!r}",
            where="sia",
            remedy="give numbers as in --sia 1,1,1, or the path of a store",
        ) from None


def _read(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return the model, its shapes, and which of its sizes are dynamic. Raise InvalidDim."""
    if not options.dim:
        return *read_model(options), None
    dims = parse_dims(options.dim)
    model, shapes = read_model(options, example_sizes(dims))
    return model, shapes, dynamic_shapes(shapes if options.shape else None, dims)


def _written_for_us(options: argparse.Namespace) -> tuple[Any, None, None]:
    """Return the program that the process in whose background this one tunes has written into a folder of its own.

    It may have symbolic sizes, which are not opened in files of unknown origin, or draw random numbers.
    """
    import torch

    from felixlike.dynamic.shapes import is_dynamic_program
    from felixlike.frontend import import_model

    program = torch.export.load(options.model)
    return (program if is_dynamic_program(program) else import_model(program, random=True)), None, None


@contextlib.contextmanager
def _warnings_as_sentences() -> Iterator[list[type[Warning]]]:
    """Print every felixlike warning as a line, whatever Python's warning filters say.

    Yields the list of their categories, which grows while the block runs.
    """
    from felixlike.errors import FelixlikeWarning

    categories: list[type[Warning]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", FelixlikeWarning)
        default_showwarning = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, FelixlikeWarning):
                categories.append(category)
                complain(str(message))
            else:
                default_showwarning(message, category, *place, **more)

        warnings.showwarning = show
        yield categories


def _remember_command(options: argparse.Namespace) -> None:
    """Save the command in its store, for `felixlike resume`, with absolute paths."""
    from felixlike import records

    command: dict[str, Any] = {name: getattr(options, name) for name in KEPT}
    command["model"] = named_from_anywhere(options.model)
    if options.output is not None:
        command["output"] = str(checks.path(options.output, "output", error=OutputNotWritable).absolute())
    if options.sia is not None and Path(options.sia).exists():
        command["sia"] = str(Path(options.sia).absolute())
    if options.weights is not None:
        command["weights"] = str(checks.path(options.weights, "weights", error=InvalidWeights).absolute())
    with records.open(options.store) as store:
        if store.path is not None:
            store.note_command(json.dumps({**command, MARK: authorship.mark(store.path, command)}))


_NOTHING = type(None)
"""Type of None."""

KEPT: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "shape": list,
    "dim": list,
    "target": str,
    "rounds": (int, _NOTHING),
    "trials": (int, _NOTHING),
    "seconds": (int, float, _NOTHING),
    "effort": str,
    "output": (str, _NOTHING),
    "strategy": str,
    "space": str,
    "seed": int,
    "tracker": (str, _NOTHING),
    "key": (str, _NOTHING),
    "precision": str,
    "tolerance": (int, float, _NOTHING),
    "planner": (str, _NOTHING),
    "sia": (str, _NOTHING),
    "weights": (str, _NOTHING),
}
"""Options that `felixlike resume` needs, with the types of their values."""

MARK = "mark"
"""Key of the authorship mark, saved beside the options in the store."""


def read_model(options: argparse.Namespace, dims: Mapping[str, int] = MappingProxyType({})) -> tuple[Any, Any]:
    """Return the model that the command line names, and its shapes, its example inputs, or None.

    dims: Example sizes of the names in shapes. Raise InvalidModel or InvalidShape.
    """
    from felixlike.frontend import parse_shapes

    model, examples = model_from(options.model)
    return model, parse_shapes(options.shape, dims) if options.shape else examples
