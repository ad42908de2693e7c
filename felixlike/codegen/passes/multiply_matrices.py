"""Replace the products of two matrices of bfloat16 numbers, with sums of a tile, by instructions on tile registers.

    unroll r in 2, v in 2: S[r, v] = 0                        clear registers 0 … 3
    for k in 24:                                        →     for k in 24:
        unroll r in 2, v in 2:                                    load W[k, 0], W[k, 1], X[0, k] into 4, 5, 6; add 0, 1
            for i, k_1 in 16: vector j: for both in 2: …          load X[1, k] into 6; add 2, 3
    … S[…] …                                                  store registers 0 … 3 in S
                                                              … S[…] …

Input: a PrimFunc of plain loops and flat buffers, with such loops over rows annotated with `Matrix`. Output: the same
function with calls of the functions in `codegen/matrix_functions.py`, between those that begin and end the use of tile
registers in each iteration of the outermost parallel loop. If products have registers of several sizes, each sequence
of equal ones has its own beginning. `multiply_pairs.py` calls this before it changes the types of the factors' buffers.
An annotated loop of another form is an error, since other code would not compute in the stated time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Stmt, TirExpr, Var
from felixlike.codegen import matrix_functions
from felixlike.codegen.annotations import Matrix, Pairs
from felixlike.codegen.passes.loop_tools import step_along, unlike, with_body
from felixlike.errors import CompilationFailed

_PAIR = 2
"""Elements of a pair."""

_Pointer: TypeAlias = Callable[[Buffer], Any]
"""A function from a factor's buffer to the pointer to its elements."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matrix lies in a flat buffer.

    Attributes:
        buffer: The buffer.
        start: The place of its first element, which other loops determine.
        distance: Elements from one row to the next.
    """

    buffer: Buffer
    start: TirExpr
    distance: int

    def at(self, numbers: dict[Var, int]) -> TirExpr:
        """Return the first element at some numbers of unrolled loops."""
        return _tvm.simplify(_tvm.substituted(self.start, numbers))


@dataclass(frozen=True, slots=True)
class _Product:
    """The products of a tile of matrices: sums, the factor without vectors, and the one with vectors."""

    tile: tuple[Loop, ...]
    rows: int
    words: int
    sums: _Place
    first: _Place
    second: _Place

    def steps(self, place: _Place) -> list[TirExpr]:
        """Return where a factor's matrices begin, in order, each once."""
        starts = [place.at(numbers) for numbers in _numbers(self.tile)]
        return [s for n, s in enumerate(starts) if not any(_tvm.structural_equal(s, other) for other in starts[:n])]


def with_matrices(func: Func, pointer: _Pointer) -> Func:
    """Return a function of plain loops with annotated loops replaced. It is not changed if there are none.

    Raises CompilationFailed if an annotated loop has another form.
    """
    if not _marked(func.body):
        return func
    reductions = _reductions(func.body)
    errors: list[CompilationFailed] = []

    def replaced(parts: Sequence[Stmt]) -> Stmt:
        try:
            return _tvm.tirx.stmt_seq(*_replaced(parts, reductions, pointer))
        except CompilationFailed as error:  # it would lose its class in TVM
            errors.append(error)
            return _tvm.tirx.stmt_seq(*parts)

    def in_loop(loop: Loop) -> Stmt:
        lone = not isinstance(loop.body, _tvm.tirx.SeqStmt) and _marked(loop.body)
        return with_body(loop, replaced([loop.body])) if lone else loop

    rules = (_tvm.tirx.SeqStmt, lambda sequence: replaced(sequence.seq)), (_tvm.tirx.For, in_loop)
    body = _tvm.structural_map(func.body, rules)
    if errors:
        raise errors[0]
    if _marked(body):
        raise _unlike("it is in no sequence of statements")
    return func.with_body(_between(body))


def _marked(root: Stmt) -> bool:
    """Return whether there are annotated loops with products."""
    return any(map(_is_product, _tvm.found(root, _tvm.tirx.For)))


def _is_product(loop: Loop) -> bool:
    """Return whether a loop is the outermost one of a product."""
    return Matrix.on(loop) and any(map(Pairs.on, _tvm.found(loop.body, _tvm.tirx.For)))


def _unlike(why: str) -> CompilationFailed:
    """Return the error for an annotated loop of another form."""
    return unlike("as the product of two matrices", why, where="bfloat16")


def _reductions(root: Stmt) -> list[Var]:
    """Return the variables of the outermost loops around products with the same sums that write nothing else there."""
    loops: list[Loop] = []
    for loop in filter(_marked, _tvm.found(root, _tvm.tirx.For)[::-1]):  # outer loops first
        rows = list(filter(_is_product, _tvm.found(loop, _tvm.tirx.For)))
        products = [store for row in rows for store in _tvm.found(row, _tvm.tirx.BufferStore)]
        stored = [s for s in _tvm.found(loop, _tvm.tirx.BufferStore) if s.buffer.same_as(products[0].buffer)]
        outermost = not any(
            outer.loop_var.same_as(loop.loop_var) for f in loops for outer in _tvm.found(f, _tvm.tirx.For)
        )
        if outermost and len(products) == len(stored) == 1 and _sums_up(loop, products[0]):
            loops.append(loop)
    return [loop.loop_var for loop in loops]


def _sums_up(loop: Loop, product: Stmt) -> bool:
    """Return whether all iterations of a loop, and of those that are not unrolled around the product, have its sums."""
    around = [one for one in _tvm.found(loop, _tvm.tirx.For) if _marked(one) and not _is_product(one)]
    outer = [one.loop_var for one in around if one.kind != _tvm.tirx.ForKind.UNROLLED]
    return not any(_tvm.uses(index, variable) for index in product.indices for variable in outer)


def _replaced(parts: Sequence[Stmt], reductions: list[Var], pointer: _Pointer) -> list[Stmt]:
    """Return a sequence's statements with the reductions among them replaced."""
    kept: list[Stmt] = []
    for part in parts:
        loop = part.then_case if isinstance(part, _tvm.tirx.IfThenElse) else part
        if not isinstance(loop, _tvm.tirx.For) or not any(loop.loop_var.same_as(v) for v in reductions):
            kept.append(part)
            continue
        product = _read(loop)
        cleared = bool(kept) and _clears(kept[-1], product)
        if cleared and loop is part:
            kept.pop()
        new = _reduced(loop, product, pointer, cleared=cleared)
        kept += new if loop is part else [_tvm.tirx.IfThenElse(part.condition, _tvm.tirx.stmt_seq(*new), None)]
    return kept


def _reduced(loop: Loop, product: _Product, pointer: _Pointer, *, cleared: bool) -> list[Stmt]:
    """Return the statements that replace a reduction. The first one begins the use of registers.

    cleared: whether its sums are 0 before.
    """
    firsts, seconds = product.steps(product.first), product.steps(product.second)
    sums = [product.sums.at(numbers) for numbers in _numbers(product.tile)]
    count, width = len(sums), len(seconds)
    # The row of a tile of one row stays in a register, the columns of others do.
    free = matrix_functions.REGISTERS - count
    held_seconds = width if len(firsts) > 1 else free - 1
    if count != len(firsts) * width or not 0 < held_seconds < free:
        raise _unlike(f"its {count} sums are not those of {len(firsts)} × {width} matrices that fit into registers")
    start = matrix_functions.start(product.rows, product.words, count, held_seconds)
    written = product.sums.buffer
    held = [(n, written, written.data, at, product.sums.distance) for n, at in enumerate(sums)]
    begin = [matrix_functions.zero(n) if cleared else matrix_functions.load(n, *where) for n, *where in held]
    steps: list[Stmt] = []
    for row, at in enumerate(firsts):
        first = count + held_seconds + row % (free - held_seconds)
        steps.append(_load(first, product.first, at, pointer))
        for n, place in enumerate(seconds):
            second = count + n % held_seconds
            if row == 0:
                steps.append(_load(second, product.second, place, pointer))
            steps.append(matrix_functions.add(row * width + n, first, second))
    body = _tvm.tirx.stmt_seq(*steps)
    inner = product.tile[0] if product.tile else _row_loop(loop)

    def change(one: Loop) -> Stmt:
        return body if one.loop_var.same_as(inner.loop_var) else one

    new = _tvm.structural_map(loop, (_tvm.tirx.For, change))
    return [start, *begin, new, *(matrix_functions.store(n, *where) for n, *where in held)]


def _load(register: int, place: _Place, start: TirExpr, pointer: _Pointer) -> Stmt:
    """Return the statement that loads a factor's matrix."""
    return matrix_functions.load(register, place.buffer, pointer(place.buffer), start, place.distance)


def _row_loop(loop: Loop) -> Loop:
    """Return the loop over a matrix's rows."""
    (row,) = filter(_is_product, _tvm.found(loop, _tvm.tirx.For))
    return row


def _read(loop: Loop) -> _Product:
    """Read the products of a reduction."""
    tile: list[Loop] = []
    nodes = [one for one in _tvm.found(loop, _tvm.tirx.For) if _marked(one)][::-1]
    for one in nodes:
        if one.kind == _tvm.tirx.ForKind.UNROLLED:
            tile.append(one)
        elif tile and not Matrix.on(one):
            raise _unlike("there is a loop in its tile")
    row = _row_loop(loop)
    words = row.body
    lane: Any = getattr(words, "body", None)
    both = getattr(lane, "body", None)
    if not isinstance(both, _tvm.tirx.For) or not Pairs.on(both) or int(both.extent) != _PAIR:
        raise _unlike("its innermost loop is over no pair")
    store: Any = both.body
    value = getattr(store, "value", None)
    product: Any = getattr(value, "b", None)
    if type(value).__name__ != "Add" or type(product).__name__ != "Mul" or int(lane.extent) != matrix_functions.COLUMNS:
        raise _unlike("it does not sum products in 16 columns")
    loops = [f.loop_var for f in (row, words, lane, both)]
    sums = _place(store.buffer, store.indices, loops, (None, 0, 1, 0))
    factors = [factor.value if isinstance(factor, _tvm.tirx.Cast) else factor for factor in (product.a, product.b)]
    if step_along(factors[0].indices[0], lane.loop_var) != 0:
        factors.reverse()
    first = _place(factors[0].source, factors[0].indices, loops, (None, _PAIR, 0, 1))
    second = _place(factors[1].source, factors[1].indices, loops, (0, None, _PAIR, 1))
    return _Product(tuple(tile), int(row.extent), int(words.extent), sums, first, second)


def _place(buffer: Buffer, indices: Sequence[Any], loops: Sequence[Var], steps: tuple[int | None, ...]) -> _Place:
    """Return where a matrix lies. `steps` are those along the loops, None for the distance of rows."""
    (index,) = indices
    found = [step_along(index, variable) for variable in loops]
    if None in found or any(step is not None and step != actual for step, actual in zip(steps, found, strict=True)):
        raise _unlike(f"the steps of {buffer.name} along rows, pairs, columns and a pair are {found}")
    start = _tvm.simplify(_tvm.substituted(index, dict.fromkeys(loops, 0)))
    return _Place(buffer, start, int(found[steps.index(None)] or 0))


def _numbers(loops: Sequence[Loop]) -> list[dict[Var, int]]:
    """Return the numbers of nested loops at each iteration, in order."""
    result: list[dict[Var, int]] = [{}]
    for loop in loops:
        result = [{**before, loop.loop_var: n} for before in result for n in range(int(loop.extent))]
    return result


def _clears(statement: Stmt, product: _Product) -> bool:
    """Return whether a statement sets all sums of a tile, and nothing else, to 0."""
    size, body = 1, statement
    while isinstance(body, _tvm.tirx.For):
        size *= int(body.extent)
        body = body.body
    if not isinstance(body, _tvm.tirx.BufferStore) or not body.buffer.same_as(product.sums.buffer):
        return False
    (extent,) = product.sums.buffer.shape
    is_zero = isinstance(body.value, _tvm.tirx.FloatImm) and float(body.value) == 0
    return is_zero and size == int(extent) == len(_numbers(product.tile)) * product.rows * matrix_functions.COLUMNS


def _between(body: Stmt) -> Stmt:
    """Return a statement in which the use of registers begins where sizes change, and ends once.

    It ends in each iteration of parallel loops that multiply, or after the whole statement if there are none.
    """

    def shares(loop: Loop) -> bool:
        return loop.kind == _tvm.tirx.ForKind.PARALLEL and bool(_starts(loop))

    def change(loop: Loop) -> Stmt:
        return with_body(loop, _used(loop.body)) if shares(loop) else loop

    if not any(map(shares, _tvm.found(body, _tvm.tirx.For))):
        return _used(body)
    return _tvm.structural_map(body, (_tvm.tirx.For, change))


def _used(body: Stmt) -> Stmt:
    """Return a statement that begins the use of registers as seldom as possible, and ends it."""
    return _tvm.tirx.stmt_seq(_started(body), matrix_functions.end())


def _started(statement: Stmt) -> Stmt:
    """Return a statement with one begin for all parts in it that begin with the same sizes, before these."""
    starts = _starts(statement)
    if len({_name(start) for start in starts}) == 1:
        return _tvm.tirx.stmt_seq(starts[0], _tvm.structural_map(statement, (_tvm.tirx.SeqStmt, _without_starts)))
    if isinstance(statement, _tvm.tirx.SeqStmt):
        return _tvm.tirx.stmt_seq(*map(_started, statement.seq))
    return with_body(statement, _started(statement.body)) if isinstance(statement, _tvm.tirx.For) else statement


def _without_starts(sequence: Stmt) -> Stmt:
    """Return a sequence without the statements that begin the use of registers."""
    return _tvm.tirx.stmt_seq(*(part for part in sequence.seq if not _is_start(part)))


def _starts(root: Stmt) -> list[Stmt]:
    """Return the statements that begin the use of registers."""
    return list(filter(_is_start, _tvm.found(root, _tvm.tirx.Evaluate)))


def _is_start(statement: Stmt) -> bool:
    """Return whether a statement begins the use of registers."""
    return isinstance(statement, _tvm.tirx.Evaluate) and matrix_functions.is_start(_name(statement))


def _name(statement: Stmt) -> str:
    """Return the name of the function that a statement calls, or ''."""
    return next((str(text.value) for text in _tvm.found(statement, _tvm.ir.StringImm)), "")
