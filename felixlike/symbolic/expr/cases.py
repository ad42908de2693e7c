"""Express a number that depends on a few tile factors as a case distinction on their values.

Input: tile variables, and a function of their values. Output: one expression for each number that the function returns:

    {t = 1: 3, t = 3: 3, t = 9: 2}    →    select([t ≥ 9], 2, 3)

Quantities without a formula, such as the values of x % 3 in some of the loops, become exact formulas this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, product

import numpy as np

from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.comparison import at_least, select
from felixlike.symbolic.expr.evaluation import Graph
from felixlike.symbolic.expr.expression import Expr, const
from felixlike.symbolic.expr.factors import divisors
from felixlike.symbolic.expr.node import Group, Number, group_of

Case = tuple[int, ...]
"""Values of the expressions that distinguish cases."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on combinations of values. All are chosen by hand.

    Attributes:
        cases: Maximum number of combinations that are distinguished.
        evaluated: Maximum number of combinations for which the function is evaluated if quantities are passed.
        listed: Maximum number of combinations that are listed if quantities are passed.
        alike: Number of combinations of each set with the same quantities for which the function is evaluated if more
            than `evaluated` are listed.
        splits: Maximum number of ways to split one loop that are enumerated.
    """

    cases: int = 200
    evaluated: int = 5000
    listed: int = 400_000
    alike: int = 4
    splits: int = 50_000


_LIMITS = _Limits()


def by_cases(
    variables: Sequence[Expr],
    numbers: Callable[[Mapping[str, int]], Sequence[Number]],
    quantities: Sequence[Expr | tuple[Expr, ...]] = (),
) -> tuple[Expr, ...]:
    """Return `numbers`, a function of the variables' values by name, as expressions.

    Args:
        variables: Tile factors.
        numbers: Returns the numbers for values of the variables.
        quantities: Expressions of the variables, or tuples of them. Each may be all that the numbers depend on; the
            first for which this is true is distinguished instead of the variables.

    Raises:
        UnsupportedSketch: If a variable is not a tile factor, or there are too many combinations.
    """
    distinguishing, cases = _cases(variables, _LIMITS.listed if quantities else _LIMITS.cases)
    parts = [quantity if isinstance(quantity, tuple) else (quantity,) for quantity in quantities]
    keys: list[tuple[Sequence[Expr], list[Case]]] = [(part, _values(part, cases)) for part in parts]
    if len(cases) > _LIMITS.evaluated:
        sampled = _sample_alike([case for _, case in keys])
        cases = [cases[place] for place in sampled]
        keys = [(part, [case[place] for place in sampled]) for part, case in keys]
    else:
        keys.append((distinguishing, [key for key, _ in cases]))
    results = [numbers(values) for _, values in cases]
    return tuple(_by_first(keys, column) for column in zip(*results, strict=True))


def _values(parts: Sequence[Expr], cases: Sequence[tuple[Case, dict[str, int]]]) -> list[Case]:
    """Return the values of expressions for each combination."""
    columns = {name: np.array([values[name] for _, values in cases], dtype=np.float64) for name in cases[0][1]}
    results = Graph(list(parts)).evaluate(columns, len(cases))
    return [tuple(row) for row in np.rint(results).astype(np.int64).tolist()]


def _sample_alike(keys: Sequence[Sequence[Case]]) -> list[int]:
    """Return the positions of a few combinations of each set for which all quantities are the same.

    That such combinations have the same numbers is then only checked for these few, which are spread out.
    """
    places: dict[tuple[Case, ...], list[int]] = {}
    for place, quantities in enumerate(zip(*keys, strict=True)):
        places.setdefault(quantities, []).append(place)
    if len(places) * _LIMITS.alike > _LIMITS.evaluated:
        raise _too_many()
    samples = (
        np.linspace(0, len(members) - 1, min(len(members), _LIMITS.alike)).astype(int).tolist()
        for members in places.values()
    )
    return sorted(members[place] for members, chosen in zip(places.values(), samples, strict=True) for place in chosen)


def _by_first(keys: Sequence[tuple[Sequence[Expr], Sequence[Case]]], column: Sequence[Number]) -> Expr:
    """Return an expression for the numbers of a column, by the first of the keys whose values determine them."""
    for distinguishing, cases in keys:
        if _suffice(cases, column):
            distinguishing, cases = _needed(distinguishing, cases, column)
            numbers_by_case = dict(zip(cases, column, strict=True))
            if len(numbers_by_case) > _LIMITS.cases and len(set(column)) > 1:
                raise _too_many()
            return _case_distinction(distinguishing, sorted(numbers_by_case.items()))
    raise _too_many()  # none of the quantities suffices, and not all combinations were tried


def _suffice(cases: Sequence[Case], column: Sequence[Number]) -> bool:
    """Return whether the cases determine the numbers."""
    numbers_by_case = dict(zip(cases, column, strict=True))
    return all(numbers_by_case[case] == number for case, number in zip(cases, column, strict=True))


def _needed(
    distinguishing: Sequence[Expr], cases: Sequence[Case], column: Sequence[Number]
) -> tuple[Sequence[Expr], Sequence[Case]]:
    """Remove expressions that are not needed to determine the numbers."""
    for position in reversed(range(len(distinguishing))):
        fewer = [(*case[:position], *case[position + 1 :]) for case in cases]
        if _suffice(fewer, column):
            distinguishing, cases = [*distinguishing[:position], *distinguishing[position + 1 :]], fewer
    return distinguishing, cases


def _case_distinction(variables: Sequence[Expr], cases: Sequence[tuple[Case, Number]]) -> Expr:
    """Return the case distinction, with numbers shifted to be positive, as logarithms need them, and shifted back."""
    shift = max(0, 1 - min(number for _, number in cases))
    return _chain(variables, [(key, number + shift) for key, number in cases]) - shift


def _chain(variables: Sequence[Expr], cases: Sequence[tuple[Case, Number]]) -> Expr:
    """Return nested selects: by the first variable, its values ascending, around those by the others."""
    if not variables:
        return const(cases[0][1])
    chain: Expr | None = None
    last: Expr | None = None
    for value, members in groupby(cases, key=lambda case: case[0][0]):
        branch = _chain(variables[1:], [(key[1:], number) for key, number in members])
        if chain is None:
            chain = branch
        elif branch is not last:
            chain = select(at_least(variables[0], value), branch, chain)
        last = branch
    assert chain is not None
    return chain


def _cases(variables: Sequence[Expr], most: int) -> tuple[list[Expr], list[tuple[Case, dict[str, int]]]]:
    """Return the variables that distinguish the combinations, and for each combination its key and all values."""
    groups: dict[Group, list[Expr]] = {}
    for variable in variables:
        group = group_of(variable)
        if group is None:
            raise UnsupportedSketch(f"the values of {variable} cannot be enumerated", where="indices")
        groups.setdefault(group, []).append(variable)
    distinguishing: list[Expr] = []
    choices: list[list[tuple[Case, dict[str, int]]]] = []
    for group, members in groups.items():
        distinguishing += _distinguishing(group, members)
        choices.append(sorted(_of_group(group, members)))
    if math.prod(map(len, choices)) > most:
        raise _too_many()
    combined = [
        (sum((key for key, _ in parts), ()), {name: x for _, values in parts for name, x in values.items()})
        for parts in product(*choices)
    ]
    return distinguishing, combined


def _too_many() -> UnsupportedSketch:
    """Return the error for too many combinations."""
    return UnsupportedSketch(f"more than {_LIMITS.cases} combinations of tile factors to distinguish", where="indices")


def _distinguishing(group: Group, members: Sequence[Expr]) -> Sequence[Expr]:
    """Return the members that distinguish the splits; with all factors of a loop, the first follows from the others."""
    return members[1:] if len(members) == group.size else members


def _of_group(group: Group, members: Sequence[Expr]) -> Iterator[tuple[Case, dict[str, int]]]:
    """Yield the key of each split of a loop, and the values of its members by name."""
    whole = len(members) == group.size
    splits = list(islice(_splits(group.product, members, whole=whole), _LIMITS.splits + 1))
    if len(splits) > _LIMITS.splits:
        raise UnsupportedSketch(f"{group.name} can be split in more than {_LIMITS.splits} ways", where="indices")
    for values in splits:
        yield values[1:] if whole else values, {m.name: v for m, v in zip(members, values, strict=True)}


def _splits(extent: int, members: Sequence[Expr], *, whole: bool) -> Iterator[Case]:
    """Yield the values of the members whose product divides an extent, or equals it if `whole`."""
    if not members:
        if not whole or extent == 1:
            yield ()
        return
    first, *others = members
    for value in divisors(extent):
        if first.low <= value <= first.high:
            yield from ((value, *rest) for rest in _splits(extent // value, others, whole=whole))
