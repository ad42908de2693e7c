"""Simplify extents and positions of moved blocks in a TVM statement.

    for ax0 in max(i·t + 1, (i + 1)·t) − min(i·t, (i + 1)·t − 1)    →    for ax0 in t

TVM keeps a minimum if it cannot decide which side is smaller. The next block that moves below then gets a region that
is too wide, since each side counts separately. The bounds known here are stronger: tiles are positive, and those of one
loop multiply to its extent.

Input: a statement over tile variables. Output: the same statement with simpler expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRealize, Stmt, TirExpr
from felixlike.errors import UnsupportedSketch
from felixlike.symbolic.expr.expression import Expr, var
from felixlike.symbolic.replay.convert import from_expr, to_expr


def tidied(stmt: Stmt, tiles: Mapping[Any, Expr], before: dict[Any, Any]) -> Any:
    """Return a block statement with simplified loop extents, and simplified block iterators with minima or maxima.

    Args:
        stmt: The block.
        tiles: The expressions of TVM's tile variables.
        before: Receives the extents as TVM left them, by loop variable.
    """
    extents: dict[Any, Any] = {}
    places: dict[Any, list[Any]] = {}
    _visit(stmt.body, dict(tiles), extents, places, before)
    if extents:
        stmt = _tvm.structural_map(stmt, (_tvm.tirx.For, lambda loop: _resized(loop, extents)))
    if places:
        stmt = _tvm.structural_map(stmt, (_tvm.s_tir.SBlockRealize, lambda realize: _placed(realize, places)))
    return stmt


def _visit(
    stmt: Stmt,
    table: dict[Any, Expr],
    extents: dict[Any, Any],
    places: dict[Any, list[Any]],
    before: dict[Any, Any],
) -> None:
    """Record new extents by loop variable, and new positions by the block's first iterator."""
    match type(stmt).__name__:
        case "For":
            extent = to_expr(stmt.extent, table)
            if not isinstance(stmt.extent, _tvm.tirx.Var | _tvm.tirx.IntImm):
                extents[stmt.loop_var] = _written(extent, stmt.extent, table)
                before.setdefault(stmt.loop_var, stmt.extent)
            inner = table | {stmt.loop_var: var(f"loop {len(table)}", 0, max(0.0, extent.high - 1))}
            _visit(stmt.body, inner, extents, places, before)
        case "SBlockRealize":
            positions = [_place(value, table) for value in stmt.iter_values]
            if any(not new.same_as(old) for new, old in zip(positions, stmt.iter_values, strict=True)):
                places[stmt.block.iter_vars[0].var] = positions
        case "SeqStmt":
            for part in stmt.seq:
                _visit(part, table, extents, places, before)


def _place(value: TirExpr, table: Mapping[Any, Expr]) -> Any:
    """Return a position, simplified if it has a minimum or maximum.

    Other positions are unchanged, since some of TVM's features depend on the order of terms.
    """
    ends = _tvm.found(value, (_tvm.tirx.Min, _tvm.tirx.Max))
    return _written(to_expr(value, table), value, table) if ends else value


def _written(simple: Expr, original: Any, table: Mapping[Any, Expr]) -> Any:
    """Return our simplest form as a TVM expression; the original if it cannot be converted."""
    try:
        return from_expr(simple, {ours: theirs for theirs, ours in table.items()}, original)
    except UnsupportedSketch:
        return original


def _resized(loop: Any, extents: Mapping[Any, Any]) -> Any:
    """Return a loop with its new extent."""
    extent = extents.get(loop.loop_var)
    if extent is None:
        return loop
    return _tvm.tirx.For(loop.loop_var, loop.min, extent, loop.kind, loop.body, loop.thread_binding, loop.annotations)


def _placed(realize: BlockRealize, places: Mapping[Any, list[Any]]) -> Any:
    """Return a block with its new positions."""
    iterators = realize.block.iter_vars
    values = places.get(iterators[0].var) if len(iterators) else None
    return realize if values is None else _tvm.s_tir.SBlockRealize(values, realize.predicate, realize.block)
