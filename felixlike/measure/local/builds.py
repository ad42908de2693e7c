"""The candidates of a stream, built a few at a time: a batch before any of it runs, or while others run.

In: candidates. Out: the processes that have built them. On a CPU everything else is idle while a candidate runs; a GPU
is not disturbed by compilers, and need not wait for them.
"""

import selectors
from collections import deque
from collections.abc import Generator, Iterable

from felixlike._util.deadline import OutOfTime
from felixlike.measure.candidate import Schedulable
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.steps import answers, watch
from felixlike.measure.local.trial import Trial, in_time
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement


class Builds:
    """Of one stream, which has claimed the builder.

    memory: bytes for a candidate's buffers.  size: of a batch.  ahead: whether candidates are handed out as soon as
    they are built, and others built while they run: as many as a batch has are alive at a time.  late: whether the
    run's deadline has ended a build or a call; nothing more is begun or handed out then."""

    def __init__(
        self, builder: Builder, candidates: Iterable[Schedulable], memory: int, *, size: int, ahead: bool
    ) -> None:
        self._builder = builder
        self._memory = memory
        self._size, self._ahead = size, ahead
        self.late = False
        self._source = enumerate(candidates)
        self._again: deque[tuple[int, Schedulable]] = deque()
        self._orders: dict[int, Schedulable] = {}
        """Of this batch, and of what is built ahead."""
        self._begun = self._taken = 0  # of this batch
        self._selector = selectors.DefaultSelector()
        self._building: set[Trial] = set()
        self._built: deque[Trial] = deque()
        self._failed: deque[tuple[int, Measurement]] = deque()

    def close(self) -> None:
        """Wait for nothing more."""
        self._selector.close()

    def begin_batch(self) -> bool:
        """Whether there is another batch; if so its first candidates are being built."""
        alive = {trial.index for trial in (*self._building, *self._built)}
        self._orders = {index: order for index, order in self._orders.items() if index in alive}
        self._begun, self._taken = len(alive), 0
        self._begin(self._builder.workers)
        return bool(self._building or self._built or self._failed)

    def next(self) -> Generator[tuple[int, Measurement], None, Trial | None]:
        """Yields those that fail until there is one that is built, and returns it; None at the end of the batch."""
        while self._taken < self._size and not self.late:
            self._begin(self._builder.workers)
            while self._failed:
                yield self._failed.popleft()
            if self._built and (self._ahead or not self._building):
                self._taken += 1
                return self._built.popleft()
            if not self._building:
                return None
            for trial, answer in answers(self._selector):
                self._take(trial, answer)
        return None

    def run(self, trial: Trial, request: Message, limit: float) -> Message | None:
        """Return a trial's answer to a request, or None if the deadline comes before the limit of seconds. If
        candidates are built ahead, others are built meanwhile on all cores but one."""
        try:
            return in_time(self._answer(trial, request, self._builder.deadline.limit(limit)), limit)
        except OutOfTime:
            self.late = True
            return None

    def _answer(self, trial: Trial, request: Message, seconds: float) -> Message:
        if not self._ahead:
            return trial.run(request, seconds)
        trial.send(request)
        watch(self._selector, trial, seconds)
        while True:
            self._begin(max(1, self._builder.workers - 1))
            found = None
            for one, answer in answers(self._selector):
                if one is trial:
                    found = answer
                else:
                    self._take(one, answer)
            if found is not None:
                return found

    def again(self, trial: Trial) -> None:
        """Build a candidate once more, of the batch under way."""
        self._again.append((trial.index, self._orders[trial.index]))

    def _begin(self, most: int) -> None:
        """Begin to build, so that `most` are being built at a time."""
        while not self.late and len(self._building) < most and self._has_room():
            order = self._again.popleft() if self._again else next(self._source, None)
            self.late = order is not None and self._builder.deadline.passed
            if order is None or self.late:
                return
            index, candidate = order
            self._orders[index] = candidate
            self._begun += 1
            trial = self._builder.begin(index, candidate, self._memory)
            if isinstance(trial, Measurement):
                self._failed.append((index, trial))
                continue
            watch(self._selector, trial, self._builder.deadline.limit(self._builder.limits.build_seconds))
            self._building.add(trial)

    def _has_room(self) -> bool:
        """Ahead, all that have a process count, so that what waits does not fill the memory."""
        return (len(self._builder.processes.under_way) if self._ahead else self._begun) < self._size

    def _take(self, trial: Trial, answer: Message) -> None:
        self._building.remove(trial)
        try:
            trial.build_seconds = in_time(answer, self._builder.limits.build_seconds)["elapsed"]
        except OutOfTime:
            self.late = True
            return
        if answer["status"] is Status.OK:
            trial.code, trial.kernels = answer["code"], answer["kernels"]
            self._built.append(trial)
            return
        self._builder.processes.end(trial)
        self._failed.append((trial.index, measurement(answer, build_seconds=trial.build_seconds, run_seconds=0.0)))
