"""Points that satisfy a gate, numbered, so that to draw a number is to draw a point.

A gate is a product of tests. On GPUs they refuse all but a few in a hundred tilings, but each sees a tiling only
through some products of its factors: threads are i.2·j.2, whatever the other factors are. So the choices of every group
of variables are sorted into classes that no test tells apart. Where a test is about several groups, the combinations
of classes it accepts are listed with the number of points that each stands for, and the running sum of these numbers
the points. A test whose list would be too long refuses points after they were drawn. Either way every point that
satisfies the gate is equally likely.

In: variables and a gate. Out: `UniformSampler`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.expr.factors import draw_factorisations, factorisations
from felixlike.symbolic.expr.node import Group, Op, group_of, product_parts
from felixlike.symbolic.expr.traversal import topological, variables
from felixlike.symbolic.program.variables import Kind, Variable, groups

Integers = npt.NDArray[np.int64]

_LONGEST = 1 << 18
"""Most combinations of classes that are tried for one test: some 50 ms once, and a few MB for those it accepts."""

_NUMBERS = 1 << 62
"""Most points of one list; their numbers are int64."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """What the variables of one group may be together.

    table: int64[choices, columns], class by class.  starts, sizes: int64[classes], the first row of each class and how
    many rows it has."""

    columns: tuple[int, ...]
    names: tuple[str, ...]
    table: Integers
    starts: Integers
    sizes: Integers


class _List:
    """Combinations of classes of some groups.  classes: int32[combinations, members].  size: points they stand for."""

    def __init__(self, members: tuple[_Choices, ...], classes: npt.NDArray[np.int32]) -> None:
        self.members = members
        self.classes = classes
        sizes = [choices.sizes[classes[:, i]] for i, choices in enumerate(members)]
        counts = np.prod(sizes, axis=0, dtype=np.int64)
        self._firsts = np.cumsum(counts) - counts
        self.size = int(counts.sum())

    @property
    def names(self) -> frozenset[str]:
        """The variables of all members."""
        return frozenset(chain.from_iterable(choices.names for choices in self.members))

    def draw(self, count: int, rng: np.random.Generator) -> list[Integers]:
        """For each member the row of its table, int64[count]."""
        numbers = rng.integers(self.size, size=count)
        at = np.searchsorted(self._firsts, numbers, side="right") - 1
        rest = numbers - self._firsts[at]
        found = []
        for member, choices in enumerate(self.members):
            chosen = self.classes[at, member]
            rest, row = np.divmod(rest, choices.sizes[chosen])
            found.append(choices.starts[chosen] + row)
        return found


class UniformSampler:
    """The points of some variables that satisfy a gate; compute locations stay at the root."""

    def __init__(self, members: Sequence[Variable], gate: Expr) -> None:
        self._variables = tuple(members)
        tests = [test for test, _ in product_parts(gate)[1]]
        self._lists, self._unlisted = _separate(self._variables, tests)
        self._left: list[Expr] = []
        self._barren = gate.is_const and not gate.value
        for test in sorted(tests, key=lambda test: _combinations(_about(test, self._lists))):
            self._join(test)
        self._graph = Graph(self._left)
        self._asked = {v.name for v in variables(self._left)}

    @property
    def size(self) -> int:
        """How many points are drawn from: 0 where none is valid. Groups with too many choices to list count as one, and
        points that the remaining tests refuse are counted."""
        return 0 if self._barren else math.prod(found.size for found in self._lists)

    def draw(self, count: int, rng: np.random.Generator) -> Integers:
        """int64[at most count, variables]: `count` draws, without those that the remaining tests refuse."""
        if not self.size:
            return np.empty((0, len(self._variables)), dtype=np.int64)
        parts: list[tuple[tuple[int, ...], Integers, Integers]] = []  # columns, table, row for each draw
        for found in self._lists:
            rows = found.draw(count, rng)
            parts += [(c.columns, c.table, row) for c, row in zip(found.members, rows, strict=True)]
        for columns in self._unlisted:
            first, last = self._variables[columns[0]], self._variables[columns[-1]]
            table = draw_factorisations(first.extent, len(columns), last.choices[-1], count, rng)
            parts.append((columns, table, np.arange(count)))
        if self._left:
            values = {
                self._variables[column].name: table[row, position].astype(np.float64)
                for columns, table, row in parts
                for position, column in enumerate(columns)
                if self._variables[column].name in self._asked
            }
            accepted = (self._graph.evaluate(values, count) > 0.5).all(axis=1)
            parts = [(columns, table, row[accepted]) for columns, table, row in parts]
            count = int(accepted.sum())
        points = np.full((count, len(self._variables)), -1, dtype=np.int64)
        for columns, table, row in parts:
            points[:, columns] = table[row]
        return points

    def _join(self, test: Expr) -> None:
        """Put the lists that a test is about into one that it accepts all of, or leave the test for later."""
        about = _about(test, self._lists)
        names = frozenset().union(*(found.names for found in about))
        asked = {v.name for v in variables([test])}
        points = math.prod(found.size for found in about)
        if not asked <= names or _combinations(about) > _LONGEST or points > _NUMBERS:
            self._left.append(test)
            return
        grid = np.indices([len(found.classes) for found in about]).reshape(len(about), -1)
        classes = np.concatenate([found.classes[at] for found, at in zip(about, grid, strict=True)], axis=1)
        members = tuple(chain.from_iterable(found.members for found in about))
        values = {
            name: choices.table[choices.starts[classes[:, i]], position].astype(np.float64)
            for i, choices in enumerate(members)
            for position, name in enumerate(choices.names)
            if name in asked
        }
        accepted = Graph([test]).evaluate(values, len(classes))[:, 0] > 0.5
        self._lists = [*(found for found in self._lists if found not in about), _List(members, classes[accepted])]


def _separate(members: Sequence[Variable], tests: Sequence[Expr]) -> tuple[list[_List], list[tuple[int, ...]]]:
    """A list for each group of variables, whatever the tests say; the columns of groups with too many choices."""
    products = _products(tests)
    lists: list[_List] = []
    unlisted: list[tuple[int, ...]] = []
    for _, columns in groups(members):
        first, last = members[columns[0]], members[columns[-1]]
        if first.kind is Kind.LOCATION:
            continue
        if first.kind is Kind.TILE:
            table = factorisations(first.extent, len(columns), last.choices[-1])
        else:
            table = np.array(first.choices, dtype=np.int64)[:, None]
        if table is None:
            unlisted.append(columns)
            continue
        names = tuple(members[c].name for c in columns)
        seen = [table[:, [names.index(n) for n in p]].prod(axis=1) for p in sorted(products) if p[0] in names]
        choices = _classified(columns, names, table, seen)
        lists.append(_List((choices,), np.arange(len(choices.sizes), dtype=np.int32)[:, None]))
    return lists, unlisted


def _classified(columns: tuple[int, ...], names: tuple[str, ...], table: Integers, seen: list[Integers]) -> _Choices:
    """Rows that look the same, class by class.  seen: int64[choices], everything that is seen of them."""
    label = np.zeros(len(table), dtype=np.int64)
    for column in seen:
        _, number = np.unique(column, return_inverse=True)
        _, label = np.unique(label * len(table) + number, return_inverse=True)
    sizes = np.bincount(label)
    return _Choices(columns, names, table[np.argsort(label, kind="stable")], np.cumsum(sizes) - sizes, sizes)


def _products(tests: Sequence[Expr]) -> set[tuple[str, ...]]:
    """Names of the variables of one group that a test sees the product of, and no more.

    In a quotient every variable is seen on its own: equal numbers may be rounded differently on the way."""
    found: set[tuple[str, ...]] = set()
    for node in topological(tests):
        exponents: list[int] = list(node.payload) if node.op is Op.MUL else []  # type: ignore[arg-type]
        if not exponents or min(exponents) < 0:
            found |= {(argument.name,) for argument in node.args if argument.op is Op.VAR}
            continue
        together: dict[Group | Expr, list[str]] = {}
        for argument, exponent in zip(node.args, exponents, strict=True):
            if argument.op is Op.VAR:
                together.setdefault(group_of(argument) or argument, []).extend([argument.name] * exponent)
        found |= {tuple(names) for names in together.values()}
    return found


def _about(test: Expr, lists: Sequence[_List]) -> list[_List]:
    """The lists with a variable of the test."""
    asked = {v.name for v in variables([test])}
    return [found for found in lists if asked & found.names]


def _combinations(lists: Sequence[_List]) -> int:
    return math.prod(len(found.classes) for found in lists)
