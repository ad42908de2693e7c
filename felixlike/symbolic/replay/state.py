"""Hold the state of a symbolic replay: the TVM Schedule, tile variables, and values of the trace's random variables.

Input: a task's module and a trace's variables. Output: `ReplayState`, which the primitives modify.

TVM's Schedule refuses a variable as a split factor, but accepts an opaque pure call. So factors are split in as calls
(`primitives/split.py`) and, before the first primitive that reasons about regions, replaced by variables inside the
live schedule state (`settle`). The variables are declared as the shape of a dummy buffer parameter, so that TVM knows
that they are positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Module, Trace
from felixlike.errors import UnsupportedSketch
from felixlike.hardware import kind_of
from felixlike.symbolic.expr.expression import Expr, ceildiv, mul, var
from felixlike.symbolic.program.variables import Kind, Variable
from felixlike.symbolic.replay.convert import to_expr
from felixlike.symbolic.replay.loops import FusedLoops, Part, members
from felixlike.symbolic.replay.simplify_regions import tidied


@dataclass(frozen=True, slots=True)
class Location:
    """Describe the locations that one SampleComputeLocation may choose.

    Attributes:
        block: The block's name.
        candidates: (decision, gate) pairs; the gate is 1 for tiles with which TVM offers the location.
    """

    block: str
    candidates: tuple[tuple[int, Expr], ...]


class ReplayState:
    """Hold the state of one symbolic replay.

    Args:
        module: The task's module.
        target: The task's target.
        trace: The trace.
        variables: The sketch's variables.
        locations: The chosen compute locations, in the order of the trace.
        numbers: Whether every variable has only one value. If so, TVM may truncate a moved block where the data end,
            and guards splits that do not divide the remainder.
    """

    def __init__(
        self,
        module: Module,
        target: Any,
        trace: Trace,
        variables: Sequence[Variable],
        locations: Sequence[int],
        *,
        numbers: bool = False,
    ) -> None:
        self.numbers = numbers
        self.dtype = _loop_dtype(module)
        self.tile_vars: dict[str, Any] = {
            v.name: _tvm.tirx.Var(v.name, self.dtype) for v in variables if v.kind in _FACTORS and not v.fixed
        }
        self.table: dict[Any, Expr] = {
            self.tile_vars[v.name]: v.expression for v in variables if v.name in self.tile_vars
        }
        self.schedule = _tvm.Schedule(
            _with_positive(module, self.tile_vars), debug_mask="none", error_render_level="none", enable_check=False
        )
        self.groups = _by_group(variables)
        self.unroll: Expr | None = None
        self.binds_threads = kind_of(target).binds_threads
        """Whether loops are fused and split to be bound to threads."""
        self.fetches: dict[str, tuple[FusedLoops, Expr]] = {}
        """For blocks that copy into shared memory: the loops that all threads run together, and the vector length."""
        self.stages = 1
        """Number of copies of every shared buffer that a software pipeline keeps."""
        self.kinds: list[tuple[Any, str]] = []
        """TVM's variables of loops whose kind the trace itself states: "parallel", "vector" or "unrolled"."""
        self.initial: set[str] = set()
        """Names of the blocks that write the initial values of reductions, as decomposed by the trace itself."""
        self.pipeline: tuple[Any, ...] = ()
        """TVM's variables of the loops that a software pipeline overlaps."""
        self.uneven: list[Any] = []
        """TVM's variables of loops from splits whose factors need not divide the extent; a guard skips the rest."""
        self.extents: dict[Any, Any] = {}
        """Extents of moved blocks' loops as TVM left them, by TVM's loop variables."""
        self._compute_at_targets = {_tvm.identity(i.inputs[1]) for i in trace.insts if str(i.kind.name) in _MOVES}
        self._fused: list[FusedLoops] = []
        self._shares: list[list[Part]] = []
        self.locations: list[Location] = []
        """The candidates of every SampleComputeLocation replayed so far."""
        self._chosen = iter(locations)
        self._values: dict[int | None, Any] = {}
        self._pending: dict[str, Any] = {}
        self._split = {_tvm.identity(i.inputs[0]) for i in trace.insts if str(i.kind.name) == "Split"}
        self._used = {_tvm.identity(v) for i in trace.insts for v in i.inputs}
        self._unsettled = False

    # -- values of the trace's random variables -----------------------------------------------------------------------

    def get(self, variable: Any) -> Any:
        """Return the value of a random variable of the trace, or the literal itself."""
        handle = _tvm.identity(variable)
        return variable if handle is None else self._values.get(handle, variable)

    def put(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the values of random variables of the trace."""
        if len(variables) != len(values):
            raise UnsupportedSketch(
                f"an instruction returned {len(values)} values, but the trace expects {len(variables)}", where="trace"
            )
        self._values.update(zip(map(_tvm.identity, variables), values, strict=True))

    def next_location(self) -> int:
        """Return the decision for the current SampleComputeLocation; the root if none was passed."""
        return next(self._chosen, -1)

    # -- loops that are fused in name only ----------------------------------------------------------------------------

    def fuse(self, loops: Sequence[Any]) -> FusedLoops:
        """Record loops as one."""
        tvm_loops = tuple(member for loop in loops for member in members(loop))
        fused = FusedLoops(tvm_loops, tuple(self.schedule.get(member).loop_var for member in tvm_loops))
        self._fused.append(fused)
        return fused

    def extent(self, loop: Any) -> Expr:
        """Return the extent of one of TVM's loops, which may depend on the loops around it."""
        table, sref = dict(self.table), self.schedule.get_sref(loop)
        enclosing_loops: list[Any] = []
        while (sref := sref.parent) is not None and type(sref.stmt).__name__ == "For":
            enclosing_loops.append(sref.stmt)
        for statement in reversed(enclosing_loops):
            size = to_expr(statement.extent, table)
            table[statement.loop_var] = var(str(statement.loop_var.name), 0, max(0.0, size.high - 1))
        return to_expr(self.schedule.get(loop).extent, table)

    def splits(self, loop: Any) -> bool:
        """Return whether the trace splits a loop, identified by its random variable."""
        return _tvm.identity(loop) in self._split

    def names(self, loop: Any) -> bool:
        """Return whether the trace uses a loop, identified by its random variable."""
        return _tvm.identity(loop) in self._used

    def share(self, loop: Any, factors: Sequence[Expr | None]) -> list[Part]:
        """Record the split of a loop, or of several recorded as fused, by factors that need not divide.

        Args:
            loop: The loop.
            factors: The factors, outermost first; at most one is None and takes the remaining extent.
        """
        fused = loop if isinstance(loop, FusedLoops) else self.fuse([loop])
        total = mul(to_expr(self.schedule.get(member).extent, self.table) for member in fused.loops)
        remaining = ceildiv(total, mul(f for f in factors if f is not None))
        parts: list[Part] = []
        parts += [Part(parts, fused, remaining if f is None else f, place) for place, f in enumerate(factors)]
        self._shares.append(parts)
        return list(parts)

    def is_compute_at_target(self, loops: Sequence[Any]) -> bool:
        """Return whether the trace moves a block under one of these random variables."""
        return any(_tvm.identity(loop) in self._compute_at_targets for loop in loops)

    def share_of(self, variable: Any) -> list[Part] | None:
        """Return the parts of the recorded split of a TVM variable's loop; None if it is not split."""
        for parts in self._shares:
            if any(variable.same_as(v) for v in parts[0].variables):
                return parts
        return None

    def loops(self, block: BlockRef) -> list[Any]:
        """Return the loops around a block as the trace counts them: a recorded fusion is one loop, a split several."""
        loops: list[Any] = []
        for loop in self.schedule.get_loops(block):
            variable = self.schedule.get(loop).loop_var
            parts, fused = self.share_of(variable), self._fused_of(variable)
            if parts is not None:
                loops += [part for part in parts if part not in loops]
            elif fused is None:
                loops.append(loop)
            elif not (loops and loops[-1] is fused):
                loops.append(fused)
        return loops

    def _fused_of(self, variable: Any) -> FusedLoops | None:
        """Return the recorded fusion that contains a TVM variable's loop; None if there is none."""
        for fused in reversed(self._fused):
            if any(variable.same_as(v) for v in fused.variables):
                return fused
        return None

    # -- tile factors -------------------------------------------------------------------------------------------------

    def defer(self, extent: Any, factor: Any) -> None:
        """Record that the expression `extent` of the outermost loop equals the variable `factor`."""
        self._pending[str(extent)] = factor

    def settle(self) -> None:
        """Replace the opaque calls by variables in the live schedule state, keeping its flags and all its handles."""
        if not self._unsettled:
            return
        self._unsettled = False
        pending, self._pending = self._pending, {}
        new = _tvm.structural_map(self._root.stmt, (_tvm.tirx.FloorDiv, lambda e: pending.get(str(e), e)))
        self._replace(_tvm.structural_map(new, (_tvm.ir.Call, self._variable_of)))

    def tidy(self) -> None:
        """Simplify the extents and positions that TVM left for moved blocks."""
        self._replace(tidied(self._root.stmt, self.table, self.extents))

    def simplify(self, block: BlockRef) -> None:
        """Remove divisions in a block that have no effect in its iterators' domains: (16·v + w) div 16 with w < 16.

        TVM does this itself for constant tiles, but cannot bound w for symbolic ones.
        """
        statement = self.schedule.get(block)
        domains = _tvm.sym.Analyzer()
        for iterator in statement.iter_vars:
            domains.bind(iterator.var, iterator.dom)
        new = statement
        for kind in (_tvm.tirx.FloorDiv, _tvm.tirx.FloorMod):
            new = _tvm.structural_map(new, (kind, domains.simplify))
        self._replace(
            _tvm.structural_map(self._root.stmt, (_tvm.s_tir.SBlock, lambda b: new if b.same_as(statement) else b))
        )

    @property
    def _root(self) -> Any:
        """Return the schedule reference of the root block."""
        return self.schedule.get_sref(self.schedule.get_sblock("root"))

    def _replace(self, new: Any) -> None:
        """Replace the whole program in the live schedule state."""
        root = self._root
        old = root.stmt
        if new.same_as(old):
            return
        blocks = (_tvm.found(stmt, _tvm.s_tir.SBlock) for stmt in (old, new))
        reuse = {a: b for a, b in zip(*blocks, strict=True) if not a.same_as(b)}
        self.schedule.state.replace(root, new, reuse)

    def opaque(self, name: str) -> Any:
        """Return the call that represents a tile variable until `settle`."""
        self._unsettled = True
        return _tvm.tirx.call_pure_extern(self.dtype, name)

    def _variable_of(self, call: Any) -> Any:
        """Return the tile variable of an opaque call; other calls are unchanged."""
        if not isinstance(call.op, _tvm.ir.Op) or not call.op.name.endswith("call_pure_extern"):
            return call
        return self.tile_vars.get(str(call.args[0].value), call)


_FACTORS = (Kind.TILE, Kind.THREADS)
"""Kinds of variables that loops are split by."""

_MOVES = ("ComputeAt", "ReverseComputeAt")
"""Instructions that move a block under a loop."""


def _loop_dtype(module: Module) -> str:
    """Return the integer type of the function's loops; TVM does not mix two."""
    dtypes = {str(loop.loop_var.ty.dtype) for loop in _tvm.found(module["main"].body, _tvm.tirx.For)}
    if len(dtypes) > 1:
        raise UnsupportedSketch(f"loops have several integer types: {sorted(dtypes)}", where="main")
    return dtypes.pop() if dtypes else "int64"


def _with_positive(module: Module, tile_vars: Mapping[str, Any]) -> Any:
    """Return a copy of the module with a dummy buffer parameter whose shape declares the tile variables as positive.

    It is a deep copy: the schedule state changes statements in place if it is their only owner, and a new PrimFunc
    around the same body would let these changes reach the original.
    """
    main = _tvm.s_tir.renew_defs(module["main"])
    dummy = _tvm.tirx.decl_buffer(tuple(tile_vars.values()), "int8", name="tile_variables")
    func = _tvm.PrimFunc([*main.params, dummy], main.body, main.ret_type).with_attr("global_symbol", "main")
    return _tvm.IRModule({"main": func})


def _by_group(variables: Sequence[Variable]) -> dict[int, tuple[Variable, ...]]:
    """Return the variables of each sampling instruction."""
    groups: dict[int, list[Variable]] = {}
    for variable in variables:
        groups.setdefault(variable.instruction, []).append(variable)
    return {group: tuple(members) for group, members in groups.items()}
