"""Hold the options of a run, checked once and shared by every step.

Input: the options of `felixlike.optimize`. Output: `RunConfig`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from felixlike import hardware
from felixlike._util import option_checks
from felixlike._util.deadline import Deadline
from felixlike.codegen import KernelObject
from felixlike.errors import InvalidOption
from felixlike.hardware import device_name, kind_of, require_real, require_runnable, resolve_target, simulated
from felixlike.hardware.placement import MOST_THREADS, pin_threads
from felixlike.measure import Limits, MeasurePool, Pool, RpcPool, SimulatedPool
from felixlike.measure.rpc.tracker import check_servers
from felixlike.report import make_progress
from felixlike.search import Strategy, make_strategy
from felixlike.symbolic import SpaceName, check_space
from felixlike.tuning.budget import Budget, Effort


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The options of a run. `felixlike.optimize` describes them; `checked` creates them from a user's values.

    Attributes:
        target: The TVM target, with the precision of float32 products.
        device: Name of this machine's device of the target's kind.
        rounds: Maximum number of rounds; None for no limit.
        trials: Maximum number of measured candidates; None for no limit.
        seconds: Maximum time in seconds; None for no limit.
        effort: What a run without limits measures.
        store: Path of the record store; None for one in memory.
        strategy: Name of the search strategy, or a strategy.
        space: Name of the design space.
        weights: Path of cost-model weights; None for the shipped ones.
        seed: Random seed.
        progress: How progress is shown: True, False, or "plain".
        tracker: "HOST:PORT" of a TVM RPC tracker; None to measure on this machine.
        key: Key of the tracker's servers.
        threads: Number of threads per call of the result; None for the environment's.
        compare: Whether eager PyTorch is timed, too.
        tolerance: Largest error of the model relative to its largest output; None for that of the precision.
        wide_tensors: Whether tensors between kernels stay float32 in any precision.
        started: Start of the run in seconds, by `time.monotonic`.
    """

    target: Any
    device: str
    rounds: int | None = None
    trials: int | None = None
    seconds: float | None = None
    effort: Effort = Effort.NORMAL
    store: str | Path | None = None
    strategy: str | Strategy = "gradient"
    space: SpaceName = SpaceName.BEST
    weights: str | Path | None = None
    seed: int = 0
    progress: bool | str = True
    tracker: str | None = None
    key: str | None = None
    threads: int | None = None
    compare: bool = False
    tolerance: float | None = None
    wide_tensors: bool = False
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def checked(
        cls,
        *,
        target: Any,
        precision: str,
        effort: str,
        seed: Any,
        space: str,
        threads: Any,
        compare: Any,
        tolerance: Any = None,
        **options: Any,
    ) -> RunConfig:
        """Return the configuration for a user's options.

        Raises:
            InvalidBudget, InvalidOption, UnknownTarget: An option is invalid.
            ForkedProcess: The calling thread cannot run the result.
        """
        started = time.monotonic()
        Budget(options["rounds"], options["trials"], options["seconds"])
        level = Effort(option_checks.one_of(effort, "effort", Effort, what="an effort"))
        make_strategy(options["strategy"])
        make_progress(options["progress"])
        seed, space, threads = option_checks.seed(seed), check_space(space), check_threads(threads)
        compare = option_checks.of_kind(compare, bool, "compare", where="compare", remedy="pass True or False")
        if tolerance is not None:
            tolerance = option_checks.real(tolerance, "tolerance", where="tolerance", otherwise="None")
        target = hardware.with_precision(resolve_target(target), precision)
        require_runnable(target)
        device = device_name(target)  # raises if the required GPU is missing
        if kind_of(target).on_host:
            pin_threads()  # raises if the calling thread cannot run the result
        return cls(
            target,
            device,
            effort=level,
            seed=seed,
            space=space,
            threads=threads,
            compare=compare,
            tolerance=tolerance,
            wide_tensors=_keeps_tensors(target, tolerance),
            started=started,
            **options,
        )

    @property
    def measures(self) -> bool:
        """Return whether the run may measure candidates."""
        unlimited = self.rounds is None and self.trials is None and self.seconds is None
        return 0 not in (self.rounds, self.trials) and not (unlimited and self.effort is Effort.INSTANT)

    @property
    def is_here(self) -> bool:
        """Return whether the run measures and compiles for this machine's CPU."""
        return kind_of(self.target).on_host and self.tracker is None and simulated(self.target) is None

    def budget(self) -> Budget:
        """Return the run's limits, with nothing spent."""
        return Budget(self.rounds, self.trials, self.seconds, started=self.started)

    def pool_factory(
        self, deadline: Deadline, objects: dict[str, KernelObject] | None = None
    ) -> Callable[[], AbstractContextManager[Pool]]:
        """Return the function that opens the pool of the target: local, on a tracker's servers, or simulated.

        Args:
            deadline: Ends builds and runs that exceed it.
            objects: See `MeasurePool`; only for local pools.

        Raises:
            InvalidOption: Only one of tracker and key is set, or the target is simulated.
            TrackerFailed: The tracker cannot be reached, or has no server for the key.
        """
        timing = make_strategy(self.strategy).timing
        options: dict[str, Any] = {"deadline": deadline}
        if timing is not None:
            options["limits"] = Limits(timing=timing)
        if self.tracker is None and self.key is None:
            if objects is not None:
                options["objects"] = objects
            pool = MeasurePool if simulated(self.target) is None else SimulatedPool
            return partial(pool, self.target, **options)
        require_real(self.target, where="tracker")
        if self.tracker is None or self.key is None:
            missing, set_option = ("tracker", "key") if self.tracker is None else ("key", "tracker")
            raise InvalidOption(
                f"`{set_option}` is set but `{missing}` is not", where=missing, remedy="set both or none"
            )
        check_servers(self.tracker, self.key)  # fail before the model is imported
        return partial(RpcPool, self.target, tracker=self.tracker, key=self.key, **options)


def check_threads(count: Any) -> int | None:
    """Return a checked number of threads per call, None for the environment's number.

    Raises:
        InvalidOption: `count` is not a whole number from 1 to 1024.
    """
    if count is None:
        return None
    return option_checks.whole(count, "threads", least=1, most=MOST_THREADS, otherwise="None")


def _keeps_tensors(target: Any, tolerance: float | None) -> bool:
    """Return whether tensors between kernels stay float32: no rewrite rounds them, or the tolerance is tight.

    With a tolerance below the error of one product, only tasks that go back to float32 alone may reach it.
    """
    precision = hardware.precision_of(target)
    if not (kind_of(target).on_host and precision.is_reduced and hardware.precision_of_halves(target).is_reduced):
        return True
    return tolerance is not None and tolerance < precision.unit
