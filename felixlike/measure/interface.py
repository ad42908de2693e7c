"""Define the interface of pools, and of the runners by which local and remote pools differ."""

from collections.abc import Generator, Iterable
from typing import Protocol

from felixlike._util.deadline import OutOfTime
from felixlike.errors import InvalidModel, ReferenceFailed
from felixlike.frontend.task import Task
from felixlike.measure.candidate import Schedulable
from felixlike.measure.measurement import Measurement

Checked = Measurement | ReferenceFailed | InvalidModel | OutOfTime
"""Outcome of a check: a Measurement, the error of a task without reference, or OutOfTime at the deadline."""

Checks = Generator[tuple[int, Checked], None, None]
"""Indices into the caller's list of tasks and candidates, each with the outcome of its check."""

Results = Generator[tuple[int, Measurement], None, None]
"""Indices into the caller's list of candidates, each with its Measurement."""


class Pool(Protocol):
    """Protocol of a pool, which measures candidates of tasks for one target. See `MeasurePool` for each method."""

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that measure; earlier measurements on them are comparable with new ones."""
        ...

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Yield each candidate's index and Measurement as soon as it exists, in any order."""
        ...

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """Return the Measurements of the candidates, in their order."""
        ...

    def check(self, task: Task, candidate: Schedulable) -> Measurement:
        """Build a candidate, call it once here and compare its answer, untimed."""
        ...

    def checks(self, candidates: Iterable[tuple[Task, Schedulable]]) -> Checks:
        """Check candidates of any tasks, a few at a time."""
        ...

    def close(self) -> None:
        """End all processes and remove the pool's files."""
        ...


class Runner(Protocol):
    """Protocol of the machine that runs the candidates that a builder has built: `Local` or `Remote`."""

    @property
    def devices(self) -> frozenset[str]:
        """See Pool.devices."""
        ...

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """See Pool.stream."""
        ...
