"""Move predicates out of vectors: whole vectors have none, and the last vector of a dimension is split into halves.

    for vector l in 16:                 if 16·i + 16 ≤ 197: vector l in 16: Y[16·i + l] = T[l]
        if 16·i + l < 197:          →   else if 16·i < 197: vector l in 4: Y[16·i + l] = T[l];  Y[16·i + 4] = T[4]
            Y[16·i + l] = T[l]

Input: an IRModule of scheduled PrimFuncs with loops over lanes annotated with `Guard`. Output: the same module without
blocks, with the predicates outside the vectors. TVM would test every lane, and so would not vectorize. The number of
lanes in the last vector is known, because the tested index begins at a multiple of the lanes. Conditions that select
the stored value, as in copies that pad with zeros, are treated alike. So are rows of a tile, if a reduction loop is
annotated: the last tile has fewer rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen.annotations import Guard
from felixlike.codegen.passes.loop_tools import anew, like, unmarked, with_marked_loops, without_mark
from felixlike.codegen.passes.vectorize_tail import halves, piece


def guard(module: Module) -> Module:
    """Return the IRModule with predicates outside of annotated loops. Other functions are not changed."""
    return with_marked_loops(module, Guard, lambda _: _guarded)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A test that holds for the iterations with excess + iteration < 0.

    Attributes:
        excess: The expression that is added to the iteration.
        tail: The number of these iterations, if they are some but not all.
    """

    excess: Any
    tail: int


def _guarded(loop: Loop) -> Stmt:
    """Replace an annotated loop by one without predicates in its iterations, under a predicate."""
    plain = without_mark(loop, Guard)
    lanes = loop.kind == _tvm.tirx.ForKind.VECTORIZED
    inside = [f for f in _tvm.found(loop.body, _tvm.tirx.For) if f.kind == _tvm.tirx.ForKind.UNROLLED]
    for tested in [loop] if lanes else inside:
        edges = [(test, _edge(test, tested)) for test in _comparisons(loop.body)]
        edge = next((edge_of_test for _, edge_of_test in edges if edge_of_test is not None), None)
        if edge is not None:
            same = [test for test, other in edges if other and _tvm.structural_equal(other.excess, edge.excess)]
            return _by_edge(plain, tested, edge, same) if lanes else _by_rows(plain, tested, edge, same)
    return plain if lanes else _hoisted(plain)


def _by_edge(loop: Loop, tested: Any, edge: _Edge, tests: list[Any]) -> Stmt:
    """Replace a loop over lanes by three cases: all lanes exist, some exist, or none does."""
    size = int(loop.extent)
    exists, misses = _decided(loop.body, tests, holds=True), _decided(loop.body, tests, holds=False)

    def pieces(body: Stmt, first: int, stop: int) -> list[Any]:
        parts = [] if isinstance(body, _tvm.tirx.Evaluate) else halves(first, stop - first, size)
        return [piece(unmarked(loop, body), *part) for part in parts]

    some = [*pieces(exists, 0, edge.tail), *pieces(misses, edge.tail, size)]
    return _cases(tested, edge, unmarked(loop, exists), some, pieces(misses, 0, size))


def _by_rows(loop: Loop, tested: Any, edge: _Edge, tests: list[Any]) -> Stmt:
    """Replace a reduction loop of a tile by cases: all rows, or some. Nothing is computed where none exists."""
    whole = _decided(loop, tests, holds=True)
    return _cases(tested, edge, whole, [_shortened(whole, tested, edge.tail)], [])


def _cases(tested: Any, edge: _Edge, whole: Any, some: list[Any], none: list[Any]) -> Stmt:
    """Return the statement that selects between all, some and no iterations."""
    last = _tvm.tirx.stmt_seq(*(none or [_tvm.tirx.Evaluate(0)]))
    if edge.tail:
        last = _tvm.tirx.IfThenElse(edge.excess < like(tested.loop_var, 0), _tvm.tirx.stmt_seq(*some), last)
    return _tvm.tirx.IfThenElse(edge.excess <= like(tested.loop_var, -int(tested.extent)), whole, last)


def _hoisted(loop: Loop) -> Stmt:
    """Move a predicate that does not depend on the iteration out of a loop."""
    inner = [f.loop_var for f in (loop, *_tvm.found(loop.body, _tvm.tirx.For))]
    for test in _comparisons(loop.body):
        if not any(_tvm.uses(test, variable) for variable in inner):
            return _tvm.tirx.IfThenElse(test, _decided(loop, [test], holds=True), None)
    return loop


def _decided(root: Node, tests: list[Any], *, holds: bool) -> Node:
    """Return a statement with the outcome of some tests known."""

    def decided(node: Node) -> Any:
        known = any(_tvm.structural_equal(node, test) for test in tests)
        return _tvm.tirx.const(holds, "bool") if known else node

    for kind in _COMPARISONS:
        root = _tvm.structural_map(root, (getattr(_tvm.tirx, kind), decided))
    return _without_constants(root)


def _shortened(root: Node, rows: Any, count: int) -> Node:
    """Return a statement with only the first iterations of one of its loops."""

    def shorter(loop: Loop) -> Any:
        if not loop.loop_var.same_as(rows.loop_var):
            return loop
        return anew(unmarked(loop), extent=like(loop.loop_var, count))

    return _tvm.structural_map(root, (_tvm.tirx.For, shorter))


_COMPARISONS = ("LT", "LE", "GT", "GE")
"""TVM's comparisons of order."""


def _comparisons(root: Node) -> list[Any]:
    """Return the tests of integers in a statement, without those of loaded values."""
    tests = [test for kind in _COMPARISONS for test in _tvm.found(root, getattr(_tvm.tirx, kind))]
    return [test for test in tests if str(test.a.ty.dtype).startswith("int") and not _loads(test)]


def _loads(expression: TirExpr) -> bool:
    """Return whether an expression has loads."""
    return bool(_tvm.found(expression, _tvm.ir.TensorLoad))


def _edge(test: TirExpr, loop: Loop) -> _Edge | None:
    """Return the iterations of a loop for which a test holds, or None if unknown."""
    if not _tvm.uses(test, loop.loop_var):
        return None
    kind = type(test).__name__
    less, more = (test.a, test.b) if kind in ("LT", "LE") else (test.b, test.a)
    excess = _tvm.simplify(less - more - loop.loop_var - (1 if kind in ("LE", "GE") else 0))
    tail = _tvm.simplify(_tvm.tirx.floormod(-excess, like(loop.loop_var, int(loop.extent))))
    known = isinstance(tail, _tvm.tirx.IntImm) and not _tvm.uses(excess, loop.loop_var)
    return _Edge(excess, int(tail)) if known else None


def _without_constants(root: Node) -> Node:
    """Return a statement without tests of known outcome."""

    def value(call: TirExpr) -> TirExpr:
        if str(getattr(call.op, "name", "")) != "prim.if_then_else":
            return call
        test, then, otherwise = _tvm.simplify(call.args[0]), call.args[1], call.args[2]
        if not isinstance(test, _tvm.tirx.IntImm):
            return _tvm.tirx.if_then_else(test, then, otherwise)
        return then if int(test) else otherwise

    def case(node: Node) -> Any:
        test = _tvm.simplify(node.condition)
        if not isinstance(test, _tvm.tirx.IntImm):
            return _tvm.tirx.IfThenElse(test, node.then_case, node.else_case)
        return (node.then_case if int(test) else node.else_case) or _tvm.tirx.Evaluate(0)

    return _tvm.structural_map(_tvm.structural_map(root, (_tvm.ir.Call, value)), (_tvm.tirx.IfThenElse, case))
