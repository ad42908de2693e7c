"""The program as TVM's extractor sees it at one point: fused loops, and indices in the words of TVM's simplifier.

    for i_0, j_0, i_1:   (parallel)         parallel p:
        for k:                      →           for k:
            … A[i_0·8 + i_1, k]                     … A[p // 12 * 8 + p % 3, k]

In: a program, values of its expressions. Out: for every store its loops, outermost first, for every access its indices
as small trees, and what it computes. Which loops fuse is known from the program; how TVM writes the remainders and
quotients of a fused loop is its simplifier's choice, so statements pass through it (and nothing else does).
Follows TVM's per_store_feature.cc: loops of extent 1 are removed, unless annotated; threads of a kernel stand at its
top, in the order of their first appearance, whatever their extent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from felixlike import tvmlib
from felixlike.features.tvm_view.causes import Cause
from felixlike.features.tvm_view.common import Way, apart, common_reductions
from felixlike.features.tvm_view.counters import INTEGERS, of_store, of_value
from felixlike.features.tvm_view.written import Written, from_tvm
from felixlike.symbolic.expression import Expr, Op
from felixlike.symbolic.indices import Index, Rest
from felixlike.symbolic.nest import groups
from felixlike.symbolic.postprocessors.compact_allocation import allocation_paths
from felixlike.symbolic.program import PIPELINE, Access, Blanket, Buffer, Loop, Program, Share, Store, Words

Value: TypeAlias = Callable[[Expr], int]
"""The value of an expression of the program at the point."""

THREADS = ("blockIdx.x", "vthread.x", "threadIdx.x")
"""What a loop is bound to on GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class LoweredLoop:
    """A loop of the lowered program, one object for all stores under it.

    kind: "parallel", "vector", "unrolled", "serial" or the thread it is bound to.  variable: TVM's.  extent: how many
    iterations."""

    kind: str
    variable: Any
    extent: int
    said: bool = False
    """Whether the trace itself says what kind it is; then it stays even if its extent is 1."""

    @property
    def name(self) -> str:
        """The variable's name in indices; no other loop has it."""
        return str(self.variable.name)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredStore:
    """One store.  loops: outermost first.  places: for each buffer it touches, the indices that TVM goes by, one row an
    access: of the buffer that is written, those of the write.  counts: TVM's counters of arithmetic in one execution,
    NaN where unknown.  cause: why TVM may write indices in another way; None where it has only one.  shapes: of
    constants that are laid out anew for this store, and of buffers that are accessed in groups."""

    store: Store
    loops: tuple[LoweredLoop, ...]
    places: Mapping[Buffer, tuple[tuple[Written, ...], ...]]
    counts: tuple[float, ...]
    cause: Cause | None
    shapes: Mapping[Buffer, tuple[int, ...]]
    said: bool
    """Whether it is known in TVM's own words."""
    guarded: frozenset[Buffer]
    """The buffers it touches that a guard keeps a store from running past."""
    allocated: int = 1
    """Product of the extents of the loops around the allocation of the buffer that is written."""
    noted: int = 0
    """Largest number of unrolled steps noted on the nest."""

    @property
    def iterations(self) -> int:
        """Product of the extents."""
        return math.prod(loop.extent for loop in self.loops)

    @property
    def loads(self) -> frozenset[Buffer]:
        """The buffers that are read."""
        target = self.store.target.buffer
        return frozenset(b for b in self.places if b is not target or any(b is a.buffer for a in self.store.loads))


def lowered(program: Program, value: Value) -> list[LoweredStore]:
    """Every store in program order. Raises UnsupportedSketch where TVM's words for an index are not understood."""
    if common := common_reductions(program):
        whole = _Lowering(program, value)
        program = apart(program, {store: whole.way(store, path) for store, path in common})
    lowering = _Lowering(program, value)
    return [lowering.store(store, path) for store, path in program.stores()]


_Seen: TypeAlias = "tuple[dict[Buffer, tuple[tuple[Written, ...], ...]], tuple[float, ...]]"
"""`places` and `counts` of a lowered store."""


class _Lowering:
    """One pass over the stores; loops are made when first met."""

    def __init__(self, program: Program, value: Value) -> None:
        self._program, self._value = program, value
        self._loops: dict[Any, LoweredLoop] = {}
        self._places: dict[Expr, tuple[str, int]] = {}
        """For each loop of the program the one here that it is part of, and the steps of that one it lasts."""
        self._standing: dict[Expr, Any] = {}
        """What the loops of the program are in terms of those here, around the present store; missing ones stand at
        0."""
        self._guards: list[Any] = []
        """Conditions that keep the shares around the present store from running past the whole."""
        self._analyzer = tvmlib.sym.Analyzer()
        self._dtype = _loop_dtype(program)
        self._extents = {loop.variable: loop.extent for _, path in program.stores() for loop in path}
        self._around = allocation_paths(program)
        self._allocated: dict[Buffer, tuple[int, ...]] = {}
        self._regrouped: dict[tuple[Store, Access, bool], tuple[Written, ...]] = {}
        """What TVM writes for an access to a buffer that is accessed in groups; the last of the key is `known`."""
        self._threads = {id(root): self._threads_of(root) for root in program.body if isinstance(root, Loop)}
        self._guarded = {store.target.buffer for store, path in program.stores() if self._runs_past(store, path)}
        for buffer in program.buffers:
            if buffer.grouped and not self._windows(buffer):
                self._allocate(buffer)

    def store(self, store: Store, path: tuple[Loop, ...]) -> LoweredStore:
        """One store with its loops and indices.

        TVM sometimes understands from the guard of an unevenly shared copy how far it runs, and then writes indices
        without the remainder by the whole; reshapes, and places of moved blocks that groups decide, it writes in the
        order in which the model came. None of these is known here, unless the statement is at hand in TVM's words."""
        loops, seen = self._seen(store, path, known=True)
        said = _plain(store, path)
        cause = None if said or not _divided(store) else Cause.WORDS
        if any(access.buffer.grouped and access.buffer not in self._allocated for access in store.accesses):
            cause = Cause.GROUPS
        shared = not said and any(loop.share is not None for loop in path)
        if shared and self._seen(store, path, known=False)[1] != seen:
            cause = Cause.WORDS
        places, counts = seen
        if cause is not None:
            counts = tuple(math.nan if i in INTEGERS else count for i, count in enumerate(counts))
        noted = self._value(path[0].unroll) if path else 0
        shapes = {a.buffer: self._layout(a, path, loops)[0] for a in store.accesses if a.buffer.origin is not None}
        shapes |= {a.buffer: self._allocated[a.buffer] for a in store.accesses if a.buffer in self._allocated}
        guarded = frozenset(a.buffer for a in store.accesses) & self._guarded
        around = self._around.get(store.target.buffer, ())
        allocated = math.prod(loop.extent for loop in self._grouped(around, {}, known=True))
        return LoweredStore(store, tuple(loops), places, counts, cause, shapes, said, guarded, allocated, noted)

    def way(self, store: Store, path: tuple[Loop, ...]) -> Way:
        """What TVM makes of a common reduction.

        It drops loops of one iteration first, but does not simplify what is then 0 · 64 + t; and where a guard cuts
        that short, it does not always understand the remainders of it."""
        loops = self._nest(store, path)
        dropped = self._dropped(loops)
        meaning = {variable: self._meant(variable, ours) for variable, ours in store.words.meaning}
        places = {i: tvmlib.substituted(tvmlib.substituted(value, meaning), dropped) for i, value in store.words.places}
        guards = [tvmlib.substituted(guard, dropped) for guard in self._guards] + self._cut(store, places)
        guard = functools.reduce(tvmlib.tirx.all, guards, tvmlib.tirx.const(1, "bool"))
        ranges = {loop.variable: tvmlib.ir.Range(0, loop.extent) for loop in loops}
        level = tvmlib.sym.iter_affine_map.IterMapLevel.Surjective
        found = tvmlib.sym.detect_iter_map(list(places.values()), ranges, guard, level).indices
        if places and not found:
            return Way.UNSEEN
        several = any(
            kind not in THREADS and self._value(extent) > 1
            for loop in path
            if loop.variable in store.reduction
            for kind, extent in (loop.share.parts if loop.share is not None else ((loop.thread, loop.extent),))
        )
        return Way.APART if several or guards else Way.AT_ONCE

    def _runs_past(self, store: Store, path: tuple[Loop, ...]) -> bool:
        """Whether a guard keeps a moved block from running past the end of what it writes."""
        if all(extent.op is not Op.MIN for extent in store.target.buffer.shape):
            return False
        return bool(self._cut(store, self._placed(store.words, self._nest(store, path))))

    def _cut(self, store: Store, places: Mapping[Any, Any]) -> list[Any]:
        """The guards of a moved block where it would run past the end of what it writes."""
        found: list[Any] = []
        for index, extent in zip(store.words.indices, store.target.buffer.shape, strict=True):
            ends = [int(arg.value) for arg in extent.args if arg.is_const] if extent.op is Op.MIN else []
            place = tvmlib.substituted(index, places)
            found += [place < end for end in ends if self._analyzer.const_int_bound(place).max_value >= end]
        return found

    def _windows(self, buffer: Buffer) -> bool:
        """Whether places in a buffer are remainders, which TVM's passes see in the order in which the model came."""
        accesses = [a for s, _ in self._program.stores() for a in s.accesses if a.buffer is buffer]
        return any(isinstance(floor, Rest) for a in accesses for index in a.unmoved for floor in index.floors)

    def _allocate(self, buffer: Buffer) -> None:
        """Find how TVM allocates a buffer that is accessed in groups, and what it then writes for its indices.

        Where that hangs on whether TVM understands the guard of a share, neither is known."""
        accesses = [
            (s, p, a) for s, p in self._program.stores() for a in dict.fromkeys(s.accesses) if a.buffer is buffer
        ]
        shape, words = self._compacted(buffer, accesses, known=True)
        uneven = any(loop.share is not None for _, path, _ in accesses for loop in path)
        other, others = self._compacted(buffer, accesses, known=False) if uneven else (shape, words)
        read = [(s, a) for s, _, a in accesses if a is not s.target]
        if other == shape and all(others[key] == words[key] for key in read):
            self._allocated[buffer] = shape
            self._regrouped |= {(*key, True): said for key, said in words.items()}
            self._regrouped |= {(*key, False): said for key, said in others.items()}

    def _compacted(
        self, buffer: Buffer, accesses: list[tuple[Store, tuple[Loop, ...], Access]], *, known: bool
    ) -> tuple[tuple[int, ...], dict[tuple[Store, Access], tuple[Written, ...]]]:
        """The shape that TVM gives a buffer, and the indices it writes.

        Loops around the allocation stay in indices, and more than is used is allocated, where TVM's simplifier does not
        find where groups begin. So its passes see the loops of the point with these accesses alone."""
        nests = [self._nest(store, path, known=known) for store, path, _ in accesses]
        common = [level[0] for level in zip(*nests, strict=False) if all(loop is level[0] for loop in level)]
        sizes = [self._value(extent) for extent in buffer.full]
        whole = tvmlib.tirx.decl_buffer(sizes, name="whole", scope=buffer.scope)
        other = tvmlib.tirx.decl_buffer([1], name="other")
        parts: list[Any] = []
        for (store, path, access), nest in zip(accesses, nests, strict=True):
            self._nest(store, path, known=known)
            places = self._placed(store.words, nest)
            said = (store.words.indices, *store.words.loads)[[store.target, *store.loads].index(access)]
            indices = [tvmlib.substituted(index, places) for index in said]
            part = tvmlib.tirx.BufferStore(other, tvmlib.tirx.BufferLoad(whole, indices), [0])
            if access is store.target:
                part = tvmlib.tirx.BufferStore(whole, tvmlib.tirx.const(0, "float32"), indices)
            if self._guards:
                part = tvmlib.tirx.IfThenElse(functools.reduce(tvmlib.tirx.all, self._guards), part, None)
            parts.append(_under_loops(tvmlib.substituted(part, self._dropped(nest)), nest[len(common) :]))
        home = tvmlib.s_tir.SBlock([], [], [], "home", tvmlib.tirx.SeqStmt(parts), alloc_buffers=[whole])
        body = _under_loops(tvmlib.s_tir.SBlockRealize([], True, home), common)
        passes = tvmlib.s_tir.transform
        module = tvmlib.IRModule({"main": tvmlib.PrimFunc([other], body)})
        main = passes.StmtSimplify()(passes.CompactBufferAllocation()(module))["main"]
        (home,) = tvmlib.found(main.body, tvmlib.s_tir.SBlock)
        words: dict[tuple[Store, Access], tuple[Written, ...]] = {}
        for (store, _, access), part in zip(accesses, tvmlib.found(main.body, tvmlib.tirx.BufferStore), strict=True):
            indices = part.indices if access is store.target else part.value.indices
            words[store, access] = tuple(map(from_tvm, indices))
        return tuple(int(extent) for extent in home.alloc_buffers[0].shape), words

    def _nest(self, store: Store, path: tuple[Loop, ...], *, known: bool = True) -> list[LoweredLoop]:
        """The loops of a store; what the program's loops are in terms of them is in `_standing`.

        known: whether TVM understands from the guard of a share that it does not run past the whole."""
        self._guards, self._standing = [], {}
        blanket = self._program.blankets.get(store)
        if blanket is not None and self._value(blanket.gate):
            return self._split(path, blanket, self._standing)
        return self._grouped(path, self._standing, known=known)

    def _seen(self, store: Store, path: tuple[Loop, ...], *, known: bool) -> tuple[list[LoweredLoop], _Seen]:
        loops = self._nest(store, path, known=known)
        if _plain(store, path):
            return loops, self._said(store, loops)
        return loops, self._formed(store, path, loops, known=known)

    def _said(self, store: Store, loops: list[LoweredLoop]) -> _Seen:
        """A statement as TVM says it, under the loops here, simplified by TVM."""
        words = store.words
        places = self._placed(words, loops)
        value = tvmlib.structural_map(tvmlib.substituted(words.value, places), (tvmlib.tirx.Select, _without_loads))
        indices = [tvmlib.substituted(index, places) for index in words.indices]
        said = tvmlib.tirx.BufferStore(words.target, value, indices)
        said = _simplified(said, loops, [theirs for theirs, _ in words.buffers])
        found: dict[Buffer, list[tuple[Written, ...]]] = {}
        target = tuple(map(from_tvm, said.indices))
        if store.target.buffer.internal:  # which is as small as its accesses allow
            target = tuple(from_tvm(self._written(i)) for i in store.target.written or store.target.indices)
        found[store.target.buffer] = [target]
        for load in _loads(said.value):
            if load.source.same_as(words.target):  # TVM goes by the indices of the write
                continue
            found.setdefault(dict(words.buffers)[load.source], []).append(tuple(map(from_tvm, load.indices)))
        return {buffer: tuple(rows) for buffer, rows in found.items()}, tuple(of_value(said.value))

    def _placed(self, words: Words, loops: list[LoweredLoop]) -> dict[Any, Any]:
        """A block's iterators with their values, as TVM simplifies them whenever it splits or fuses loops. Where
        threads share iterations unevenly, the guard is part of what it knows."""
        meaning = {variable: self._meant(variable, ours) for variable, ours in words.meaning}
        ranges = {loop.variable: tvmlib.ir.Range(0, loop.extent) for loop in loops}
        guard = functools.reduce(tvmlib.tirx.all, self._guards, tvmlib.tirx.const(1, "bool"))
        dropped = self._dropped(loops)
        values = [tvmlib.substituted(tvmlib.substituted(value, meaning), dropped) for _, value in words.places]
        guard = tvmlib.substituted(guard, dropped)
        found = tvmlib.sym.iter_map_simplify(values, ranges, guard)
        return dict(zip((iterator for iterator, _ in words.places), found, strict=True))

    def _dropped(self, loops: list[LoweredLoop]) -> dict[Any, int]:
        """The loops of one iteration, which TVM drops, at 0.  loops: those around the present store."""
        return {loop.variable: 0 for loop in self._loops.values() if loop not in loops}

    def _meant(self, variable: Any, ours: Expr) -> Any:
        """What a variable of TVM's is at the point, in the loops here."""
        if ours in self._extents:
            return self._standing.get(ours, tvmlib.tirx.const(0, self._dtype))
        return tvmlib.tirx.const(self._value(ours), str(variable.ty.dtype))

    def _formed(self, store: Store, path: tuple[Loop, ...], loops: list[LoweredLoop], *, known: bool) -> _Seen:
        """The indices made from their formulas."""
        words = {
            access: [self._written(index) for index in access.written or access.indices]
            for access in dict.fromkeys(store.accesses)
        }
        for access in words:
            if access.buffer.origin is not None:
                old = [self._sum(index) for index in access.written]
                words[access] = [self._analyzer.simplify(w) for w in self._layout(access, path, loops)[1](old)]
        indices = {access: tuple(map(from_tvm, found)) for access, found in words.items()}
        indices |= {
            access: self._regrouped[store, access, known] for access in words if access.buffer in self._allocated
        }
        target = store.target.buffer
        places: dict[Buffer, tuple[tuple[Written, ...], ...]] = {target: (indices[store.target],)}
        for load in store.loads:
            if load.buffer is not target:
                places[load.buffer] = (*places.get(load.buffer, ()), indices[load])
        repeated = ((indices[load], times) for load, times in zip(store.loads, store.repeats, strict=True))
        return places, tuple(of_store(store, repeated))

    def _layout(
        self, access: Access, path: tuple[Loop, ...], loops: list[LoweredLoop]
    ) -> tuple[tuple[int, ...], Callable[[list[Any]], list[Any]]]:
        """The shape of a constant that is laid out anew, and the way from indices in its old layout to the new ones.

        TVM cuts the old position into digits, one for each loop that moves it, or several where a fused loop does."""
        assert access.buffer.origin is not None
        shape = [self._value(extent) for extent in access.buffer.origin.shape]
        steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        order = [loop.name for loop in loops]
        digits: list[_Digit] = []
        for loop in path:
            extent = self._value(loop.extent)
            ways = [s * self._value(i.stride(loop.variable)) for s, i in zip(steps, access.written, strict=True)]
            if extent > 1 and any(ways):
                name, inner = self._places[loop.variable]
                digits.append(_Digit(sum(ways), extent, order.index(name), inner))
        digits = _merged(sorted(digits, key=lambda digit: -digit.step))
        places = sorted(range(len(digits)), key=lambda i: (digits[i].loop, -digits[i].inner))

        def new(old: list[Any]) -> list[Any]:
            variables = [tvmlib.tirx.Var(f"v{d}", self._dtype) for d in range(len(shape))]
            for variable, extent in zip(variables, shape, strict=True):
                self._analyzer.bind(variable, tvmlib.ir.Range(0, extent))
            rest: Any = tvmlib.tirx.const(0, self._dtype)
            for variable, step in zip(variables, steps, strict=True):
                rest = rest + variable * step
            found: list[Any] = []
            for digit in reversed(digits):
                rest = self._analyzer.simplify(rest)
                found.append(self._analyzer.simplify(tvmlib.tirx.floormod(rest, digit.extent)))
                rest = tvmlib.tirx.floordiv(rest, digit.extent)
            found.reverse()
            standing = dict(zip(variables, old, strict=True))
            return [tvmlib.substituted(found[place], standing) for place in places]

        return tuple(digits[place].extent for place in places), new

    def _split(self, path: tuple[Loop, ...], blanket: Blanket, standing: dict[Expr, Any]) -> list[LoweredLoop]:
        """The two loops of a nest that is fused whole; TVM keeps both, however short."""
        outer = self._loop("parallel", (path, 0), -(-self._value(blanket.total) // blanket.width))
        inner = self._loop("vector", (path, 1), blanket.width)
        self._unfuse(path, outer.variable * blanket.width + inner.variable, standing)
        return [outer, inner]

    def _grouped(self, path: tuple[Loop, ...], standing: dict[Expr, Any], *, known: bool) -> list[LoweredLoop]:
        """The loops of any other nest."""
        if not path:
            return []
        threads = self._threads[id(path[0])]
        own: list[LoweredLoop] = []
        for kind, members in groups(path, self._value):
            if isinstance(kind, Share):
                own += self._shared(kind, members, threads, standing, known=known)
            elif kind in threads:
                self._unfuse(members, threads[kind].variable, standing)
            else:
                own.append(self._fused(kind, members, standing))
        loops = [*threads.values(), *own]
        noted = loops[:1] if self._value(path[0].unroll) else []
        return [loop for loop in loops if loop.extent > 1 or loop.kind in THREADS or loop.said or loop in noted]

    def _fused(self, kind: str, members: tuple[Loop, ...], standing: dict[Expr, Any]) -> LoweredLoop:
        """One loop for neighbouring loops of a kind. Postprocessors fuse nothing into a parallel or vector loop of
        extent 1; one that the trace itself makes stays."""
        extent = math.prod(self._value(member.extent) for member in members)
        serial = kind == PIPELINE or (extent == 1 and not members[0].kind)
        loop = self._loop("serial" if serial else kind, members, extent, said=bool(members[0].kind))
        self._unfuse(members, loop.variable, standing)
        return loop

    def _shared(
        self,
        share: Share,
        members: tuple[Loop, ...],
        threads: Mapping[str, LoweredLoop],
        standing: dict[Expr, Any],
        *,
        known: bool,
    ) -> list[LoweredLoop]:
        """The parts of a share but for those that are threads."""
        parts = [
            threads[part] if part in threads else self._loop(part, (share, number), self._value(extent))
            for number, (part, extent) in enumerate(share.parts)
        ]
        whole: Any = tvmlib.tirx.const(0, self._dtype)
        for number in sorted(range(len(parts)), key=share.places.__getitem__):
            whole = whole * parts[number].extent + parts[number].variable
        total = math.prod(self._value(member.extent) for member in members)
        if math.prod(part.extent for part in parts) > total:
            self._guards.append(whole < total)
        self._unfuse(members, whole, standing, known=known)
        return [part for part in parts if part not in threads.values()]

    def _loop(self, kind: str, key: Any, extent: int, *, said: bool = False) -> LoweredLoop:
        if key not in self._loops:
            variable = tvmlib.tirx.Var(f"l{len(self._loops)}", self._dtype)
            self._analyzer.bind(variable, tvmlib.ir.Range(0, extent))
            self._loops[key] = LoweredLoop(kind, variable, extent, said)
        return self._loops[key]

    def _threads_of(self, root: Loop) -> dict[str, LoweredLoop]:
        """The threads of a kernel, in the order of their first appearance."""
        found: dict[str, LoweredLoop] = {}
        for _, path in _under(root, ()):
            for kind, members in groups(path, self._value):
                if isinstance(kind, Share):
                    parts = [(part, self._value(extent)) for part, extent in kind.parts]
                else:
                    parts = [(kind, math.prod(self._value(m.extent) for m in members))]
                for part, extent in parts:
                    if part in THREADS and part not in found:
                        found[part] = self._loop(part, (root, part), extent)
        return found

    def _unfuse(self, members: tuple[Loop, ...], whole: Any, standing: dict[Expr, Any], *, known: bool = True) -> None:
        """The loops that one of extent Π extents stands for: all but the outermost are remainders.

        known: whether TVM knows that `whole` stays below that product; else loops of extent 1 count as outermost."""
        inner = 1
        moving = [m for m in members if self._value(m.extent) > 1]
        first = moving[:1] if known else members[:1]
        for member in reversed(moving):
            extent = self._value(member.extent)
            quotient = whole if inner == 1 else tvmlib.tirx.floordiv(whole, inner)
            standing[member.variable] = quotient if member in first else tvmlib.tirx.floormod(quotient, extent)
            self._places[member.variable] = (str(whole), inner)
            inner *= extent

    def _written(self, index: Index) -> Any:
        return self._analyzer.simplify(self._sum(index))

    def _sum(self, index: Index) -> Any:
        """An index from its formula, in the loops around the present store."""
        total: Any = tvmlib.tirx.const(0, self._dtype)
        for variable, stride in index.strides:
            if variable in self._standing:
                total = total + self._standing[variable] * self._value(stride)
        for floor in index.floors:
            part = tvmlib.tirx.floormod if isinstance(floor, Rest) else tvmlib.tirx.floordiv
            total = total + part(self._sum(floor.inner), floor.divisor) * floor.factor
        return total + self._value(index.offset)


@dataclass(frozen=True, slots=True)
class _Digit:
    """A part of a position.  step: what it counts in.  loop, inner: where it comes from: loop // inner % extent."""

    step: int
    extent: int
    loop: int
    inner: int


def _merged(digits: list[_Digit]) -> list[_Digit]:
    """The digits, largest first, those that follow each other in one loop as one."""
    found: list[_Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        if last is not None and last.loop == digit.loop and last.inner == digit.inner * digit.extent:
            found[-1] = _Digit(digit.step, last.extent * digit.extent, digit.loop, digit.inner)
        else:
            found.append(digit)
    return found


def _plain(store: Store, path: tuple[Loop, ...]) -> bool:
    """Whether the statement's words are known: it sums nothing up, unless each thread does so for itself, and reads the
    function's arguments only; it does not write to shared memory; where it writes there is no guard, and there are no
    groups."""
    target = store.target.buffer
    if (
        (store.is_reduction and not _spread(store, path))
        or target.grouped
        or any(extent.op is Op.MIN for extent in target.shape)
    ):
        return False
    if target.internal and (target.scope != "global" or _divided(store)):  # moved, in an order that is TVM's
        return False
    loads = [load.buffer for load in store.loads if load.buffer is not target]
    return not any(buffer.internal or buffer.origin is not None for buffer in loads)


def _spread(store: Store, path: tuple[Loop, ...]) -> bool:
    """Whether threads share what is computed, and nothing of how it is summed up."""
    shared = {loop.variable for loop in path if loop.share is not None}
    return bool(shared) and not shared & store.reduction


def _divided(store: Store) -> bool:
    """Whether indices or conditions are divided, and do not go round a reduction."""
    divided = any(index.floors for access in store.accesses for index in access.indices)
    return not store.reduction and (divided or " // " in store.text or " % " in store.text)


def _loop_dtype(program: Program) -> str:
    """The integer type of loops."""
    kinds = [str(variable.ty.dtype) for store, _ in program.stores() for variable, _ in store.words.meaning]
    return kinds[0] if kinds else "int64"


def _simplified(store: Any, loops: list[LoweredLoop], buffers: list[Any]) -> Any:
    """The statement after TVM's pass, which knows what holds inside conditions."""
    module = tvmlib.IRModule({"main": tvmlib.PrimFunc(buffers, _under_loops(store, loops))})
    (found,) = tvmlib.found(tvmlib.s_tir.transform.StmtSimplify()(module)["main"].body, tvmlib.tirx.BufferStore)
    return found


def _under_loops(body: Any, loops: list[LoweredLoop]) -> Any:
    for loop in reversed(loops):
        kind, thread = tvmlib.tirx.ForKind.SERIAL, None
        if loop.kind in THREADS:
            name = tvmlib.tirx.Var(loop.kind, str(loop.variable.ty.dtype))
            thread = tvmlib.tirx.IterVar(None, name, tvmlib.tirx.IterVar.ThreadIndex, loop.kind)
            kind = tvmlib.tirx.ForKind.THREAD_BINDING
        body = tvmlib.tirx.For(loop.variable, 0, loop.extent, kind, body, thread)
    return body


def _loads(expression: Any) -> list[Any]:
    return tvmlib.found(expression, tvmlib.ir.TensorLoad)


def _without_loads(select: Any) -> Any:
    """TVM's extractor takes 1 for a selection that reads nothing."""
    return select if _loads(select) else tvmlib.tirx.const(1, str(select.ty.dtype))


def _under(node: Loop | Store, path: tuple[Loop, ...]) -> Any:
    if isinstance(node, Store):
        yield node, path
        return
    for child in node.body:
        yield from _under(child, (*path, node))
