"""Limit the time of a build by that of a task's other candidates.

The input is the seconds of finished builds, the output the limit of those that are still running. Compilers take
seconds for code that is unrolled a thousandfold, which is rarely fast. In searches of ten subgraphs in MetaSchedule's
CPU space, a few candidates took up to 80 % of the build time, and none was the fastest. Of 271 measured workloads in
that space, 8 would lose their fastest candidate if builds took at most five times the median; of 413 in our own, none.
"""

from statistics import median

from felixlike.measure.limits import Limits
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message

_ENOUGH = 6
"""Number of finished builds from which on the limit holds; chosen by hand."""
_LEAST = 0.5
"""Smallest limit, s, since starting a process takes some of the time. Chosen by hand."""


class BuildLimit:
    """The time limit of a stream's builds.

    Args:
        limits: The options: `build_seconds` and `slow_build`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._taken: list[float] = []

    def add(self, seconds: float) -> None:
        """Add the time of a successful build, s."""
        self._taken.append(seconds)

    @property
    def seconds(self) -> float:
        """The limit of builds that are running now, s."""
        most = self._limits.build_seconds
        if len(self._taken) < _ENOUGH:
            return most
        return min(most, max(_LEAST, self._limits.slow_build * median(self._taken)))

    def explained(self, answer: Message) -> Message:
        """Return the answer to a build, with the reason in its message if this limit ended it."""
        if answer["status"] is not Status.TIMEOUT or answer["elapsed"] >= self._limits.build_seconds:
            return answer
        return {**answer, "message": f"{answer['message']}: others were built in {median(self._taken):.1f} s"}
