"""Implement `felixlike collect`: measure candidates of many workloads as training data of a cost model.

Inputs: a store, a list of workloads, a target. Outputs: measurements in the store, and a line per task.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util import interrupts
from felixlike._util import option_checks as checks
from felixlike._util.wording import counted
from felixlike.errors import InvalidOption, InvalidWeights

if TYPE_CHECKING:
    from felixlike.training.collect import Collected


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike collect`."""
    parser = commands.add_parser(
        "collect",
        help="measure training data for a cost model",
        description="Measure candidates of many workloads, half of them random and half near the best found, or those "
        "of a search strategy, and save them in STORE. The command can be stopped at any time; the same command "
        "continues.",
    )
    parser.add_argument("store", metavar="STORE", nargs="?", help="record store, created if it does not exist")
    parser.add_argument(
        "--workloads",
        metavar="FILE",
        help='file with one workload per line, such as "dense rows=64 inputs=512 outputs=256 after=relu"; '
        "default: the layers that the shipped weights were trained on",
    )
    parser.add_argument("--list", action="store_true", help="print the workloads and exit")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="only every N-th workload, from the I-th on")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cores", type=int, help="CPU cores that a candidate may use, default all")
    parser.add_argument(
        "--candidates", type=int, default=140, help="candidates per task, including those in STORE; default 140"
    )
    parser.add_argument("--seconds", type=float, help="total time in seconds")
    parser.add_argument("--space", default="all", help="design space: best, own, default or all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--from",
        dest="strategy",
        metavar="STRATEGY",
        help='search strategy that proposes the candidates, such as "gradient", so that the model learns where it is '
        "wrong when it is followed; default: half random, half near the best found",
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="weights of that strategy's cost model, default: the shipped ones"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Collect measurements. Return 0, or 128 + the signal that stopped it."""
    with interrupts.terminable(), interrupts.joined() as stopped:
        code = _collect(options)
    return code or stopped.code


def _collect(options: argparse.Namespace) -> int:
    """List the workloads, or measure them. Return the exit code without signals."""
    lines = _lines(options.workloads, options.part)
    if options.list:
        print("\n".join(line.text for line in lines))
        return 0
    if options.store is None:
        raise InvalidOption("STORE is missing", where="collect", remedy="run felixlike collect STORE")
    if options.weights is not None and options.strategy is None:
        raise InvalidOption(
            "--weights applies only to a strategy", where="collect", remedy="add --from gradient, or remove the option"
        )
    from felixlike import records
    from felixlike.costmodel import load_weights
    from felixlike.search import make_strategy
    from felixlike.training.collect import Wanted, collect, open_pool

    settings = Wanted(
        candidates=checks.whole(options.candidates, "--candidates", least=2, where="collect"),
        seconds=checks.real(options.seconds, "--seconds", positive=True, where="collect")
        if options.seconds is not None
        else float("inf"),
        space=options.space,
        seed=checks.seed(options.seed, where="collect"),
        strategy=None if options.strategy is None else make_strategy(options.strategy),
        weights=options.weights,
    )
    if options.weights is not None:  # an error before anything is imported and measured
        load_weights(checks.path(options.weights, "weights", error=InvalidWeights))
    target = _target(options.target, options.cores)
    total: Counter[str] = Counter()
    started, done = time.monotonic(), 0

    def observe(name: str, found: Collected) -> None:
        nonlocal done
        done += 1
        total.update(found.ended)
        print(f"{done}: {name}: {_progress_line(found)}", file=sys.stderr, flush=True)

    with records.open(options.store) as store, open_pool(target) as pool:
        try:
            collect([(line.text, line.make) for line in lines], store, pool, target, settings, observe=observe)
        finally:
            ended = ", ".join(f"{count} {status}" for status, count in total.most_common()) or "nothing new"
            print(
                f"{counted(sum(total.values()), 'candidate')} of {counted(done, 'task')} measured in "
                f"{time.monotonic() - started:.0f} s: {ended}. "
                f"{options.store} has {counted(store.count(), 'measurement')}."
            )
    return 0


def _lines(path: str | None, part: str) -> list[Any]:
    """Return every N-th workload of a file or of the shipped list, from the I-th on, for `part` I/N."""
    from felixlike.training.workloads import parse_lines, shipped_lines

    if path is None:
        lines = shipped_lines()
    else:
        file = checks.path(path, "workloads", error=InvalidOption)
        try:
            lines = parse_lines(Path(file).read_text(), where=str(file))
        except UnicodeDecodeError as error:
            raise InvalidOption(
                "it is not a text file", where=str(file), remedy="give a file with one workload per line"
            ) from error
    numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part, re.ASCII)
    first, count = map(int, numbers.groups()) if numbers else (0, 0)
    if not 0 < first <= count:
        raise InvalidOption(
            f"expected --part I/N, got {part!r}", where="collect", remedy="for example 1/2 and 2/2 for two halves"
        )
    return lines[first - 1 :: count]


def _target(name: str, cores: int | None) -> Any:
    """Return the target of a name, with this number of cores if one is given."""
    from felixlike import _tvm
    from felixlike.hardware import kind_of, resolve_target

    target = resolve_target(name)
    if cores is None:
        return target
    cores = checks.whole(cores, "--cores", least=1, where="collect")
    if not kind_of(target).on_host:
        raise InvalidOption("--cores applies only to CPUs", where="collect", remedy="remove the option")
    return _tvm.Target({**target.export(), "num-cores": cores})


def _progress_line(collected: Collected) -> str:
    """Return the line that reports on a task."""
    failed = sum(count for status, count in collected.ended.items() if status != "ok")
    words = [collected.name]
    if collected.had:
        words.append(f"{collected.had} known")
    if collected.ended:
        words.append(f"{sum(collected.ended.values())} measured" + (f", {failed} failed" if failed else ""))
    if collected.best < float("inf"):
        words.append(f"best {collected.best * 1e6:.1f} µs")
    words.append(f"{collected.seconds:.0f} s")
    return ", ".join(words) + (f"; {collected.problem}" if collected.problem else "")
