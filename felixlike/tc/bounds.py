"""Decide for each access whether it stays within its tensor: proven, rejected, or checked at runtime.

Input: a program, sizes, ranges. Output: `Bounds`, or a TCRangeError. Sums of indices are handled exactly. Tests around
an access (`i < N ? A(i) : 0.0`) are evaluated at every point of the iteration grid. Subscripts that depend on tensor
contents are checked in every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

import numpy as np

from felixlike.errors import TCRangeError
from felixlike.tc.const_eval import Array, Unknown, on_grid
from felixlike.tc.linear import Interval, depends_on_data, interval, linear
from felixlike.tc.program import Binary, Choose, Index, Program, Read, Step, Value, children, walk
from felixlike.tc.ranges import Ranges
from felixlike.tc.scalars import is_integral
from felixlike.tc.source import Source

_MOST_POINTS = 2**22
"""Largest grid, in points, on which tests are evaluated. Larger ones are checked at runtime. Chosen by hand."""


class Kept(IntEnum):
    """How an access is kept within its tensor. A higher value includes the lower ones."""

    ALWAYS = 0
    """The access is always within its tensor."""
    BY_TESTS = 1
    """The tests around the access keep it within; it must not be executed where they fail."""
    BY_CHECK = 2
    """Subscripts are checked in every call and clamped to the bounds."""


@dataclass(frozen=True, slots=True)
class Check:
    """A subscript to check in every call: read.subscripts[dimension] must be within `bounds` wherever all tests hold.

    Attributes:
        step: Number of the statement.
        read: The access.
        dimension: Dimension of the tensor.
        bounds: Least and greatest allowed subscript.
        tests: (condition, whether it must hold).
    """

    step: int
    read: Read
    dimension: int
    bounds: Interval
    tests: tuple[tuple[Value, bool], ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The result of the analysis.

    Attributes:
        kept: How each read is kept within its tensor, by the id of the read.
        checks: Checks to run in every call.
        narrowed: Descriptions of inferred ranges that leave tests around accesses nothing to do.
    """

    kept: Mapping[int, Kept]
    checks: tuple[Check, ...]
    narrowed: tuple[str, ...] = ()


def examine(program: Program, sizes: Mapping[str, int], ranges: Ranges) -> Bounds:
    """Determine how the accesses of a program are kept within their tensors. Raise TCRangeError."""
    kept: dict[int, Kept] = {}
    checks: list[Check] = []
    narrowed: list[str] = []
    for number, step in enumerate(program.steps):
        examiner = _Examiner(program.source, number, step, sizes, ranges)
        examiner.visit(step.value, ())
        for name, status in examiner.kept.items():
            kept[name] = max(kept.get(name, Kept.ALWAYS), status)
        checks += examiner.checks
        narrowed += examiner.narrowed.values()
    return Bounds(kept, tuple(checks), tuple(narrowed))


_Tests = tuple[tuple[Value, bool], ...]


@dataclass(slots=True)
class _Examiner:
    """The analysis of one statement."""

    source: Source
    number: int
    step: Step
    sizes: Mapping[str, int]
    ranges: Ranges
    kept: dict[int, Kept] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    narrowed: dict[str, str] = field(default_factory=dict)

    def visit(self, value: Value, tests: _Tests) -> None:
        """Examine all accesses of a value that is evaluated where the tests hold."""
        if isinstance(value, Read):
            self._examine(value, tests)
        elif isinstance(value, Binary) and value.operator in ("/", "%") and is_integral(value.dtype):
            self._check_divisor(value)
        if isinstance(value, Choose):
            self.visit(value.condition, tests)
            self.visit(value.left, (*tests, *_split(value.condition, True)))
            self.visit(value.right, (*tests, *_split(value.condition, False)))
        elif isinstance(value, Binary) and value.operator in ("&&", "||"):
            self.visit(value.left, tests)
            self.visit(value.right, (*tests, *_split(value.left, value.operator == "&&")))
        else:
            for child in children(value):
                self.visit(child, tests)

    def _check_divisor(self, value: Binary) -> None:
        """Raise TCRangeError if an integer divisor is always 0."""
        if interval(value.right, self.ranges.domains[self.number].intervals, self.sizes) == (0, 0):
            text = self.source.shown(value.right.span)
            raise self.source.error(
                TCRangeError,
                value.span,
                f"division by zero: `{text}` is always 0",
                "use a divisor that can be other than 0",
            )

    def _examine(self, read: Read, tests: _Tests) -> None:
        """Record how each dimension of a read is kept within its tensor."""
        domain = self.ranges.domains[self.number].intervals
        for dimension, subscript in enumerate(read.subscripts):
            low, high = self.ranges.bounds[read.tensor][dimension]
            least, greatest = interval(subscript, domain, self.sizes)
            status = Kept.ALWAYS
            if least < low or greatest > high:
                status = self._kept_by_tests(read, dimension, tests)
            if status is Kept.BY_CHECK:
                self.checks.append(Check(self.number, read, dimension, (low, high), tests))
            self.kept[id(read)] = max(self.kept.get(id(read), Kept.ALWAYS), status)
        if tests and self.kept.get(id(read), Kept.ALWAYS) is Kept.ALWAYS:
            self._find_narrowed(read, _static(tests))

    def _find_narrowed(self, read: Read, tests: _Tests) -> None:
        """Describe the inferred ranges to which a read limits an index, so that the tests around it always hold.

        They do not, beyond the range: the tests were meant to protect the read for a larger one.
        """
        domain = self.ranges.domains[self.number]
        for name in sorted(_indices(read)):
            near = [pair for pair in tests if name in _indices(pair[0])]
            if not near or not domain.rounds[name] or name in self.narrowed:
                continue
            low, high = domain.intervals[name]
            wider = {**domain.intervals, name: (low - 1, high + 1)}
            if self._hold(near, domain.intervals) and self._hold(near, wider) is False:
                line = self.source.error(TCRangeError, read.span, "").line
                self.narrowed[name] = (
                    f"line {line}: `{self.source.shown(read.span)}` limits `{name}` to {low}:{high + 1}, where the test"
                    f" around it always holds; if it is there for other values, add `where {name} in …`"
                )

    def _kept_by_tests(self, read: Read, dimension: int, tests: _Tests) -> Kept:
        """Try to prove that tests keep an access within. Raise TCRangeError if it certainly leaves its tensor."""
        subscript = read.subscripts[dimension]
        data = any(isinstance(part, Read) for part in walk(subscript))
        if data or any(depends_on_data(atom) for _, atom in linear(subscript, self.sizes).terms):
            return Kept.BY_CHECK
        static_tests = _static(tests)
        near = [pair for pair in static_tests if not _indices(pair[0]).isdisjoint(_indices(subscript))]
        for subset in (near, static_tests):
            leaves = self._leaves(read, dimension, subset)
            if leaves is None:
                return Kept.BY_CHECK
            if not leaves:
                return Kept.BY_TESTS if subset else Kept.ALWAYS
        if len(static_tests) < len(tests):
            return Kept.BY_CHECK
        raise self._error(read, dimension)

    def _leaves(self, read: Read, dimension: int, tests: Sequence[tuple[Value, bool]]) -> bool | None:
        """Return whether an access leaves its tensor at a point where all tests hold; None if undecided."""
        low, high = self.ranges.bounds[read.tensor][dimension]
        domain = self.ranges.domains[self.number].intervals
        arrays = self._on_grid((read.subscripts[dimension], *(test for test, _ in tests)), domain)
        if arrays is None:
            return None
        outside = (arrays[0] < low) | (arrays[0] > high)
        for array, (_, holds) in zip(arrays[1:], tests, strict=True):
            outside = outside & (array == holds)
        return bool(np.any(outside))

    def _hold(self, tests: Sequence[tuple[Value, bool]], domain: Mapping[str, Interval]) -> bool | None:
        """Return whether all tests hold at all points of a domain; None if undecided."""
        arrays = self._on_grid(tuple(test for test, _ in tests), domain)
        if arrays is None:
            return None
        return all(bool(np.all(array == holds)) for array, (_, holds) in zip(arrays, tests, strict=True))

    def _on_grid(self, values: Sequence[Value], domain: Mapping[str, Interval]) -> list[Array] | None:
        """Evaluate values at all points of a domain; None if there are too many, or a value depends on more."""
        names = sorted(set().union(*map(_indices, values)))
        if prod(domain[name][1] - domain[name][0] + 1 for name in names) > _MOST_POINTS:
            return None
        axes = [np.arange(domain[name][0], domain[name][1] + 1) for name in names]
        grid = dict(zip(names, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True)) if axes else {}
        try:
            return [on_grid(value, grid, self.sizes) for value in values]
        except (Unknown, ZeroDivisionError):
            return None

    def _error(self, read: Read, dimension: int) -> TCRangeError:
        low, high = self.ranges.bounds[read.tensor][dimension]
        domain = self.ranges.domains[self.number].intervals
        subscript = read.subscripts[dimension]
        least, greatest = interval(subscript, domain, self.sizes)
        ranges = ", ".join(f"{name} in {domain[name][0]}:{domain[name][1] + 1}" for name in sorted(_indices(subscript)))
        return self.source.error(
            TCRangeError,
            subscript.span,
            f"out of bounds access to `{read.tensor}`, dimension {dimension}: `{self.source.shown(subscript.span)}`"
            f" ranges from {least} to {greatest}{f' for {ranges}' if ranges else ''}, but only {low} to {high} is"
            " valid; this violates the precondition of the access",
            "narrow the range with `where`, or guard the access with a condition: (i < N) ? A(i) : 0.0",
        )


def _indices(value: Value) -> frozenset[str]:
    return frozenset(part.name for part in walk(value) if isinstance(part, Index))


def _static(tests: _Tests) -> _Tests:
    """Return the tests that do not depend on tensor contents."""
    return tuple(pair for pair in tests if not any(isinstance(part, Read) for part in walk(pair[0])))


def _split(condition: Value, holds: bool) -> _Tests:
    """Split a condition that holds (or fails) into several conditions, if it is a conjunction (or disjunction)."""
    if isinstance(condition, Binary) and condition.operator == ("&&" if holds else "||"):
        return (*_split(condition.left, holds), *_split(condition.right, holds))
    return ((condition, holds),)
