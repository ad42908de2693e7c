"""Accesses that may leave their tensors: proven not to, refused, or checked when the program runs.

In: a program, sizes, ranges. Out: for every read how it is kept within its tensor, or a TCRangeError. Sums of indices
are exact; tests around an access (`i < N ? A(i) : 0.0`) are tried at every point of the grid; what depends on the
contents of tensors is checked in every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

import numpy as np

from felixlike.errors import TCRangeError
from felixlike.tc.const_eval import Unknown, on_grid
from felixlike.tc.linear import Interval, depends_on_data, interval, linear
from felixlike.tc.program import Binary, Choose, Index, Program, Read, Step, Value, children, walk
from felixlike.tc.ranges import Ranges
from felixlike.tc.scalars import is_integral
from felixlike.tc.source import Source

_MOST_POINTS = 2**22
"""Of a grid on which tests are tried; what has more is checked in every call."""


class Kept(IntEnum):
    """What keeps an access within its tensor; a later one includes those before."""

    ALWAYS = 0
    """It never leaves it."""
    BY_TESTS = 1
    """The tests around it: it must not be made where they fail."""
    BY_CHECK = 2
    """Nothing that is known now: its subscripts are checked in every call, and held within."""


@dataclass(frozen=True, slots=True)
class Check:
    """A subscript to be checked in every call: read.subscripts[dimension] within bounds wherever all tests hold.

    tests: (condition, whether it must hold)."""

    step: int
    read: Read
    dimension: int
    bounds: Interval
    tests: tuple[tuple[Value, bool], ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """kept: what keeps each read within its tensor, by its id.  checks: for every call."""

    kept: Mapping[int, Kept]
    checks: tuple[Check, ...]


def examine(program: Program, sizes: Mapping[str, int], ranges: Ranges) -> Bounds:
    """How the accesses of a program are kept within their tensors.  Raises TCRangeError."""
    kept: dict[int, Kept] = {}
    checks: list[Check] = []
    for number, step in enumerate(program.steps):
        examiner = _Examiner(program.source, number, step, sizes, ranges)
        examiner.visit(step.value, ())
        for name, status in examiner.kept.items():
            kept[name] = max(kept.get(name, Kept.ALWAYS), status)
        checks += examiner.checks
    return Bounds(kept, tuple(checks))


_Tests = tuple[tuple[Value, bool], ...]


@dataclass(slots=True)
class _Examiner:
    """One statement."""

    source: Source
    number: int
    step: Step
    sizes: Mapping[str, int]
    ranges: Ranges
    kept: dict[int, Kept] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def visit(self, value: Value, tests: _Tests) -> None:
        """All accesses of a value, made where the tests hold."""
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
        if interval(value.right, self.ranges.domains[self.number].intervals, self.sizes) == (0, 0):
            text = self.source.shown(value.right.span)
            raise self.source.error(
                TCRangeError, value.span, f"division by zero: `{text}` is always 0", "divide by something else"
            )

    def _examine(self, read: Read, tests: _Tests) -> None:
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

    def _kept_by_tests(self, read: Read, dimension: int, tests: _Tests) -> Kept:
        """Raises TCRangeError where the access is known to leave its tensor."""
        subscript = read.subscripts[dimension]
        data = any(isinstance(part, Read) for part in walk(subscript))
        if data or any(depends_on_data(atom) for _, atom in linear(subscript, self.sizes).terms):
            return Kept.BY_CHECK
        known = [(test, holds) for test, holds in tests if not any(isinstance(part, Read) for part in walk(test))]
        near = [pair for pair in known if not _indices(pair[0]).isdisjoint(_indices(subscript))]
        for some in (near, known):
            found = self._leaves(read, dimension, some)
            if found is None:
                return Kept.BY_CHECK
            if not found:
                return Kept.BY_TESTS if some else Kept.ALWAYS
        if len(known) < len(tests):
            return Kept.BY_CHECK
        raise self._error(read, dimension)

    def _leaves(self, read: Read, dimension: int, tests: Sequence[tuple[Value, bool]]) -> bool | None:
        """Whether an access leaves its tensor at some point where all tests hold; None if that would take too long."""
        low, high = self.ranges.bounds[read.tensor][dimension]
        domain = self.ranges.domains[self.number].intervals
        values = (read.subscripts[dimension], *(test for test, _ in tests))
        names = sorted(set().union(*map(_indices, values)))
        extents = [domain[name][1] - domain[name][0] + 1 for name in names]
        if prod(extents) > _MOST_POINTS:
            return None
        axes = [np.arange(domain[name][0], domain[name][1] + 1) for name in names]
        grid = dict(zip(names, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True)) if axes else {}
        try:
            subscript = on_grid(values[0], grid, self.sizes)
            outside = (subscript < low) | (subscript > high)
            for test, holds in tests:
                outside = outside & (on_grid(test, grid, self.sizes) == holds)
        except Unknown:
            return None
        except ZeroDivisionError:
            return None
        return bool(np.any(outside))

    def _error(self, read: Read, dimension: int) -> TCRangeError:
        low, high = self.ranges.bounds[read.tensor][dimension]
        domain = self.ranges.domains[self.number].intervals
        subscript = read.subscripts[dimension]
        least, greatest = interval(subscript, domain, self.sizes)
        ranges = ", ".join(f"{name} in {domain[name][0]}:{domain[name][1] + 1}" for name in sorted(_indices(subscript)))
        return self.source.error(
            TCRangeError,
            subscript.span,
            f"out of bounds access to `{read.tensor}`, dimension {dimension}: `{self.source.shown(subscript.span)}` is"
            f" from {least} to {greatest}{f' for {ranges}' if ranges else ''}, beyond {low} to {high}, which violates"
            " the precondition of the access",
            "narrow the range with `where`, or make the access only where it is within: (i < N) ? A(i) : 0.0",
        )


def _indices(value: Value) -> frozenset[str]:
    return frozenset(part.name for part in walk(value) if isinstance(part, Index))


def _split(condition: Value, holds: bool) -> _Tests:
    """A test as several that all hold, where it is one of those."""
    if isinstance(condition, Binary) and condition.operator == ("&&" if holds else "||"):
        return (*_split(condition.left, holds), *_split(condition.right, holds))
    return ((condition, holds),)
