"""What every pool can do, whether it measures on this machine or on servers, and what makes the difference."""

from collections.abc import Generator, Iterable
from typing import Protocol

from felixlike._util.deadline import OutOfTime
from felixlike.errors import InvalidModel, ReferenceFailed
from felixlike.frontend.task import Task
from felixlike.measure.candidate import Schedulable
from felixlike.measure.measurement import Measurement

Checked = Measurement | ReferenceFailed | InvalidModel | OutOfTime
"""What came of a check; the error of a task that nothing can be compared with, or the deadline."""

Checks = Generator[tuple[int, Checked], None, None]
"""Places in the caller's list of tasks and candidates, with what came of each."""

Results = Generator[tuple[int, Measurement], None, None]
"""Places in the caller's list of candidates, with what came of each."""


class Pool(Protocol):
    """Something that measures candidates of tasks for one target.  `MeasurePool` says what each method promises."""

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that measure: earlier measurements on these can be compared with new ones."""
        ...

    def stream(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> Results:
        """Each candidate's place and Measurement, as soon as it exists, in any order."""
        ...

    def measure(
        self, task: Task, candidates: Iterable[Schedulable], *, verify: bool = True, best: float | None = None
    ) -> list[Measurement]:
        """The Measurements of the candidates, in their order."""
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
    """Where candidates run that a builder has built: `Local` or `Remote`."""

    @property
    def devices(self) -> frozenset[str]:
        """As Pool.devices."""
        ...

    def stream(self, task: Task, candidates: Iterable[Schedulable], *, verify: bool, best: float | None) -> Results:
        """As Pool.stream."""
        ...
