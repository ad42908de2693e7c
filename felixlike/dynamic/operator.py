"""Read a PrimFunc with symbolic sizes as one contraction with an epilogue.

Input: a PrimFunc whose buffers have symbolic sizes. Output: `Operator`, or None for other functions, such as several
reductions, convolution windows or padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Stmt, TirExpr, Var
from felixlike.frontend.constants import noted_constants
from felixlike.hardware import BFLOAT16, FLOAT32
from felixlike.spaces.blocks import blocks_of
from felixlike.spaces.contraction import bare
from felixlike.spaces.surroundings import settle_surroundings


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop. variable: the TVM variable. extent: a number, or an expression of symbolic sizes."""

    variable: Var
    extent: Any

    @property
    def dynamic(self) -> bool:
        """Whether its extent is known only at the call."""
        return not isinstance(self.extent, int)

    def uses(self, expression: Any) -> bool:
        """Return whether an expression depends on this axis."""
        return _tvm.uses(expression, self.variable)


def is_half(buffer: Buffer) -> bool:
    """Return whether a buffer has elements of bfloat16."""
    return str(buffer.dtype) == BFLOAT16.name


@dataclass(frozen=True, slots=True)
class Operator:
    """The contraction written[places] = epilogue(Σ over `reduced` of product), for all `spatial` axes.

    Attributes:
        func: The PrimFunc.
        spatial: Spatial axes.
        reduced: Reduction axes.
        product: An expression with the loads of both operands.
        vectors: The load of the operand whose elements are read as vectors.
        along: The axis along which vectors lie.
        rows: The axis that is tiled against `along`.
        written: The output buffer.
        places: Indices of the written element.
        epilogue: The value of the written element.
        sums: The buffer whose load in `epilogue` stands for the sum.
        constant: Index of the parameter that `vectors` loads from if it never changes between calls, else None.
        symbols: The symbolic sizes.
        dtype: Element type of the sums.
    """

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
        """Spatial axes other than `rows` and `along`."""
        tiled = (self.rows, self.along)
        return tuple(axis for axis in self.spatial if axis not in tiled)

    @property
    def item_bits(self) -> int:
        """Bits of an element of the sums."""
        return _tvm.bits(self.dtype)

    @property
    def broadcast(self) -> TirExpr:
        """The factor whose elements are each multiplied with a vector of the other factor."""
        product = bare(self.product)
        in_vectors = _tvm.structural_equal(bare(product.a), self.vectors)
        return product.b if in_vectors else product.a

    @property
    def has_pairs(self) -> bool:
        """Whether its products can be computed in pairs along its last reduction axis, with factors in bfloat16."""
        last, types = (
            self.reduced[-1],
            {str(load.source.dtype) for load in _tvm.found(self.product, _tvm.ir.TensorLoad)},
        )
        wide = self.dtype == FLOAT32.name and not types & {"float16", "float64"}
        both = last.uses(self.vectors) and last.uses(self.broadcast) and not self.along.uses(self.broadcast)
        return wide and both and last.extent != 1

    @property
    def has_half_factors(self) -> bool:
        """Whether both factors are bfloat16, so that pairs round nothing."""
        loads = (self.vectors, bare(self.broadcast))
        return all(type(load).__name__ == "TensorLoad" and is_half(load.source) for load in loads)

    def stored(self, total: Any, place: Mapping[Any, Any]) -> Stmt:
        """Return the store of one output element. total: its sum. place: values of spatial axes, by variable."""

        def load(node: Any) -> Any:
            return total if node.source.same_as(self.sums) else node

        value = _tvm.structural_map(self.epilogue, (_tvm.ir.TensorLoad, load))
        places = [_tvm.substituted(index, place) for index in self.places]
        return _tvm.tirx.BufferStore(self.written, _tvm.substituted(value, place), places)


def symbols_of(func: Func) -> tuple[Any, ...]:
    """Return the symbolic sizes of a PrimFunc's buffers, in order of first occurrence."""
    symbols: list[Any] = []
    for parameter in func.params:
        for size in getattr(parameter, "shape", None) or ():
            for variable in _tvm.found(size, _tvm.tirx.Var):
                if not any(variable.same_as(other) for other in symbols):
                    symbols.append(variable)
    return tuple(symbols)


def read_operator(func: Func, largest: Sequence[int] | None = None) -> Operator | None:
    """Return the contraction that a PrimFunc computes, or None if it computes something else.

    largest: The largest size of each symbol. If given, the rows are the largest dynamic axis, FTuner's main axis τ, as
    far as constants can still be packed. If not, they are the innermost dynamic axis.
    """
    schedule = _tvm.Schedule(func)
    summing = [block for block in blocks_of(schedule) if schedule.get(block).init is not None]
    if len(summing) != 1:
        return None
    statement = schedule.get(summing[0])
    if not _sums_products(statement):
        return None
    surroundings = settle_surroundings(schedule, summing[0])
    if surroundings is None or surroundings.copies:
        return None
    statement = schedule.get(summing[0])
    after = None if surroundings.epilogue is None else schedule.get(surroundings.epilogue)
    sizes = None if largest is None else dict(zip(symbols_of(func), largest, strict=True))
    return _operator(func, statement, after, sizes)


def _sums_products(statement: Any) -> bool:
    """Return whether a block adds products to a sum that starts at zero."""
    body, init = statement.body, statement.init
    kinds = (type(body).__name__, type(init).__name__)
    if kinds != ("BufferStore", "BufferStore") or type(body.value).__name__ != "Add":
        return False
    start = getattr(init.value, "value", None)
    accumulates = type(body.value.a).__name__ == "TensorLoad" and body.value.a.source.same_as(body.buffer)
    return accumulates and start is not None and float(start) == 0.0 and type(bare(body.value.b)).__name__ == "Mul"


def _operator(func: Func, statement: Any, after: Any, largest: Mapping[Any, int] | None) -> Operator | None:
    """Return the operator of a summing block and its epilogue block."""
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
    choice = _choose(func, product, spatial, reduced, plain[-1] if plain else None, largest)
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
    """Map the epilogue's iterators to the contraction's axes through its load of the sums; None if impossible."""
    if type(after.body).__name__ != "BufferStore":
        return None
    load = next(x for x in _tvm.found(after.body.value, _tvm.ir.TensorLoad) if x.source.same_as(sums))
    extents = {iterator.var: iterator.dom.extent for iterator in after.iter_vars}
    values: dict[Any, Any] = {}
    for index, axis in zip(load.indices, plain, strict=True):
        if axis is not None and isinstance(index, _tvm.tirx.Var):
            if index not in extents or not _is_zero(_tvm.simplify(extents[index] - axis.extent)):
                return None  # it pads the sums or cuts them off
            values[index] = axis.variable
    for iterator in after.iter_vars:
        if iterator.var not in values:
            if _extent(iterator.dom.extent) != 1:
                return None
            values[iterator.var] = 0
    return values


def _choose(
    func: Func,
    product: Any,
    spatial: tuple[Axis, ...],
    reduced: tuple[Axis, ...],
    last: Axis | None,
    largest: Mapping[Any, int] | None,
) -> tuple[Any, Axis, Axis, int | None] | None:
    """Choose the operand in vectors, its axis and the rows; return None if no operand is suitable.

    Constants come first, since they can be packed. Then operands that lie along the output's last axis. Then operands
    that are contiguous along an axis of known extent. The rest is copied into panels. Rows are the innermost dynamic
    axis that the operand does not use, else the innermost axis that it does not use. With `largest` they are the
    largest dynamic axis, which only constants precede.
    """

    def size(axis: Axis) -> int:
        """Return the largest size of a dynamic axis; 0 if all count as equal."""
        if largest is None or not axis.dynamic:
            return 0
        return int(_tvm.simplify(_tvm.substituted(axis.extent, largest)))

    product = bare(product)
    noted = noted_constants(func)
    candidates: list[tuple[tuple[int, ...], Any, Axis, Axis, int | None]] = []
    for factor, other in ((product.a, product.b), (product.b, product.a)):
        load = bare(factor)
        if type(load).__name__ != "TensorLoad" or not any(axis.uses(load) for axis in reduced):
            continue
        index = next((i for i, p in enumerate(func.params) if p.same_as(load.source)), None)
        constant = index if index is not None and index in noted else None
        rows = [a for a in spatial if a.uses(other) and not a.uses(factor) and a.extent != 1]
        rows = [a for a in rows if a.dynamic] or rows or [a for a in spatial if not a.uses(factor)]
        if not rows:
            continue
        main = max(reversed(rows), key=size)
        for axis in spatial:
            if axis.uses(other) or not axis.uses(factor):
                continue
            if constant is not None and axis.dynamic:
                continue
            contiguous = load.indices[-1].same_as(axis.variable)
            suits = (constant is None, -size(main), axis is not last, axis.dynamic or not contiguous, not contiguous)
            candidates.append((suits, load, axis, main, constant))
    if not candidates or not reduced:
        return None
    _, load, along, rows_axis, constant = min(candidates, key=lambda entry: entry[0])
    return load, along, rows_axis, constant


def _simple(expression: TirExpr, analyzer: Any) -> Any:
    """Simplify the indices of all loads in an expression."""

    def load(node: Any) -> Any:
        return node.source[tuple(analyzer.simplify(index) for index in node.indices)]

    return _tvm.structural_map(expression, (_tvm.ir.TensorLoad, load))


def _extent(extent: Any) -> Any:
    return int(extent) if isinstance(extent, _tvm.tirx.IntImm) else extent


def _is_zero(index: Any) -> bool:
    return isinstance(index, _tvm.tirx.IntImm) and int(index) == 0
