"""Compute the schedule tree of a program by isl, the library behind Tensor Comprehensions.

Input: a program, its ranges for concrete sizes, a fusion strategy. Output: isl's schedule tree (Vasilache et al. 2018,
§4). Each statement is a set of points with relations to the elements that it reads and writes. A statement that
starts from the neutral element is two: `S1_init` and `S1`. isl derives the dependences and a schedule that keeps them.
A read whose subscript is not affine, or is checked in every call, counts as a read of the whole dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from felixlike.errors import MissingDependency, TCError
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


def schedule_tree(program: Program, sizes: Mapping[str, int], ranges: Ranges, bounds: Bounds, fusion: str) -> str:
    """Return the schedule tree of a program as isl prints it, in YAML, after a line with the sizes.

    See `schedule` for arguments and errors.
    """
    tree = schedule(program, sizes, ranges, bounds, fusion).get_root().to_str()
    heading = ", ".join([program.name, *(f"{name} = {size}" for name, size in sizes.items()), f"fusion {fusion}"])
    return "\n".join([f"# {heading}", *(line for line in tree.splitlines() if not line.startswith("#"))])


def schedule(program: Program, sizes: Mapping[str, int], ranges: Ranges, bounds: Bounds, fusion: str) -> Any:
    """Return isl's schedule of a program, an `islpy.Schedule`.

    Args:
        program: The program.
        sizes: Sizes by name.
        ranges: Ranges of its indices.
        bounds: How its accesses are kept within their tensors.
        fusion: "Max", "Preserve3Coincident" or "Min".

    Raises:
        MissingDependency: islpy is not installed.
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
        tree = _scheduled(isl, statements, bounds, fusion)
        if fusion == "Preserve3Coincident":
            largest = _scheduled(isl, statements, bounds, "Max")
            if all(coincident >= _COINCIDENT for coincident in _fused_coincidence(isl, largest)):
                return largest
        return tree

    return limited(program, scheduled)


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


def _scheduled(isl: Any, statements: list[_Statement], bounds: Bounds, fusion: str) -> Any:
    """Return isl's schedule."""
    context = isl.Context()  # options belong to a context
    for option, value in {**_UNSHIFTED, **_OPTIONS[fusion]}.items():
        getattr(context, f"set_schedule_{option}")(value)

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
    return constraints.set_validity(all_).set_coincidence(all_).set_proximity(all_).compute_schedule()


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
