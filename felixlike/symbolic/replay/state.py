"""What a symbolic replay knows: the live TVM Schedule, tile variables, and what the trace's variables stand for.

In: a task's module and a trace's variables. Out: `ReplayState`, which the primitives change.

TVM's Schedule refuses a variable as a split factor, but accepts an opaque pure call. So factors are split in as calls
(`primitives/split.py`) and, before the first primitive that reasons about regions, exchanged for variables inside the
live schedule state (`settle`). The variables are declared as the shape of a dummy buffer parameter, so that TVM knows
them to be positive.
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
    """The places one SampleComputeLocation may choose: (decision, gate) pairs, the gate saying for which tiles."""

    block: str
    candidates: tuple[tuple[int, Expr], ...]


class ReplayState:
    """The state of one symbolic replay: the schedule, and what the trace's variables stand for in it.

    numbers: whether every variable has one value only; then TVM may cut a moved block short where the data end, and
    guards the splits that do not divide what is left."""

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
        """Copies of every shared buffer that a software pipeline keeps."""
        self.kinds: list[tuple[Any, str]] = []
        """TVM's variables of the loops whose kind the trace itself says: "parallel", "vector" or "unrolled"."""
        self.initial: set[str] = set()
        """Names of the blocks that the trace itself lets write the initial values of reductions."""
        self.pipeline: tuple[Any, ...] = ()
        """TVM's variables of the loops that a software pipeline overlaps."""
        self.uneven: list[Any] = []
        """TVM's variables of loops that come of splits by factors that need not divide: a guard skips the rest."""
        self.extents: dict[Any, Any] = {}
        """Extents of moved blocks' loops as TVM left them, by its loop variables."""
        self._homes = {_tvm.identity(i.inputs[1]) for i in trace.insts if str(i.kind.name) in _MOVES}
        self._fused: list[FusedLoops] = []
        self._shares: list[list[Part]] = []
        self.locations: list[Location] = []
        """What every SampleComputeLocation reached so far could have chosen."""
        self._chosen = iter(locations)
        self._values: dict[int | None, Any] = {}
        self._pending: dict[str, Any] = {}
        self._split = {_tvm.identity(i.inputs[0]) for i in trace.insts if str(i.kind.name) == "Split"}
        self._used = {_tvm.identity(v) for i in trace.insts for v in i.inputs}
        self._unsettled = False

    # -- what the trace's random variables stand for ------------------------------------------------------------------

    def get(self, variable: Any) -> Any:
        """The value of a random variable of the trace, or the literal itself."""
        handle = _tvm.identity(variable)
        return variable if handle is None else self._values.get(handle, variable)

    def put(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Remember what random variables of the trace stand for here."""
        if len(variables) != len(values):
            raise UnsupportedSketch(
                f"a step gives {len(values)} results where the trace names {len(variables)}", where="trace"
            )
        self._values.update(zip(map(_tvm.identity, variables), values, strict=True))

    def next_location(self) -> int:
        """The decision for the SampleComputeLocation now replayed; the root where none was given."""
        return next(self._chosen, -1)

    # -- loops that are fused in name only ----------------------------------------------------------------------------

    def fuse(self, loops: Sequence[Any]) -> FusedLoops:
        """Remember loops as one."""
        own = tuple(member for loop in loops for member in members(loop))
        fused = FusedLoops(own, tuple(self.schedule.get(member).loop_var for member in own))
        self._fused.append(fused)
        return fused

    def extent(self, loop: Any) -> Expr:
        """The extent of one of TVM's loops, which may name the loops around it."""
        table, place = dict(self.table), self.schedule.get_sref(loop)
        around: list[Any] = []
        while (place := place.parent) is not None and type(place.stmt).__name__ == "For":
            around.append(place.stmt)
        for statement in reversed(around):
            size = to_expr(statement.extent, table)
            table[statement.loop_var] = var(str(statement.loop_var.name), 0, max(0.0, size.high - 1))
        return to_expr(self.schedule.get(loop).extent, table)

    def splits(self, loop: Any) -> bool:
        """Whether the trace splits a loop, a random variable of its own."""
        return _tvm.identity(loop) in self._split

    def names(self, loop: Any) -> bool:
        """Whether the trace does anything with a loop under this random variable."""
        return _tvm.identity(loop) in self._used

    def share(self, loop: Any, factors: Sequence[Expr | None]) -> list[Part]:
        """Split a loop (or several fused in name) in name: by factors that need not divide, at most one of them None
        for whatever is left."""
        whole = loop if isinstance(loop, FusedLoops) else self.fuse([loop])
        total = mul(to_expr(self.schedule.get(member).extent, self.table) for member in whole.loops)
        rest = ceildiv(total, mul(f for f in factors if f is not None))
        parts: list[Part] = []
        parts += [Part(parts, whole, rest if f is None else f, place) for place, f in enumerate(factors)]
        self._shares.append(parts)
        return list(parts)

    def is_compute_at_target(self, loops: Sequence[Any]) -> bool:
        """Whether the trace moves a block under one of these random variables."""
        return any(_tvm.identity(loop) in self._homes for loop in loops)

    def share_of(self, variable: Any) -> list[Part] | None:
        """The parts that the loop of a TVM variable is split into in name."""
        for parts in self._shares:
            if any(variable.same_as(v) for v in parts[0].variables):
                return parts
        return None

    def loops(self, block: BlockRef) -> list[Any]:
        """The loops around a block as the trace counts them: those fused in name are one, those split several."""
        found: list[Any] = []
        for loop in self.schedule.get_loops(block):
            variable = self.schedule.get(loop).loop_var
            parts, fused = self.share_of(variable), self._fused_of(variable)
            if parts is not None:
                found += [part for part in parts if part not in found]
            elif fused is None:
                found.append(loop)
            elif not (found and found[-1] is fused):
                found.append(fused)
        return found

    def _fused_of(self, variable: Any) -> FusedLoops | None:
        for fused in reversed(self._fused):
            if any(variable.same_as(v) for v in fused.variables):
                return fused
        return None

    # -- tile factors -------------------------------------------------------------------------------------------------

    def defer(self, extent: Any, factor: Any) -> None:
        """Remember that the expression `extent`, the outermost loop's, equals the variable `factor`."""
        self._pending[str(extent)] = factor

    def settle(self) -> None:
        """Exchange the opaque calls for variables in the live schedule state, keeping its flags and all its handles."""
        if not self._unsettled:
            return
        self._unsettled = False
        outer, self._pending = self._pending, {}
        new = _tvm.structural_map(self._root.stmt, (_tvm.tirx.FloorDiv, lambda e: outer.get(str(e), e)))
        self._replace(_tvm.structural_map(new, (_tvm.ir.Call, self._variable_of)))

    def tidy(self) -> None:
        """Simplify what TVM left of the extents and places of blocks that moved."""
        self._replace(tidied(self._root.stmt, self.table, self.extents))

    def simplify(self, block: BlockRef) -> None:
        """Leave out divisions in a block that do nothing in its iterators' domains: (16·v + w) div 16 with w < 16.

        TVM does so itself as soon as tiles are numbers, but cannot tell how far w reaches in a tile that is none."""
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
        return self.schedule.get_sref(self.schedule.get_sblock("root"))

    def _replace(self, new: Any) -> None:
        """Exchange the whole program in the live schedule state."""
        root = self._root
        old = root.stmt
        if new.same_as(old):
            return
        blocks = (_tvm.found(stmt, _tvm.s_tir.SBlock) for stmt in (old, new))
        reuse = {a: b for a, b in zip(*blocks, strict=True) if not a.same_as(b)}
        self.schedule.state.replace(root, new, reuse)

    def opaque(self, name: str) -> Any:
        """The call that stands for a tile variable until `settle`."""
        self._unsettled = True
        return _tvm.tirx.call_pure_extern(self.dtype, name)

    def _variable_of(self, call: Any) -> Any:
        if not isinstance(call.op, _tvm.ir.Op) or not call.op.name.endswith("call_pure_extern"):
            return call
        return self.tile_vars.get(str(call.args[0].value), call)


_FACTORS = (Kind.TILE, Kind.THREADS)
"""Kinds of variables that loops are split by."""

_MOVES = ("ComputeAt", "ReverseComputeAt")
"""Instructions that move a block under a loop."""


def _loop_dtype(module: Module) -> str:
    """The integer type of the function's loops; TVM does not mix two."""
    found = {str(loop.loop_var.ty.dtype) for loop in _tvm.found(module["main"].body, _tvm.tirx.For)}
    if len(found) > 1:
        raise UnsupportedSketch(f"loops have several integer types: {sorted(found)}", where="main")
    return found.pop() if found else "int64"


def _with_positive(module: Module, tile_vars: Mapping[str, Any]) -> Any:
    """A copy of the module with a dummy buffer parameter whose shape declares the tile variables, hence positive.

    A real copy: the schedule state changes statements in place once it holds them alone, and a new PrimFunc around the
    same body would let those changes through to the original."""
    main = _tvm.s_tir.renew_defs(module["main"])
    dummy = _tvm.tirx.decl_buffer(tuple(tile_vars.values()), "int8", name="tile_variables")
    func = _tvm.PrimFunc([*main.params, dummy], main.body, main.ret_type).with_attr("global_symbol", "main")
    return _tvm.IRModule({"main": func})


def _by_group(variables: Sequence[Variable]) -> dict[int, tuple[Variable, ...]]:
    groups: dict[int, list[Variable]] = {}
    for variable in variables:
        groups.setdefault(variable.instruction, []).append(variable)
    return {group: tuple(members) for group, members in groups.items()}
