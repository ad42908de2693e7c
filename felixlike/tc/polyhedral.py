"""Compute the schedule tree of a program by isl, the library behind Tensor Comprehensions.

Input: a program, its ranges for concrete sizes, a fusion strategy. Output: isl's schedule tree (Vasilache et al. 2018,
§4). Each statement is a set of points with relations to the elements that it reads and writes. A statement that
starts from the neutral element is two: `S1_init` and `S1`. isl derives the dependences and a schedule that keeps them.
A read whose subscript is not affine, or is checked in every call, counts as a read of the whole dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise
from typing import Any, TypeVar

from felixlike.errors import InvalidOption, MissingDependency, TCError, TCFusionError
from felixlike.tc.bounds import Bounds, Kept
from felixlike.tc.const_eval import Unknown, on_grid
from felixlike.tc.program import Binary, Convert, Index, Program, Read, Step, Unary, Value, walk
from felixlike.tc.ranges import Ranges
from felixlike.tc.scalars import is_integral, limits

_Result = TypeVar("_Result")

_OPTIONS: dict[str, dict[str, int]] = {
    "Max": {"whole_component": 1, "maximize_coincidence": 0},
    "Preserve3Coincident": {"whole_component": 0, "maximize_coincidence": 1},
    "Min": {"whole_component": 0, "serialize_sccs": 1},
}
"""Options of isl's scheduler by fusion strategy. The original sets the same through callbacks of a patched isl."""

_UNSHIFTED = {"max_constant_term": 0, "max_coefficient": 1}
"""Options that keep statements unshifted, for all strategies. Shifts by whole extents fuse loops one after another, and
take seconds to find."""

_OPERATIONS = 20_000_000
"""Limit on isl's operations, about a second. Chosen by hand."""

_COINCIDENT = 3
"""Parallel loops that Preserve3Coincident keeps; fusion may give up further ones."""

_KEYWORDS = frozenset(
    (
        *("and", "ceil", "ceild", "exists", "false", "floor", "floord", "implies", "infinity", "infty", "max", "min"),
        *("mod", "nan", "NaN", "not", "or", "rat", "true"),
    )
)
"""Words of isl's notation, which cannot name an index."""


_Groups = Sequence[tuple[int, ...]]
"""Groups of statements, by their numbers from 1."""


def heading(
    program: Program, sizes: Mapping[str, int], fusion: str, fused: _Groups = (), tiles: tuple[int, ...] = ()
) -> str:
    """Return the name of a program, its sizes, and how it is fused and tiled, as a line above trees and code."""
    by_hand = " and ".join(" with ".join(f"S{number}" for number in group) for group in fused)
    parts = [program.name, *(f"{name} = {size}" for name, size in sizes.items()), f"fusion {by_hand or fusion}"]
    return ", ".join([*parts, f"tiles {' × '.join(map(str, tiles))}"] if tiles else parts)


def schedule_tree(
    program: Program,
    sizes: Mapping[str, int],
    ranges: Ranges,
    bounds: Bounds,
    fusion: str,
    fused: _Groups = (),
    tiles: tuple[int, ...] = (),
) -> str:
    """Return the schedule tree of a program as isl prints it, in YAML, after a line with the sizes.

    See `schedule` for arguments and errors.
    """
    tree = schedule(program, sizes, ranges, bounds, fusion, fused, tiles).get_root().to_str()
    lines = [line for line in tree.splitlines() if not line.startswith("#")]
    return "\n".join([f"# {heading(program, sizes, fusion, fused, tiles)}", *lines])


def fused_statements(
    program: Program, sizes: Mapping[str, int], ranges: Ranges, bounds: Bounds, fusion: str, fused: _Groups = ()
) -> list[set[int]]:
    """Return the sets of statements, by their places in the program, that share an outermost loop of the schedule.

    An initialization is with its statement in any case. See `schedule` for arguments and errors.
    """
    tree = schedule(program, sizes, ranges, bounds, fusion, fused)
    import islpy as isl

    sets: list[set[int]] = []

    def visit(node: Any) -> bool:
        if node.get_type() not in (isl.schedule_node_type.band, isl.schedule_node_type.leaf):
            return True
        joined = {number - 1 for number in _numbers(node.get_domain())}
        for other in [other for other in sets if other & joined]:
            sets.remove(other)
            joined |= other
        sets.append(joined)
        return False

    tree.foreach_schedule_node_top_down(visit)
    return sets


def schedule(
    program: Program,
    sizes: Mapping[str, int],
    ranges: Ranges,
    bounds: Bounds,
    fusion: str,
    fused: _Groups = (),
    tiles: tuple[int, ...] = (),
) -> Any:
    """Return isl's schedule of a program, an `islpy.Schedule`.

    Args:
        program: The program.
        sizes: Sizes by name.
        ranges: Ranges of its indices.
        bounds: How its accesses are kept within their tensors.
        fusion: "Max", "Preserve3Coincident" or "Min". It has no effect if there are `fused` statements.
        fused: Groups of statements to fuse by request, by their numbers from 1. All others are scheduled one by one.
        tiles: Tile sizes of the outermost loops of each outermost band, outermost first.

    Raises:
        MissingDependency: islpy is not installed.
        InvalidOption: `fused` has a number that no statement has.
        TCFusionError: Statements of a group cannot share a loop, or another one has to run between them.
        TCError: isl exceeds its limit of operations.
    """
    try:
        import islpy as isl
    except ImportError as error:
        raise MissingDependency(
            "schedule trees are computed by islpy, which is not installed",
            where=program.name,
            remedy='pip install "felixlike[tc]"',
        ) from error
    statements = [part for number in range(len(program.steps)) for part in _statements(program, number, sizes, ranges)]

    def scheduled() -> Any:
        if fused:
            return _by_hand(isl, program, statements, bounds, fused)
        tree = _scheduled(isl, statements, bounds, fusion)
        if fusion == "Preserve3Coincident":
            largest = _scheduled(isl, statements, bounds, "Max")
            if all(coincident >= _COINCIDENT for coincident in _fused_coincidence(isl, largest)):
                return largest
        return tree

    return limited(program, lambda: _tiled(isl, scheduled(), tiles) if tiles else scheduled())


def _tiled(isl: Any, tree: Any, tiles: tuple[int, ...]) -> Any:
    """Split the outermost bands of a schedule into loops over tiles and loops within them."""

    def tile(node: Any) -> Any:
        is_band = node.get_type() == isl.schedule_node_type.band
        if not is_band or node.get_schedule_depth() > 0 or not node.band_get_permutable():
            return node
        count = min(len(tiles), node.band_n_member())
        if count < node.band_n_member():
            node = node.band_split(count)
        sizes = isl.MultiVal.zero(node.band_get_space())
        for place, size in enumerate(tiles[:count]):
            sizes = sizes.set_val(place, isl.Val.int_from_si(node.get_ctx(), size))
        return node.band_tile(sizes)

    return tree.map_schedule_node_bottom_up(tile)


def limited(program: Program, compute: Callable[[], _Result]) -> _Result:
    """Return what isl computes. Raise TCError if it exceeds its limit of operations."""
    import islpy as isl

    try:
        return compute()
    except isl.Error as error:
        if "operations" not in str(error):
            raise
        raise TCError(
            f"isl finds no schedule within {_OPERATIONS} operations",
            where=program.name,
            remedy='use the fusion strategy "Min", which schedules statements one by one',
        ) from None


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement as isl sees it.

    Attributes:
        name: Its name in the tree.
        number: The number of the statement in the program, from 1.
        rank: Its number of indices.
        space: Its name and indices, such as S1[i, k].
        domain: The set of its points.
        order: Its place in the text's order, a map from its points.
        target: The tensor that it writes, at its indices.
        left: Names of the indices on the left.
        step: The statement of the program; None for an initialization, which reads nothing.
        names: The name in isl of each index.
        sizes: Sizes by name.
        updates: Whether it reads the element that it writes.
    """

    name: str
    number: int
    rank: int
    space: str
    domain: str
    order: str
    target: str
    left: tuple[str, ...]
    step: Step | None
    names: Mapping[str, str]
    sizes: Mapping[str, int]
    updates: bool

    def writes(self) -> str:
        """Return the relation from its points to the element that it writes."""
        return f"{self.space} -> T_{self.target}[{', '.join(self.left)}]"

    def reads(self, bounds: Bounds) -> Iterator[str]:
        """Yield the relation from its points to the elements of each access."""
        if self.updates:
            yield self.writes()
        for value in walk(self.step.value) if self.step else ():
            if isinstance(value, Read):
                known = bounds.kept.get(id(value), Kept.ALWAYS) is not Kept.BY_CHECK
                texts = [self._affine(subscript) if known else None for subscript in value.subscripts]
                # An index that is bound by nothing ranges over the whole dimension.
                places = [text or f"any{place}" for place, text in enumerate(texts)]
                yield f"{self.space} -> T_{value.tensor}[{', '.join(places)}]"

    def _affine(self, value: Value) -> str | None:
        """Return an integer value as text of isl; None if it is not affine in the indices."""
        number = self._number(value)
        if number is not None:
            return f"({number})"
        match value:
            case Index():
                return self.names[value.name]
            case Convert() if is_integral(value.value.dtype) and value.dtype in ("int32", "int64"):
                wide = value.dtype == "int64" or limits(value.value.dtype)[1] <= limits("int32")[1]
                return self._affine(value.value) if wide else None
            case Unary(operator="-"):
                inner = self._affine(value.value)
                return inner and f"(-{inner})"
            case Binary(operator="+" | "-"):
                left, right = self._affine(value.left), self._affine(value.right)
                return left and right and f"({left} {value.operator} {right})"
            case Binary(operator="*" | "/" | "%"):
                return self._scaled(value)
        return None

    def _number(self, value: Value) -> int | None:
        """Return an integer value that depends on sizes alone; None for other values."""
        if not is_integral(value.dtype) or any(isinstance(part, Index | Read) for part in walk(value)):
            return None
        try:
            return int(on_grid(value, {}, self.sizes))
        except (Unknown, ZeroDivisionError):
            return None

    def _scaled(self, value: Binary) -> str | None:
        """Return a product with a number, or a quotient or remainder by a positive one, as text of isl."""
        inner, number = value.left, self._number(value.right)
        if number is None and value.operator == "*":
            inner, number = value.right, self._number(value.left)
        text = self._affine(inner)
        if text is None or number is None or (value.operator != "*" and number < 1):
            return None
        return {"*": f"({number}*({text}))", "/": f"floor({text}/{number})", "%": f"({text} mod {number})"}[
            value.operator
        ]


def _statements(program: Program, number: int, sizes: Mapping[str, int], ranges: Ranges) -> Iterator[_Statement]:
    """Yield the initialization of a statement, if it has one, and the statement."""
    step, intervals = program.steps[number], ranges.domains[number].intervals
    names: dict[str, str] = {}
    for index in intervals:
        name = index
        while name in _KEYWORDS or name in names.values() or (name != index and name in intervals):
            name += "_"
        names[index] = name
    deepest = max(len(domain.intervals) for domain in ranges.domains)

    def part(name: str, indices: tuple[str, ...], place: int, *, is_step: bool) -> _Statement:
        space = f"{name}[{', '.join(names[index] for index in indices)}]"
        limits_ = [f"{intervals[i][0]} <= {names[i]} <= {intervals[i][1]}" for i in indices]
        times = [str(2 * number + place), *(names[i] for i in indices), *["0"] * (deepest - len(indices))]
        return _Statement(
            name,
            number + 1,
            len(indices),
            space,
            f"{space} : {' and '.join(limits_)}" if limits_ else space,
            f"{space} -> [{', '.join(times)}]",
            step.target,
            tuple(names[index] for index in step.indices),
            step if is_step else None,
            names,
            sizes,
            is_step and (bool(step.reduced) or not step.fresh),
        )

    if step.reduced and step.fresh:
        yield part(f"S{number + 1}_init", step.indices, 0, is_step=False)
    yield part(f"S{number + 1}", (*step.indices, *step.reduced), 1, is_step=True)


def _by_hand(isl: Any, program: Program, statements: list[_Statement], bounds: Bounds, fused: _Groups) -> Any:
    """Return the schedule in which the groups of statements have an outermost loop each."""
    for number in sorted({number for group in fused for number in group}):
        if number > len(program.steps):
            raise InvalidOption(
                f"there is no statement {number}; {program.name} has {len(program.steps)}",
                where="fuse_statements",
                remedy="number the statements from 1, in their order",
            )
    groups = [*fused]
    grouped = {number for group in fused for number in group}
    groups += [(number,) for number in range(1, len(program.steps) + 1) if number not in grouped]
    group_of = {number: group for group in groups for number in group}
    order = TopologicalSorter[tuple[int, ...]](dict.fromkeys(sorted(groups), ()))
    for source, sink in _pairs(_constraints(isl, isl.Context(), statements, bounds).get_validity()):
        if group_of[source] != group_of[sink]:
            order.add(group_of[sink], group_of[source])
    try:
        ordered = list(order.static_order())
    except CycleError as error:
        cycle = sorted({number for group in error.args[1] for number in group})
        raise TCFusionError(
            f"{_listed(cycle)} depend on each other in a circle, if each group is fused",
            where=program.name,
            remedy="name the statements between them too, or fuse fewer",
        ) from None
    context, tree = _context(isl, "Max"), None
    for group in ordered:
        members = [statement for statement in statements if statement.number in group]
        constraints = _constraints(isl, context, members, bounds)
        part = constraints.set_proximity(constraints.get_proximity().union(_near(isl, context, members)))
        part = part.compute_schedule()
        if len(group) > 1 and not _shares_a_loop(isl, part):
            raise TCFusionError(
                f"{_listed(group)} cannot share a loop: one needs elements that another has not computed in the same"
                " iteration",
                where=program.name,
                remedy="fuse fewer statements",
            )
        tree = part if tree is None else tree.sequence(part)
    return tree


def _near(isl: Any, context: Any, members: list[_Statement]) -> Any:
    """Return a relation between points of successive statements with the same outermost index.

    isl schedules statements apart if nothing relates them, but a request may fuse them too.
    """
    texts = []
    for one, other in pairwise(members):
        names = [[f"{letter}{place}" for place in range(s.rank)] for letter, s in (("a", one), ("b", other))]
        same = " : a0 = b0" if one.rank and other.rank else ""
        texts.append(f"{one.name}[{', '.join(names[0])}] -> {other.name}[{', '.join(names[1])}]{same}")
    domain = isl.UnionSet.read_from_str(context, "{ " + "; ".join(s.domain for s in members) + " }")
    relation = isl.UnionMap.read_from_str(context, "{ " + "; ".join(texts) + " }")
    return relation.intersect_domain(domain).intersect_range(domain)


def _listed(numbers: Iterable[int]) -> str:
    """Return numbers of statements as text: "statements 1, 2 and 4"."""
    *first, last = map(str, sorted(numbers))
    return f"statements {', '.join(first)} and {last}"


def _shares_a_loop(isl: Any, tree: Any) -> bool:
    """Return whether the outermost node of a schedule is a loop in which statements do not just follow one another.

    Where no common order of iterations is right, isl may reverse a loop, so that one statement ends as another begins.
    """
    node = tree.get_root().child(0)
    if node.get_type() != isl.schedule_node_type.band or node.band_n_member() == 0:
        return False
    spans: list[tuple[int, int]] = []

    def add(relation: Any) -> None:
        moments = relation.range()
        spans.append((moments.dim_min_val(0).to_python(), moments.dim_max_val(0).to_python()))

    tree.get_map().intersect_domain(tree.get_domain()).foreach_map(add)
    return all(
        min(one[1], other[1]) > max(one[0], other[0]) or one[0] == one[1] or other[0] == other[1]
        for one, other in combinations(spans, 2)
    )


def _numbers(domain: Any) -> set[int]:
    """Return the numbers of the statements in a set of points."""
    names: list[str] = []
    domain.foreach_set(lambda points: names.append(points.get_tuple_name()))
    return {_number_of(name) for name in names}


def _number_of(name: str) -> int:
    """Return the number in the name of a statement: 2 of S2_init."""
    return int(name[1:].partition("_")[0])


def _pairs(dependences: Any) -> set[tuple[int, int]]:
    """Return the numbers of the statements between which there are dependences."""
    pairs: set[tuple[int, int]] = set()

    def add(relation: Any) -> None:
        ends = [relation.domain().get_tuple_name(), relation.range().get_tuple_name()]
        pairs.add((_number_of(ends[0]), _number_of(ends[1])))

    dependences.foreach_map(add)
    return pairs


def _context(isl: Any, fusion: str, **more: int) -> Any:
    """Return a context of isl with the options of a fusion strategy; options belong to a context."""
    context = isl.Context()
    for option, value in {**_UNSHIFTED, **_OPTIONS[fusion], **more}.items():
        getattr(context, f"set_schedule_{option}")(value)
    return context


def _scheduled(isl: Any, statements: list[_Statement], bounds: Bounds, fusion: str) -> Any:
    """Return isl's schedule."""
    return _constraints(isl, _context(isl, fusion), statements, bounds).compute_schedule()


def _constraints(isl: Any, context: Any, statements: list[_Statement], bounds: Bounds) -> Any:
    """Return the points of statements and the dependences between them, as constraints of isl's scheduler."""
    context.set_max_operations(0)

    def relation(texts: list[str]) -> Any:
        whole = isl.UnionMap.read_from_str(context, "{ " + "; ".join(texts) + " }")
        return whole.intersect_domain(domain)

    domain = isl.UnionSet.read_from_str(context, "{ " + "; ".join(s.domain for s in statements) + " }")
    writes = relation([s.writes() for s in statements])
    reads = relation([text for s in statements for text in s.reads(bounds)])
    order = relation([s.order for s in statements])
    context.set_max_operations(_OPERATIONS)  # only now: exceeded while text is read, it looks like a syntax error

    def dependences(sources: Any, sinks: Any) -> Any:
        accesses = isl.UnionAccessInfo.from_sink(sinks).set_may_source(sources).set_schedule_map(order)
        return accesses.compute_flow().get_may_dependence()

    all_ = dependences(writes, reads).union(dependences(writes.union(reads), writes)).coalesce()
    constraints = isl.ScheduleConstraints.on_domain(domain)
    return constraints.set_validity(all_).set_coincidence(all_).set_proximity(all_)


def _fused_coincidence(isl: Any, schedule: Any) -> list[int]:
    """Return the number of leading coincident members of each outermost band that holds several statements."""
    counts: list[int] = []

    def visit(node: Any) -> bool:
        if node.get_type() != isl.schedule_node_type.band:
            return True
        if node.get_domain().n_set() > 1:
            flags = [node.band_member_get_coincident(place) for place in range(node.band_n_member())]
            counts.append([*flags, False].index(False))
        return False

    schedule.foreach_schedule_node_top_down(visit)
    return counts
