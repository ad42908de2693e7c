"""Implement `felixlike bench networks --curves`: strategies on whole networks over time.

Inputs: names of networks, strategies, a space, seeds, seconds. Outputs: a JSON file, which is written after each run
and which later calls extend, and a page and pictures beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from felixlike._util import option_checks as checks

OUTPUT = "networks_over_time.json"
"""Default file of results."""

_SEEDS = 3
"""Default number of seeds. Chosen by hand."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of --curves."""
    group = parser.add_argument_group(
        "curves",
        "With --curves, strategies tune networks (default: resnet50, mobilenet_v2, vit_b16, llama) for --seconds each, "
        "with --seeds seeds. Every run has its own process. Results are written after each run; the same command "
        "continues after an interruption.",
    )
    group.add_argument("--curves", action="store_true", help="compare search strategies over time")
    group.add_argument(
        "--strategies",
        help="strategies, separated by commas; default felix,ansor,gradient,evolutionary,random,stock. stock is TVM's "
        "own tuner, and needs xgboost",
    )
    group.add_argument("--space", help="own (default) or metaschedule")
    group.add_argument("--seeds", type=int, help=f"number of seeds, default {_SEEDS}")
    group.add_argument("--target", help="cpu (default), or a simulated device such as simulated:cpu")
    group.add_argument(
        "--libraries",
        metavar="FILE",
        help="results of `felixlike bench networks`; default networks.json beside --output",
    )


def check_unused(options: argparse.Namespace) -> None:
    """Raise InvalidOption for options that are for --curves, or not for it."""
    from felixlike.errors import InvalidOption

    names = ("strategies", "space", "seeds", "target", "libraries")
    ours = {name: getattr(options, name) is not None for name in names}
    others = {name: bool(getattr(options, name)) for name in ("shape", "against", "again")}
    others["precision"] = options.precision != "float32"
    wrong = [name for name, is_given in (others if options.curves else ours).items() if is_given]
    if wrong:
        raise InvalidOption(
            f"--{wrong[0]} {'does not go with' if options.curves else 'is for'} --curves",
            where="bench",
            remedy="leave it out" if options.curves else "add --curves, or leave it out",
        )


def run(options: argparse.Namespace, path: Path, seconds: float) -> int:
    """Do the runs that the results lack. Return 0, or 1 if one failed."""
    from felixlike.bench import over_time
    from felixlike.bench.results import of_this_machine
    from felixlike.cli.terminal import complain

    seconds = checks.real(seconds, "seconds", positive=True, unit="seconds")
    jobs = over_time.jobs(
        options.names,
        [checks.whole(batch, "batch", least=1) for batch in options.batch or (1,)],
        options.space or "own",
        [name.strip() for name in options.strategies.split(",")] if options.strategies else (),
        checks.whole(_SEEDS if options.seeds is None else options.seeds, "seeds", least=1),
        seconds,
        options.target or "cpu",
    )
    over_time.require(list(dict.fromkeys(job.strategy for job in jobs)))
    results = _Results(path, of_this_machine(path))
    failed = False
    for job in jobs:
        if over_time.key(over_time.fields(job)) in results.keys:
            continue
        if not options.quiet:
            print(f"{job.network}, batch {job.batch}, {job.space} space: {job.strategy}, seed {job.seed}", flush=True)
        try:
            row = over_time.row_of(job, path.with_suffix(".runs"), quiet=options.quiet)
        except over_time.RunFailed as failure:
            complain(f"{job.network}, batch {job.batch}: {failure}")
            failed = True
            continue
        results.add("runs", [row])
    _complete(results, jobs, options)
    page = results.write()
    if not options.quiet:
        print(page)
    return int(failed)


def _complete(results: _Results, jobs: Sequence[Any], options: argparse.Namespace) -> None:
    """Add the latencies of libraries and the distributions of scores that the results lack."""
    from felixlike.bench.libraries import best_library
    from felixlike.bench.scores import score_rows

    file = Path(options.libraries) if options.libraries else results.path.with_name("networks.json")
    having = {(row["network"], row["batch"]) for row in results.data["libraries"]}
    scored = {tuple(row[name] for name in _SCORED) for row in results.data["scores"]}
    for job in jobs:
        if job.target == "cpu" and (job.network, job.batch) not in having:
            having.add((job.network, job.batch))
            results.add("libraries", best_library(job.network, job.batch, file))
        if tuple(getattr(job, name) for name in _SCORED) not in scored:
            scored.add(tuple(getattr(job, name) for name in _SCORED))
            results.add("scores", score_rows(job))


_SCORED = ("network", "batch", "space", "target", "strategy")
"""Fields that identify a distribution of scores."""


class _Results:
    """The results of this machine, written after each addition.

    Args:
        path: The JSON file.
        data: What it holds for this machine.

    Attributes:
        path: The JSON file.
        data: "runs", "libraries" and "scores".
        keys: What identifies the runs.
    """

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        from felixlike.bench.over_time import key

        self.path = path
        self.data = {name: list(data.get(name, ())) for name in ("runs", "libraries", "scores")}
        self.keys = {key(row) for row in self.data["runs"]}

    def add(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, and write the file without pictures."""
        self.data[name] += rows
        self._write({})

    def write(self) -> str:
        """Write the file, the page and the pictures. Return the page."""
        from felixlike.bench import curves_page
        from felixlike.bench.results import where

        picture = self.path.with_name(f"{self.path.stem}-{where()['mcpu']}.svg")
        return self._write(curves_page.draw(self.data["runs"], self.data["libraries"], picture))

    def _write(self, pictures: dict[str, str]) -> str:
        """Write the file and the page. Return the page."""
        from felixlike.bench import curves_page
        from felixlike.bench.results import write_for_this_machine

        page = curves_page.text(self.data["runs"], self.data["libraries"], self.data["scores"], pictures)
        return write_for_this_machine(self.path, self.data, page, command="felixlike bench networks --curves")
