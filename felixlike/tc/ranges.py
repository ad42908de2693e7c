"""Infer the ranges of indices in rounds: each index gets the widest range that all accesses allow.

Input: a program, sizes. Output: a `Domain` per statement, or a TCRangeError. The rules of the language: ranges of
`where` come first. In each round an index is solved from all accesses in which it is the only unknown. Indices solved
in a round are used from the next round on, in their worst case, and are not narrowed later. Left indices that a
statement does not determine have the ranges of the other statements that write the tensor: in `C(i) = 0`, then
`C(i) += A(i, k) * x(k)`, the second gives the range of i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from felixlike.errors import TCRangeError
from felixlike.tc.const_eval import Unknown, on_grid
from felixlike.tc.functions import instead_of_constant
from felixlike.tc.linear import Interval, Linear, depends_on_data, indices_of, interval_of, linear, may_wrap
from felixlike.tc.program import Binary, Index, Program, Read, Step, Unary, Value, walk
from felixlike.tc.source import Source

_MOST = 2**31 - 1
"""Largest index and largest number of elements of a tensor: TVM has both as int32."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The index ranges of one statement.

    Attributes:
        intervals: Least and greatest value of each index.
        rounds: The round in which each index was solved, 0 for `where`.
    """

    intervals: Mapping[str, Interval]
    rounds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of a program.

    Attributes:
        domains: One per statement, in order.
        bounds: Least and greatest subscript of each dimension of each tensor.
    """

    domains: tuple[Domain, ...]
    bounds: Mapping[str, tuple[Interval, ...]]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(high - low + 1 for low, high in self.bounds[tensor])


def infer(program: Program, sizes: Mapping[str, int]) -> Ranges:
    """Infer the ranges of all statements for concrete sizes. Raise TCRangeError."""
    bounds: dict[str, tuple[Interval, ...]] = {
        tensor.name: tuple((0, (dim if isinstance(dim, int) else sizes[dim]) - 1) for dim in tensor.dims)
        for tensor in program.parameters
    }
    domains = []
    for step in program.steps:
        others = partial(_written_by_others, program, step, sizes, bounds)
        domain = _Solver(program.source, step, sizes, bounds).solved(others)
        domains.append(domain)
        written = tuple(domain.intervals[index] for index in step.indices)
        if step.first:
            _check_size(program.source, step, written)
            bounds[step.target] = written
        elif bounds[step.target] != written:
            raise _incompatible(program.source, step, bounds[step.target], written)
    return Ranges(tuple(domains), bounds)


def _written_by_others(
    program: Program, step: Step, sizes: Mapping[str, int], bounds: Mapping[str, tuple[Interval, ...]]
) -> dict[str, Interval]:
    """Return the ranges that a statement's left indices have in other statements that write the same tensor."""
    if step.target in bounds:
        return dict(zip(step.indices, bounds[step.target], strict=True))
    ranges: dict[str, Interval] = {}
    for other in program.steps:
        if other.target == step.target and other is not step:
            solved = _Solver(program.source, other, sizes, bounds).solved_alone()
            for index, other_index in zip(step.indices, other.indices, strict=True):
                if other_index in solved:
                    ranges.setdefault(index, solved[other_index])
    return ranges


def _check_size(source: Source, step: Step, written: tuple[Interval, ...]) -> None:
    """Raise TCRangeError if a tensor has too many elements."""
    elements = 1
    for low, high in written:
        elements *= high - low + 1
    if elements > _MOST:
        raise source.error(
            TCRangeError, step.span, f"`{step.target}` would have {elements} elements", "the limit is 2^31 - 1 elements"
        )


def _incompatible(
    source: Source, step: Step, before: tuple[Interval, ...], written: tuple[Interval, ...]
) -> TCRangeError:
    return source.error(
        TCRangeError,
        step.span,
        f"incompatible ranges: `{step.target}` is written for {_boxed(before)} earlier and for {_boxed(written)} here",
        "write the same range in all statements, with `where`, or use another output",
    )


def _boxed(intervals: tuple[Interval, ...]) -> str:
    """Return intervals as text, such as "(0:4, 0:8)"."""
    return "(" + ", ".join(f"{low}:{high + 1}" for low, high in intervals) + ")"


@dataclass(frozen=True, slots=True)
class _Constraint:
    """The constraint low ≤ value ≤ high, from a subscript of a read."""

    value: Linear
    low: int
    high: int
    read: Read


class _Solver:
    """Solves the index ranges of one statement."""

    def __init__(
        self, source: Source, step: Step, sizes: Mapping[str, int], bounds: Mapping[str, tuple[Interval, ...]]
    ) -> None:
        self._source, self._step, self._sizes = source, step, sizes
        self._reads = [value for value in walk(step.value, *step.witnesses) if isinstance(value, Read)]
        self._constraints = [
            _Constraint(linear(subscript, sizes), low, high, read)
            for read in self._reads
            if read.tensor in bounds  # not an output that its first statement reads: its size is that of the writes
            for subscript, (low, high) in zip(read.subscripts, bounds[read.tensor], strict=True)
        ]
        self._solved: dict[str, Interval] = {}
        self._rounds: dict[str, int] = {}

    def solved_alone(self) -> dict[str, Interval]:
        """Return the ranges that can be inferred from this statement. Raise TCRangeError if one is empty."""
        self._solve(dict)
        return self._solved

    def solved(self, others: Callable[[], Mapping[str, Interval]]) -> Domain:
        """Return the ranges. Raise TCRangeError.

        others: Returns the ranges of left indices in other statements, used when this one does not determine them.
        """
        unsolved = self._solve(others)
        if unsolved:
            raise self._unsolved(unsolved)
        names = [*self._step.indices, *self._step.reduced]
        return Domain({name: self._solved[name] for name in names}, self._rounds)

    def _solve(self, others: Callable[[], Mapping[str, Interval]]) -> list[str]:
        """Solve as many indices as possible, and return those that are not solved."""
        for name, (low, high) in self._step.ranges.items():
            self._record(name, (self._bound(low), self._bound(high) - 1), 0)
        names = [*self._step.indices, *self._step.reduced]
        number = 0
        while unsolved := [name for name in names if name not in self._solved]:
            number += 1
            solved = self._round(unsolved)
            if not solved:
                known = others()
                solved = {name: known[name] for name in unsolved if name in known}
            if not solved:
                return unsolved
            for name, interval in solved.items():
                self._record(name, interval, number)
        return []

    def _bound(self, value: Value) -> int:
        """Evaluate a bound of `where`. Raise TCRangeError."""
        if any(isinstance(part, Unary | Binary) and may_wrap(part, {}, self._sizes) for part in walk(value)):
            raise self._source.error(
                TCRangeError,
                value.span,
                "the bound of a range exceeds int32",
                "indices are int32; give a smaller range",
            )
        try:
            return int(on_grid(value, {}, self._sizes))
        except ZeroDivisionError:
            raise self._source.error(TCRangeError, value.span, "the bound of a range divides by zero") from None
        except Unknown:
            raise self._source.error(
                TCRangeError, value.span, "the bound of a range cannot be evaluated", "use only + - * / % min and max"
            ) from None

    def _record(self, name: str, interval: Interval, number: int) -> None:
        """Record the range of an index; raise TCRangeError if it is empty or too large."""
        low, high = interval
        span = self._step.index_spans.get(name, self._step.span)
        if low > high:
            raise self._source.error(
                TCRangeError,
                span,
                f"inferred an empty range for `{name}`: {low}:{high + 1}",
                self._why_empty(name, number),
            )
        if low < -_MOST or high > _MOST or high - low >= _MOST:
            raise self._source.error(
                TCRangeError,
                span,
                f"the range of `{name}` is too large: {low}:{high + 1}",
                "indices are int32 and have fewer than 2^31 values; give a smaller range with `where`",
            )
        self._solved[name], self._rounds[name] = interval, number

    def _why_empty(self, name: str, number: int) -> str:
        if number == 0:
            return "the upper bound must be greater than the lower one"
        return f"no value of `{name}` keeps {self._used(name)} within the tensor"

    def _round(self, unsolved: list[str]) -> dict[str, Interval]:
        """Return the ranges of indices that can be solved in this round."""
        solved: dict[str, Interval] = {}
        for constraint in self._constraints:
            for name, (low, high) in self._inverted(constraint.value, constraint.low, constraint.high, unsolved):
                previous = solved.get(name, (low, high))
                solved[name] = (max(previous[0], low), min(previous[1], high))
        return solved

    def _inverted(self, sum_: Linear, low: int, high: int, unsolved: list[str]) -> Iterator[tuple[str, Interval]]:
        """Yield the range that low ≤ sum ≤ high allows for the only unknown index, if there is exactly one."""
        unknown = [(c, atom) for c, atom in sum_.terms if not indices_of(atom).isdisjoint(unsolved)]
        if len(unknown) != 1 or any(depends_on_data(atom) for _, atom in sum_.terms):
            return
        ((coefficient, atom),) = unknown
        rest = Linear(sum_.constant, tuple(term for term in sum_.terms if term[1].key != atom.key))
        least, greatest = interval_of(rest, self._solved, self._sizes)
        low, high = low - least, high - greatest
        if coefficient < 0:
            low, high, coefficient = -high, -low, -coefficient
        low, high = -(-low // coefficient), high // coefficient
        if atom.index:
            yield atom.index, (low, high)
        elif atom.inner is not None:
            yield from self._inverted(atom.inner, low * atom.divisor, high * atom.divisor + atom.divisor - 1, unsolved)

    def _used(self, name: str) -> str:
        """Return the accesses whose subscripts contain an index, as written."""
        texts = [
            f"`{self._source.shown(read.span)}`"
            for read in self._reads
            if any(isinstance(part, Index) and part.name == name for part in walk(*read.subscripts))
        ]
        return ", ".join(dict.fromkeys(texts))

    def _unsolved(self, unsolved: list[str]) -> TCRangeError:
        """Return an error for indices whose range cannot be inferred."""
        name = next((name for name in unsolved if not self._used(name)), unsolved[0])
        others = f" (nor {', '.join(f'`{other}`' for other in unsolved if other != name)})" if len(unsolved) > 1 else ""
        used = self._used(name)
        if used:
            why = (
                f"could not infer the range of `{name}`{others}: it occurs only in {used}, which does not determine it"
            )
        else:
            why = f"could not infer the range of `{name}`{others}: no subscript contains it"
        remedy = instead_of_constant(name) or f"add `where {name} in 0:…`"
        return self._source.error(TCRangeError, self._step.index_spans.get(name, self._step.span), why, remedy)
