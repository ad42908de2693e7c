"""Draw points that satisfy a gate uniformly, by numbering them.

A gate is a product of tests. On GPUs, the tests refuse all but a few percent of the tilings, but each test depends on a
tiling only through some products of its factors: threads are i.2·j.2, independent of the other factors. So the choices
of every group of variables are sorted into classes that no test distinguishes. If a test involves several groups, the
accepted combinations of classes are listed with the number of points that each represents, and the running sum of these
numbers numbers the points. A test whose list would be too long is applied after drawing, by rejection. In both cases
every point that satisfies the gate is equally likely.

Input: variables and a gate. Output: `UniformSampler`.
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

MOST_COMBINATIONS = 1 << 18
"""Maximum number of combinations of classes that are tried for one test.

Trying them takes about 50 ms once, and storing the accepted ones takes a few MB.
"""

_NUMBERS = 1 << 62
"""Maximum number of points of one list, since their numbers are int64."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Hold the joint choices of the variables of one group.

    Attributes:
        columns: The variables' columns.
        names: The variables' names.
        table: int64[choices, columns], sorted by class.
        starts: int64[classes], the first row of each class.
        sizes: int64[classes], the number of rows of each class.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    table: Integers
    starts: Integers
    sizes: Integers


class _List:
    """Hold combinations of classes of some groups.

    Attributes:
        members: The groups.
        classes: int32[combinations, members].
        size: The number of points that the combinations represent.
    """

    def __init__(self, members: tuple[_Choices, ...], classes: npt.NDArray[np.int32]) -> None:
        self.members = members
        self.classes = classes
        sizes = [choices.sizes[classes[:, i]] for i, choices in enumerate(members)]
        counts = np.prod(sizes, axis=0, dtype=np.int64)
        self._firsts = np.cumsum(counts) - counts
        self.size = int(counts.sum())

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the variables of all members."""
        return frozenset(chain.from_iterable(choices.names for choices in self.members))

    def draw(self, count: int, rng: np.random.Generator) -> list[Integers]:
        """Draw points; return the row in its table for each member, int64[count]."""
        numbers = rng.integers(self.size, size=count)
        combination = np.searchsorted(self._firsts, numbers, side="right") - 1
        remainder = numbers - self._firsts[combination]
        rows = []
        for member, choices in enumerate(self.members):
            class_index = self.classes[combination, member]
            remainder, row = np.divmod(remainder, choices.sizes[class_index])
            rows.append(choices.starts[class_index] + row)
        return rows


class UniformSampler:
    """Sample the points of some variables that satisfy a gate, with compute locations at the root.

    Args:
        members: The variables, one for each column of a point.
        gate: A product of tests of the variables.
    """

    def __init__(self, members: Sequence[Variable], gate: Expr) -> None:
        self._variables = tuple(members)
        tests = [test for test, _ in product_parts(gate)[1]]
        self._lists, self._unlisted = _separate(self._variables, tests)
        self._rejection_tests: list[Expr] = []
        self._is_empty = gate.is_const and not gate.value
        for test in sorted(tests, key=lambda test: _combinations(_about(test, self._lists))):
            self._join(test)
        self._graph = Graph(self._rejection_tests)
        self._tested_names = {v.name for v in variables(self._rejection_tests)}

    @property
    def size(self) -> int:
        """Return the number of points that are drawn from; 0 if none is valid.

        A group with too many choices to list counts as one. Points that the remaining tests refuse are counted.
        """
        return 0 if self._is_empty else math.prod(entry.size for entry in self._lists)

    def draw(self, count: int, rng: np.random.Generator) -> Integers:
        """Draw `count` points and return those that the remaining tests accept: int64[at most count, variables]."""
        if not self.size:
            return np.empty((0, len(self._variables)), dtype=np.int64)
        parts: list[tuple[tuple[int, ...], Integers, Integers]] = []  # columns, table, row for each draw
        for entry in self._lists:
            rows = entry.draw(count, rng)
            parts += [(c.columns, c.table, row) for c, row in zip(entry.members, rows, strict=True)]
        for columns in self._unlisted:
            first, last = self._variables[columns[0]], self._variables[columns[-1]]
            table = draw_factorisations(first.extent, len(columns), last.choices[-1], count, rng)
            parts.append((columns, table, np.arange(count)))
        if self._rejection_tests:
            values = {
                self._variables[column].name: table[row, position].astype(np.float64)
                for columns, table, row in parts
                for position, column in enumerate(columns)
                if self._variables[column].name in self._tested_names
            }
            accepted = (self._graph.evaluate(values, count) > 0.5).all(axis=1)
            parts = [(columns, table, row[accepted]) for columns, table, row in parts]
            count = int(accepted.sum())
        points = np.full((count, len(self._variables)), -1, dtype=np.int64)
        for columns, table, row in parts:
            points[:, columns] = table[row]
        return points

    def _join(self, test: Expr) -> None:
        """Merge the lists that a test depends on into one of accepted combinations, or keep the test for rejection."""
        related = _about(test, self._lists)
        names = frozenset().union(*(entry.names for entry in related))
        tested_names = {v.name for v in variables([test])}
        points = math.prod(entry.size for entry in related)
        if not tested_names <= names or _combinations(related) > MOST_COMBINATIONS or points > _NUMBERS:
            self._rejection_tests.append(test)
            return
        grid = np.indices([len(entry.classes) for entry in related]).reshape(len(related), -1)
        classes = np.concatenate([entry.classes[at] for entry, at in zip(related, grid, strict=True)], axis=1)
        members = tuple(chain.from_iterable(entry.members for entry in related))
        values = {
            name: choices.table[choices.starts[classes[:, i]], position].astype(np.float64)
            for i, choices in enumerate(members)
            for position, name in enumerate(choices.names)
            if name in tested_names
        }
        accepted = Graph([test]).evaluate(values, len(classes))[:, 0] > 0.5
        self._lists = [*(entry for entry in self._lists if entry not in related), _List(members, classes[accepted])]


def _separate(members: Sequence[Variable], tests: Sequence[Expr]) -> tuple[list[_List], list[tuple[int, ...]]]:
    """Return a list for each group of variables, before any test, and the columns of groups with too many choices."""
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
        product_columns = [
            table[:, [names.index(n) for n in p]].prod(axis=1) for p in sorted(products) if p[0] in names
        ]
        choices = _classified(columns, names, table, product_columns)
        lists.append(_List((choices,), np.arange(len(choices.sizes), dtype=np.int32)[:, None]))
    return lists, unlisted


def _classified(columns: tuple[int, ...], names: tuple[str, ...], table: Integers, seen: list[Integers]) -> _Choices:
    """Sort the rows of a table into classes that look the same.

    Args:
        seen: int64[choices] for each product that a test depends on.
    """
    label = np.zeros(len(table), dtype=np.int64)
    for column in seen:
        _, number = np.unique(column, return_inverse=True)
        _, label = np.unique(label * len(table) + number, return_inverse=True)
    sizes = np.bincount(label)
    return _Choices(columns, names, table[np.argsort(label, kind="stable")], np.cumsum(sizes) - sizes, sizes)


def _products(tests: Sequence[Expr]) -> set[tuple[str, ...]]:
    """Return the products of variables of one group that tests depend on, as tuples of names.

    In a quotient, every variable counts alone: equal numbers may be rounded differently.
    """
    products: set[tuple[str, ...]] = set()
    for node in topological(tests):
        exponents: list[int] = list(node.payload) if node.op is Op.MUL else []  # type: ignore[arg-type]
        if not exponents or min(exponents) < 0:
            products |= {(argument.name,) for argument in node.args if argument.op is Op.VAR}
            continue
        names_by_group: dict[Group | Expr, list[str]] = {}
        for argument, exponent in zip(node.args, exponents, strict=True):
            if argument.op is Op.VAR:
                names_by_group.setdefault(group_of(argument) or argument, []).extend([argument.name] * exponent)
        products |= {tuple(names) for names in names_by_group.values()}
    return products


def _about(test: Expr, lists: Sequence[_List]) -> list[_List]:
    """Return the lists that contain a variable of the test."""
    tested_names = {v.name for v in variables([test])}
    return [entry for entry in lists if tested_names & entry.names]


def _combinations(lists: Sequence[_List]) -> int:
    """Return the number of combinations of the lists' classes."""
    return math.prod(len(entry.classes) for entry in lists)
