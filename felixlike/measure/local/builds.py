"""Build the candidates of a stream several at a time: a whole batch before it runs, or ahead while others run.

The input is candidates, the output the processes that have built them. On a CPU, nothing is built while a candidate
runs. Compilers do not disturb a GPU, so candidates for a GPU are built ahead.
"""

import selectors
from collections import deque
from collections.abc import Generator, Iterable

from felixlike._util.deadline import OutOfTime
from felixlike.measure.candidate import Schedulable
from felixlike.measure.local.build_limit import BuildLimit
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.steps import answers, watch
from felixlike.measure.local.trial import Trial, in_time
from felixlike.measure.measurement import Measurement, Status
from felixlike.measure.messages import Message
from felixlike.measure.outcome import measurement


class Builds:
    """Builds of one stream, which has claimed the builder.

    Args:
        builder: Starts the processes.
        candidates: Candidates of the stream.
        memory: Size of a candidate's buffers, bytes.
        size: Candidates of a batch.
        ahead: Return candidates as soon as they are built and build others while they run. At most `size` processes
            are alive then.

    Attributes:
        late: Whether the deadline has ended a build or a call. Nothing more is started or returned then.
    """

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
        """Candidates of this batch and those that are built ahead, by index."""
        self._begun = self._taken = 0  # of this batch
        self._selector = selectors.DefaultSelector()
        self._limit = BuildLimit(builder.limits)
        self._allowed = builder.limits.build_seconds  # of all builds during the latest wait, s
        self._building: set[Trial] = set()
        self._built: deque[Trial] = deque()
        self._failed: deque[tuple[int, Measurement]] = deque()

    def close(self) -> None:
        """Close the selector; the processes are ended by the builder."""
        self._selector.close()

    def begin_batch(self) -> bool:
        """Start to build the next batch; return False if there are no more candidates or the deadline has passed."""
        alive = {trial.index for trial in (*self._building, *self._built)}
        self._orders = {index: order for index, order in self._orders.items() if index in alive}
        self._begun, self._taken = len(alive), 0
        self._begin(self._builder.workers)
        return not self.late and bool(self._building or self._built or self._failed)

    def next(self) -> Generator[tuple[int, Measurement], None, Trial | None]:
        """Yield failed candidates until one is built, and return that one; return None at the end of the batch."""
        while self._taken < self._size and not self.late:
            self._begin(self._builder.workers)
            while self._failed:
                yield self._failed.popleft()
            if self._built and (self._ahead or not self._building):
                self._taken += 1
                return self._built.popleft()
            if not self._building:
                return None
            for trial, answer in self._answers():
                self._take(trial, answer)
        return None

    def run(self, trial: Trial, request: Message, limit: float) -> Message | None:
        """Return a trial's answer to a request, or None if the deadline passes before the limit, s.

        With `ahead`, other candidates are built meanwhile on all cores but one."""
        try:
            return in_time(self._answer(trial, request, self._builder.deadline.limit(limit)), limit)
        except OutOfTime:
            self.late = True
            return None

    def _answer(self, trial: Trial, request: Message, seconds: float) -> Message:
        """Send a request and wait for its answer; build other candidates meanwhile with `ahead`."""
        if not self._ahead:
            return trial.run(request, seconds)
        trial.send(request)
        watch(self._selector, trial, seconds)
        while True:
            self._begin(max(1, self._builder.workers - 1))
            awaited_answer = None
            for one, answer in self._answers():
                if one is trial:
                    awaited_answer = answer
                else:
                    self._take(one, answer)
            if awaited_answer is not None:
                return awaited_answer

    def _answers(self) -> list[tuple[Trial, Message]]:
        """Wait for answers, with the limit that the finished builds give those under way."""
        self._allowed = self._limit.seconds
        for trial in self._building:
            self._watch(trial)
        return answers(self._selector)

    def _watch(self, trial: Trial) -> None:
        """Wait for a build's answer, or change its limit. Answers come in the order of the first calls."""
        watch(self._selector, trial, self._builder.deadline.limit(self._allowed))

    def again(self, trial: Trial) -> None:
        """Build a candidate of the current batch once more."""
        self._again.append((trial.index, self._orders[trial.index]))

    def _begin(self, most: int) -> None:
        """Start builds until `most` are running."""
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
            self._watch(trial)
            self._building.add(trial)

    def _has_room(self) -> bool:
        """Return whether another build may start.

        With `ahead`, all candidates with a process count, so that waiting ones do not fill the memory."""
        return (len(self._builder.processes.under_way) if self._ahead else self._begun) < self._size

    def _take(self, trial: Trial, answer: Message) -> None:
        """Handle the answer to a build."""
        self._building.remove(trial)
        try:
            trial.build_seconds = in_time(answer, self._allowed)["elapsed"]
        except OutOfTime:
            self.late = True
            return
        if answer["status"] is Status.OK:
            trial.code, trial.kernels = answer["code"], answer["kernels"]
            self._built.append(trial)
            self._limit.add(trial.build_seconds)
            return
        self._builder.processes.end(trial)
        answer = self._limit.explained(answer)
        self._failed.append((trial.index, measurement(answer, build_seconds=trial.build_seconds, run_seconds=0.0)))
