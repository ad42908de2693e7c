"""A PrimFunc with symbolic sizes as one contraction with an epilogue: what a kernel for every size is made from.

In: a PrimFunc whose buffers have variables for sizes. Out: `Operator`, or None where it is something else: several
reductions, a convolution's window, or what pads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Stmt, TirExpr, Var
from felixlike.frontend.constants import noted_constants
from felixlike.spaces.blocks import blocks_of
from felixlike.spaces.contraction import bare
from felixlike.spaces.surroundings import settle_surroundings


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop.  variable: TVM's.  extent: a number, or an expression of symbolic sizes."""

    variable: Var
    extent: Any

    @property
    def dynamic(self) -> bool:
        """Whether its extent is known only when it is called."""
        return not isinstance(self.extent, int)

    def uses(self, expression: Any) -> bool:
        """Whether an expression depends on it."""
        return _tvm.uses(expression, self.variable)


@dataclass(frozen=True, slots=True)
class Operator:
    """written[places] = epilogue(Σ over `reduced` of product), for all of `spatial`.

    product: an expression with the loads of both operands.  sums: the buffer whose load in `epilogue` stands for the
    sum.
    vectors: the operand whose elements are to lie in vectors, a load; `along` the axis that does.  rows: the axis that
    is tiled against it.  others: spatial axes that are neither.  constant: the parameter that `vectors` loads from, if
    it never changes between calls; None otherwise.  symbols: the sizes that a call decides."""

    func: Func
    spatial: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    product: TirExpr
    vectors: Any
    along: Axis
    rows: Axis
    written: Buffer
    places: tuple[Any, ...]
    epilogue: TirExpr
    sums: Any
    constant: int | None
    symbols: tuple[Any, ...]
    dtype: str

    @property
    def others(self) -> tuple[Axis, ...]:
        """Spatial axes that are neither rows nor in vectors."""
        taken = (self.rows, self.along)
        return tuple(axis for axis in self.spatial if axis not in taken)

    @property
    def item_bits(self) -> int:
        """Bits of an element of the sums."""
        return _tvm.bits(self.dtype)

    def stored(self, total: Any, place: Mapping[Any, Any]) -> Stmt:
        """The epilogue of one element.  total: its sum.  place: values of the spatial axes, by variable."""

        def load(node: Any) -> Any:
            return total if node.source.same_as(self.sums) else node

        what = _tvm.structural_map(self.epilogue, (_tvm.ir.TensorLoad, load))
        places = [_tvm.substituted(index, place) for index in self.places]
        return _tvm.tirx.BufferStore(self.written, _tvm.substituted(what, place), places)


def symbols_of(func: Func) -> tuple[Any, ...]:
    """The symbolic sizes of a PrimFunc's buffers, in the order in which they first occur."""
    found: list[Any] = []
    for parameter in func.params:
        for size in getattr(parameter, "shape", None) or ():
            for variable in _tvm.found(size, _tvm.tirx.Var):
                if not any(variable.same_as(other) for other in found):
                    found.append(variable)
    return tuple(found)


def read_operator(func: Func) -> Operator | None:
    """The contraction that a PrimFunc computes; None if it computes something else."""
    schedule = _tvm.Schedule(func)
    summing = [block for block in blocks_of(schedule) if schedule.get(block).init is not None]
    if len(summing) != 1:
        return None
    statement = schedule.get(summing[0])
    if not _sums_products(statement):
        return None
    around = settle_surroundings(schedule, summing[0])
    if around is None or around.copies:
        return None
    statement = schedule.get(summing[0])
    after = None if around.epilogue is None else schedule.get(around.epilogue)
    return _operator(func, statement, after)


def _sums_products(statement: Any) -> bool:
    """Whether a block adds products to what begins as zero."""
    body, init = statement.body, statement.init
    kinds = (type(body).__name__, type(init).__name__)
    if kinds != ("BufferStore", "BufferStore") or type(body.value).__name__ != "Add":
        return False
    start = getattr(init.value, "value", None)
    own = type(body.value.a).__name__ == "TensorLoad" and body.value.a.source.same_as(body.buffer)
    return own and start is not None and float(start) == 0.0 and type(bare(body.value.b)).__name__ == "Mul"


def _operator(func: Func, statement: Any, after: Any) -> Operator | None:
    """The block that sums and the one after it as an operator."""
    analyzer = _tvm.sym.Analyzer()
    axes = [(Axis(v.var, _extent(v.dom.extent)), _tvm.is_reduction(v)) for v in statement.iter_vars]
    for axis, _ in axes:
        analyzer.bind(axis.variable, _tvm.ir.Range(0, axis.extent))
    spatial = tuple(axis for axis, reduces in axes if not reduces)
    reduced = tuple(axis for axis, reduces in axes if reduces)
    sums, indices = statement.body.buffer, list(statement.body.indices)
    plain = [next((a for a in spatial if index.same_as(a.variable)), None) for index in indices]
    if any(axis is None and not _is_zero(index) for axis, index in zip(plain, indices, strict=True)):
        return None
    product = _simple(statement.body.value.b, analyzer)
    choice = _choose(func, product, spatial, reduced, plain[-1] if plain else None)
    if choice is None:
        return None
    load, along, rows, constant = choice
    if after is None:
        written, places, epilogue = sums, tuple(indices), sums[tuple(indices)]
    else:
        renamed = _renamed(after, sums, plain)
        if renamed is None:
            return None
        body = _tvm.substituted(after.body, renamed)
        written, places, epilogue = body.buffer, tuple(body.indices), body.value
    if not any(written.same_as(parameter) for parameter in func.params):
        return None
    return Operator(
        func=func,
        spatial=spatial,
        reduced=reduced,
        product=product,
        vectors=load,
        along=along,
        rows=rows,
        written=written,
        places=tuple(analyzer.simplify(place) for place in places),
        epilogue=_simple(epilogue, analyzer),
        sums=sums,
        constant=constant,
        symbols=symbols_of(func),
        dtype=str(sums.dtype),
    )


def _renamed(after: Any, sums: Buffer, plain: list[Axis | None]) -> dict[Any, Any] | None:
    """The epilogue's iterators as the contraction's, by what it reads of the sums; None where that is not all."""
    if type(after.body).__name__ != "BufferStore":
        return None
    load = next(x for x in _tvm.found(after.body.value, _tvm.ir.TensorLoad) if x.source.same_as(sums))
    values: dict[Any, Any] = {}
    for index, axis in zip(load.indices, plain, strict=True):
        if axis is not None and isinstance(index, _tvm.tirx.Var):
            values[index] = axis.variable
    for iterator in after.iter_vars:
        if iterator.var not in values:
            if _extent(iterator.dom.extent) != 1:
                return None
            values[iterator.var] = 0
    return values


def _choose(
    func: Func, product: Any, spatial: tuple[Axis, ...], reduced: tuple[Axis, ...], last: Axis | None
) -> tuple[Any, Axis, Axis, int | None] | None:
    """What lies in vectors, along which axis, and the rows against it; None where no operand is fit.

    Constants first, since they are packed; then what lies in the output as vectors do; then what is contiguous along an
    axis of known extent; then the rest, which is copied into panels. Rows are the innermost dynamic axis that the
    operand has not, or the innermost at all."""
    product = bare(product)
    noted = noted_constants(func)
    found: list[tuple[tuple[bool, ...], Any, Axis, Axis, int | None]] = []
    for factor, other in ((product.a, product.b), (product.b, product.a)):
        load = bare(factor)
        if type(load).__name__ != "TensorLoad":
            continue
        index = next((i for i, p in enumerate(func.params) if p.same_as(load.source)), None)
        constant = index if index is not None and index in noted else None
        rows = [a for a in spatial if a.uses(other) and not a.uses(factor) and a.extent != 1]
        rows = [a for a in rows if a.dynamic] or rows or [a for a in spatial if not a.uses(factor)]
        if not rows:
            continue
        for axis in spatial:
            if axis.uses(other) or not axis.uses(factor):
                continue
            if constant is not None and axis.dynamic:
                continue
            contiguous = load.indices[-1].same_as(axis.variable)
            rank = (constant is None, axis is not last, axis.dynamic or not contiguous, not contiguous)
            found.append((rank, load, axis, rows[-1], constant))
    if not found or not reduced:
        return None
    _, load, along, rows_axis, constant = min(found, key=lambda entry: entry[0])
    return load, along, rows_axis, constant


def _simple(expression: TirExpr, analyzer: Any) -> Any:
    """An expression whose indices are simple."""

    def load(node: Any) -> Any:
        return node.source[tuple(analyzer.simplify(index) for index in node.indices)]

    return _tvm.structural_map(expression, (_tvm.ir.TensorLoad, load))


def _extent(extent: Any) -> Any:
    return int(extent) if isinstance(extent, _tvm.tirx.IntImm) else extent


def _is_zero(index: Any) -> bool:
    return isinstance(index, _tvm.tirx.IntImm) and int(index) == 0
