"""A number that depends on a few tile factors, as an expression that tells their values apart.

In: tile variables, a function of their values. Out: one expression for each number the function gives:

    {t = 1: 3, t = 3: 3, t = 9: 2}    →    select([t ≥ 9], 2, 3)

This is how quantities without a formula, such as the values x % 3 takes in some of the loops, become exact formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice, product

import numpy as np

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.expr.factors import divisors
from felixlike.symbolic.expr.node import Group, Number, group_of

_MOST = 200
"""Combinations of values that are told apart."""

_MOST_ALIKE = 5000
"""Combinations of values that are tried where one quantity may be all that matters."""

_MOST_LISTED, _OF_A_KIND = 400_000, 4
"""Combinations that are listed there, and of how many for which the quantities are the same the numbers are asked, if
there are more than are tried."""

_MOST_SPLITS = 50_000
"""Ways to split one loop that are looked through."""

Case = tuple[int, ...]


def by_cases(
    variables: Sequence[Expr],
    numbers: Callable[[Mapping[str, int]], Sequence[Number]],
    quantities: Sequence[Expr | tuple[Expr, ...]] = (),
) -> tuple[Expr, ...]:
    """`numbers`, a function of the variables' values by name, as expressions.

    quantities: expressions of the variables, or several together, one of which may be all that the numbers depend on;
    the first of which that is true is told apart in place of the variables.
    Raises UnsupportedSketch for variables that are no tile factors, and where there are too many combinations."""
    told, cases = _cases(variables, _MOST_LISTED if quantities else _MOST)
    parts = [quantity if isinstance(quantity, tuple) else (quantity,) for quantity in quantities]
    keys: list[tuple[Sequence[Expr], list[Case]]] = [(part, _values(part, cases)) for part in parts]
    if len(cases) > _MOST_ALIKE:
        few = _some([case for _, case in keys])
        cases = [cases[place] for place in few]
        keys = [(part, [case[place] for place in few]) for part, case in keys]
    else:
        keys.append((told, [key for key, _ in cases]))
    found = [numbers(values) for _, values in cases]
    return tuple(_by_first(keys, column) for column in zip(*found, strict=True))


def _values(parts: Sequence[Expr], cases: Sequence[tuple[Case, dict[str, int]]]) -> list[Case]:
    """The values of expressions for each combination."""
    columns = {name: np.array([values[name] for _, values in cases], dtype=np.float64) for name in cases[0][1]}
    found = Graph(list(parts)).evaluate(columns, len(cases))
    return [tuple(row) for row in np.rint(found).astype(np.int64).tolist()]


def _some(keys: Sequence[Sequence[Case]]) -> list[int]:
    """Places of a few of the combinations for which all quantities are the same, of each such kind.

    That they are alike in the numbers, too, is then known of these few only, which lie far apart."""
    places: dict[tuple[Case, ...], list[int]] = {}
    for place, together in enumerate(zip(*keys, strict=True)):
        places.setdefault(together, []).append(place)
    if len(places) * _OF_A_KIND > _MOST_ALIKE:
        raise _too_many()
    spread = (np.linspace(0, len(of) - 1, min(len(of), _OF_A_KIND)).astype(int).tolist() for of in places.values())
    return sorted(of[at] for of, chosen in zip(places.values(), spread, strict=True) for at in chosen)


def _by_first(keys: Sequence[tuple[Sequence[Expr], Sequence[Case]]], column: Sequence[Number]) -> Expr:
    """The numbers of a column told apart by the first expressions whose values suffice."""
    for told, cases in keys:
        if _suffice(cases, column):
            told, cases = _needed(told, cases, column)
            alone = dict(zip(cases, column, strict=True))
            if len(alone) > _MOST and len(set(column)) > 1:
                raise _too_many()
            return _told(told, sorted(alone.items()))
    raise _too_many()  # none of the quantities suffices, and not all combinations were tried


def _suffice(cases: Sequence[Case], column: Sequence[Number]) -> bool:
    alone = dict(zip(cases, column, strict=True))
    return all(alone[case] == number for case, number in zip(cases, column, strict=True))


def _needed(
    told: Sequence[Expr], cases: Sequence[Case], column: Sequence[Number]
) -> tuple[Sequence[Expr], Sequence[Case]]:
    """Those of the expressions without which the others do not suffice."""
    for at in reversed(range(len(told))):
        fewer = [(*case[:at], *case[at + 1 :]) for case in cases]
        if _suffice(fewer, column):
            told, cases = [*told[:at], *told[at + 1 :]], fewer
    return told, cases


def _told(variables: Sequence[Expr], cases: Sequence[tuple[Case, Number]]) -> Expr:
    """The chain of numbers shifted to be positive, and shifted back: smooth forms are logarithms."""
    shift = max(0, 1 - min(number for _, number in cases))
    return _chain(variables, [(key, number + shift) for key, number in cases]) - shift


def _chain(variables: Sequence[Expr], cases: Sequence[tuple[Case, Number]]) -> Expr:
    """Selects by the first variable, its values ascending, around those by the others."""
    if not variables:
        return const(cases[0][1])
    found: Expr | None = None
    last: Expr | None = None
    for value, members in groupby(cases, key=lambda case: case[0][0]):
        here = _chain(variables[1:], [(key[1:], number) for key, number in members])
        if found is None:
            found = here
        elif here is not last:
            found = select(at_least(variables[0], value), here, found)
        last = here
    assert found is not None
    return found


def _cases(variables: Sequence[Expr], most: int) -> tuple[list[Expr], list[tuple[Case, dict[str, int]]]]:
    """The variables that tell the combinations apart, and for each combination their values and everyone's values."""
    groups: dict[Group, list[Expr]] = {}
    for variable in variables:
        group = group_of(variable)
        if group is None:
            raise UnsupportedSketch(f"the values of {variable} are not told apart", where="indices")
        groups.setdefault(group, []).append(variable)
    told: list[Expr] = []
    choices: list[list[tuple[Case, dict[str, int]]]] = []
    for group, members in groups.items():
        told += _telling(group, members)
        choices.append(sorted(_of_group(group, members)))
    if math.prod(map(len, choices)) > most:
        raise _too_many()
    combined = [
        (sum((key for key, _ in parts), ()), {name: x for _, values in parts for name, x in values.items()})
        for parts in product(*choices)
    ]
    return told, combined


def _too_many() -> UnsupportedSketch:
    return UnsupportedSketch(f"more than {_MOST} combinations of tile factors to tell apart", where="indices")


def _telling(group: Group, members: Sequence[Expr]) -> Sequence[Expr]:
    """The first of all factors of a loop follows from the others."""
    return members[1:] if len(members) == group.size else members


def _of_group(group: Group, members: Sequence[Expr]) -> Iterator[tuple[Case, dict[str, int]]]:
    whole = len(members) == group.size
    splits = list(islice(_splits(group.product, members, whole=whole), _MOST_SPLITS + 1))
    if len(splits) > _MOST_SPLITS:
        raise UnsupportedSketch(f"too many ways to split {group.name} to tell them apart", where="indices")
    for values in splits:
        yield values[1:] if whole else values, {m.name: v for m, v in zip(members, values, strict=True)}


def _splits(extent: int, members: Sequence[Expr], *, whole: bool) -> Iterator[Case]:
    """The values of the members whose product divides an extent, or is it."""
    if not members:
        if not whole or extent == 1:
            yield ()
        return
    first, *others = members
    for value in divisors(extent):
        if first.low <= value <= first.high:
            yield from ((value, *rest) for rest in _splits(extent // value, others, whole=whole))
