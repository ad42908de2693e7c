"""Run strategies on whole networks over time, as Felix's evaluation does (ASPLOS 2024, §6).

Inputs: networks, strategies, a design space, seeds, seconds. Output: a row per run with the latency of the network over
seconds and candidates, Σ calls × best latency of each task so far. Each run has a process and a record store of its
own. An interrupted run continues where it stopped, because its process writes every result to a file.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from felixlike._util import option_checks
from felixlike._util.child_process import environment, python_command
from felixlike._util.wording import choose_from
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.errors import InvalidOption, MissingDependency, UnknownTarget
from felixlike.hardware import resolve_target, simulated
from felixlike.search import make_strategy, strategy_names
from felixlike.symbolic import SpaceName

STOCK = "stock"
"""TVM's own tuner: `tune_relax` with its defaults, on the same tasks."""

STRATEGIES = ("felix", "ansor", "gradient", "evolutionary", "random", STOCK)
"""Strategies that are compared by default."""

SPACES = {"own": SpaceName.BEST, "metaschedule": SpaceName.DEFAULT}
"""Design spaces by the names of the option. The first one has MetaSchedule's rules where ours do not apply."""

DEFAULT = ("resnet50", "mobilenet_v2", "vit_b16", "llama")
"""Networks that are compared by default."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run.

    Attributes:
        network: Name of the network.
        batch: Batch size.
        space: Name in `SPACES`. Stock MetaSchedule has its own.
        strategy: Name of the strategy, or STOCK.
        seed: Seed of the run.
        seconds: Seconds of the search; the import of the network is not included.
        target: Name of the target.
    """

    network: str
    batch: int
    space: str
    strategy: str
    seed: int
    seconds: float
    target: str = "cpu"

    @property
    def name(self) -> str:
        """Return a name for files."""
        return re.sub(r"[^A-Za-z0-9.+]+", "_", "-".join(str(value) for value in asdict(self).values()))


class RunFailed(RuntimeError):
    """Raised when the process of a run fails. The message says why."""


def jobs(
    networks: Sequence[str],
    batches: Sequence[int],
    space: str,
    strategies: Sequence[str],
    seeds: int,
    seconds: float,
    target: str = "cpu",
) -> list[Job]:
    """Return the runs of a comparison, all strategies of a seed before the next seed.

    Args:
        networks: Names of networks; DEFAULT if empty.
        batches: Batch sizes.
        space: Name of a design space, see SPACES.
        strategies: Names of strategies; the default ones that work on the target if empty.
        seeds: Number of seeds.
        seconds: Seconds of each search.
        target: "cpu", or a simulated device.

    Raises:
        InvalidOption: A name is unknown, or a strategy does not work on the target.
        UnknownTarget: The target is unknown or not a CPU's.
    """
    known = [*NETWORKS, *SMALL]
    for name in networks:
        if name not in known:
            raise InvalidOption(f"unknown network {name!r}", where="bench", remedy=choose_from(name, known))
    option_checks.one_of(space, "space", tuple(SPACES), what="a space")
    is_simulated = _is_simulated(target)
    usable = [name for name in STRATEGIES if name != STOCK or not is_simulated]
    for name in strategies:
        if name != STOCK and name not in strategy_names():
            names = [*STRATEGIES, *(other for other in strategy_names() if other not in STRATEGIES)]
            raise InvalidOption(f"unknown strategy {name!r}", where="--strategies", remedy=choose_from(name, names))
        if name not in (*usable, *strategy_names()):
            raise InvalidOption(
                f"{STOCK!r} measures on a real device, not on {target}", where="--strategies", remedy="leave it out"
            )
    return [
        Job(network, batch, "metaschedule" if strategy == STOCK else space, strategy, seed, seconds, target)
        for batch in batches
        for network in networks or DEFAULT
        for seed in range(seeds)
        for strategy in dict.fromkeys(strategies or usable)
    ]


def _is_simulated(target: str) -> bool:
    """Return whether a target is a simulated CPU; raise UnknownTarget for others than these and "cpu"."""
    if target != "cpu" and simulated(resolve_target(target)) is None:
        raise UnknownTarget(
            f"networks are tuned over time on this CPU or on simulated devices, not on {target}",
            where="--target",
            remedy='use "cpu", "simulated:cpu" or "simulated:h100"',
        )
    return target != "cpu"


def row_of(job: Job, folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Do one run in a process of its own. A run that was interrupted continues.

    Args:
        job: The run.
        folder: Folder for the files of unfinished runs.
        quiet: Whether to hide what the process prints.

    Returns:
        The fields of the job; "tasks", each with its name, calls and operations; "curve", a list of (candidates,
        seconds, task, latency) for every candidate that was its task's best so far; "candidates"; "elapsed", the
        seconds of the last one; "interrupted", how often the run was interrupted.

    Raises:
        RunFailed: The process failed, or stock MetaSchedule measured nothing within its seconds.
        KeyboardInterrupt: The run was interrupted. Calling this again continues it.
    """
    place = folder / job.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "job.json").write_text(json.dumps(asdict(job)))
    _run_process(place, job, quiet=quiet)
    row = _read(job, place)
    if job.strategy == STOCK and not row["candidates"]:
        raise RunFailed(
            f"{STOCK}: no candidate within {job.seconds:g} s, since TVM reports them after its first rounds of 64 for "
            "each task; set more --seconds"
        )
    shutil.rmtree(place, ignore_errors=True)
    return row


def _run_process(place: Path, job: Job, *, quiet: bool) -> None:
    """Run the process of a run to its end. Raise RunFailed or KeyboardInterrupt."""
    errors = place / "errors.txt"
    (place / "started").unlink(missing_ok=True)
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            python_command("felixlike.bench.over_time_run", str(place)),
            env=environment(),
            stdout=subprocess.DEVNULL if quiet or job.strategy == STOCK else None,
            stderr=stream,
        )
        try:
            while process.poll() is None and not (job.strategy == STOCK and _is_over(place, job)):
                time.sleep(_PAUSE_SECONDS)
        except BaseException:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # a terminal has sent it already; a second one does no harm
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            raise
        finally:
            process.kill()  # stock MetaSchedule has no limit in seconds of its own
            code = process.wait()
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code and not _is_over(place, job):
        words = errors.read_text(errors="replace").strip().splitlines() or [f"its process ended with code {code}"]
        raise RunFailed(f"{job.strategy}: {words[-1][:300]}")


def _is_over(place: Path, job: Job) -> bool:
    """Return whether a run has used up its seconds."""
    with suppress(OSError, ValueError):
        return time.monotonic() > float((place / "started").read_text()) + job.seconds
    return False


_PAUSE_SECONDS = 0.1
"""Seconds between two looks at the process. Chosen by hand."""

_GRACE_SECONDS = 10.0
"""Seconds that a process has to write its results after an interrupt. Chosen by hand."""


def _read(job: Job, place: Path) -> dict[str, Any]:
    """Return the row of a finished run."""
    tasks = json.loads((place / "tasks.json").read_text())
    best = [math.inf] * len(tasks)
    curve, count, elapsed = [], 0, 0.0
    for task, latency, at in candidates_of(place):
        if at > job.seconds:
            break
        count, elapsed = count + 1, at
        if latency < best[task]:
            best[task] = latency
            curve.append([count, round(at, 3), task, float(f"{latency:.6g}")])
    starts = len((place / "starts").read_text().splitlines())
    return {
        **asdict(job),
        "tasks": tasks,
        "curve": curve,
        "candidates": count,
        "elapsed": elapsed,
        "interrupted": starts - 1,
    }


def candidates_of(place: Path) -> Iterator[tuple[int, float, float]]:
    """Yield (task, latency, seconds elapsed) of each candidate of a run; a line cut short by a crash is left out."""
    file = place / "candidates.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):
            task, latency, elapsed = json.loads(line)
            yield task, math.inf if latency is None else latency, elapsed


def model_of(job: Job) -> Any:
    """Return the module and the example inputs of a run's network."""
    return (NETWORKS | SMALL)[job.network](batch=job.batch)


def require(strategies: Sequence[str]) -> None:
    """Raise a named error if a strategy's package is missing, before any time is spent."""
    for name in strategies:
        try:
            make_strategy("metaschedule" if name == STOCK else name)  # both need the same package
        except MissingDependency as error:
            raise MissingDependency(
                error.what,
                where=f"strategy {name}",
                remedy='pip install "felixlike[metaschedule]", or leave the strategy out with --strategies',
            ) from None


def fields(job: Job) -> dict[str, Any]:
    """Return the fields of a run, as its row has them."""
    return asdict(job)


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a run."""
    return tuple(row[name] for name in Job.__dataclass_fields__)
