"""Features counted by walking every iteration of a scheduled program. No algebra: the indices TVM wrote are evaluated.

In: a sketch, a point. Out: for every store, the columns of its row. Loops keep their identity: the trace is replayed
without the postprocessor that fuses them, so that levels and reuse can be seen; allocations are where TVM's own pass
puts them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from felixlike import tvmlib
from felixlike.frontend.constants import LAYOUT_FREE, PACKING, with_indices
from felixlike.hardware import Device
from felixlike.symbolic import Sketch
from felixlike.symbolic.primitives.storage_align import ALIGNED
from felixlike.symbolic.program import WITHIN_BLOCK
from felixlike.symbolic.replay import Replay
from felixlike.symbolic.trace import with_point

Ints = npt.NDArray[np.int64]
_Aligns: TypeAlias = "list[tuple[int, int, int]]"
"""(dimension, factor, offset): the least step that leaves `offset` over multiples of `factor`."""
_LINE = 64


@dataclass(eq=False)
class _Loop:
    variable: Any
    extent: int
    thread: str = ""


@dataclass(eq=False)
class _Store:
    """elements: buffer → the index arrays of its accesses, one array of all iterations for each dimension.
    looked_up: (buffer, dimension) pairs whose index is loaded; its array holds the elements of the index buffer."""

    block: str
    loops: list[_Loop]
    target: Any
    loaded: list[Any]
    elements: dict[Any, list[list[Ints]]]
    looked_up: set[tuple[Any, int]]


class _Packed:
    """A constant that is laid out for the schedule: memory in one piece, whatever dimensions TVM gives it."""

    def __init__(self, buffer: Any) -> None:
        self.shape, self.dtype = [math.prod(int(e) for e in buffer.shape)], buffer.dtype

    def same_as(self, other: Any) -> bool:
        return self is other


def count(sketch: Sketch, point: tuple[int, ...], device: Device) -> dict[str, dict[str, float]]:
    """Block → column → value."""
    func = _unfused(sketch, point)
    stores, homes = _read(func, panels=PACKING in str(sketch._trace))
    aligns = _aligns(func)
    lanes = _lanes(sketch.schedule(point))
    return {s.block: _row(s, stores[:i], homes, aligns, device, lanes[s.block]) for i, s in enumerate(stores)}


def _unfused(sketch: Sketch, point: tuple[int, ...]) -> Any:
    if sketch.task.target.kind.name == "cuda":
        return _unfused_on_gpu(sketch, point)
    if any(str(instruction.kind.name) == "Parallel" for instruction in sketch._trace.insts):
        return _unfused_by_replay(sketch, point)
    schedule = tvmlib.Schedule(sketch.task.module, debug_mask="none")
    with_point(sketch._trace, sketch.variables, point).apply_to_schedule(schedule, remove_postproc=True)
    return _postprocessed(schedule)


def _replayed(sketch: Sketch, point: tuple[int, ...]) -> Replay:
    """Some traces fuse loops themselves; our own replay, with numbers for all variables, does not."""
    fixed = [dataclasses.replace(v, choices=(x,)) for v, x in zip(sketch.variables, point, strict=True)]
    locations = [point[i] for i in sketch.location_columns]
    return Replay(sketch.task.module, sketch.task.target, sketch._trace, fixed, locations, numbers=True)


def _unfused_by_replay(sketch: Sketch, point: tuple[int, ...]) -> Any:
    """Of a CPU's trace. The replay keeps no attributes; which layouts are free must be said anew."""
    main = _replayed(sketch, point).schedule.mod["main"]
    names = [str(parameter.name) for parameter in main.params]
    if PACKING not in main.script():
        main = with_indices(main, LAYOUT_FREE, [names.index(name) for name in sketch.task.layout_free])
    return _postprocessed(tvmlib.Schedule(tvmlib.IRModule({"main": main}), debug_mask="none"))


def _postprocessed(schedule: Any) -> Any:
    """The function of a CPU's schedule after the postprocessors that leave its loops apart."""
    assert tvmlib.ms.postproc.RewriteReductionBlock().apply(schedule)
    assert tvmlib.ms.postproc.RewriteLayout().apply(schedule)
    return tvmlib.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(schedule.mod)["main"]


def _unfused_on_gpu(sketch: Sketch, point: tuple[int, ...]) -> Any:
    replay = _replayed(sketch, point)
    assert tvmlib.ms.postproc.RewriteReductionBlock().apply(replay.schedule)
    for block in replay.fetches:
        replay.schedule.annotate(replay.schedule.get_sblock(block), _TOGETHER, 1)
    return tvmlib.s_tir.transform.PlanAndUpdateBufferAllocationLocation()(replay.schedule.mod)["main"]


_TOGETHER = "copied_together"
"""Notes a block that all threads of a GPU's block run once, together."""


def _read(func: Any, *, panels: bool) -> tuple[list[_Store], dict[Any, list[_Loop]]]:
    """The stores in program order, and for each internal buffer the loops each of whose iterations has its own.

    panels: whether constants are laid out by the trace itself, in dimensions that say which elements lie together."""
    stores: list[_Store] = []
    homes: dict[Any, list[_Loop]] = {}
    packed: dict[Any, _Packed] = {}

    def visit(stmt: Any, path: list[_Loop]) -> None:
        match type(stmt).__name__:
            case "For":
                loop = _Loop(stmt.loop_var, int(stmt.extent))
                loop.thread = str(stmt.thread_binding.thread_tag) if stmt.thread_binding is not None else ""
                visit(stmt.body, [*path, loop] if loop.extent > 1 else path)
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, path)
            case "SBlockRealize":
                for buffer in stmt.block.alloc_buffers:
                    shared = str(buffer.scope()).startswith("shared")
                    homes[buffer] = [loop for loop in path if not (shared and loop.thread in WITHIN_BLOCK)]
                if stmt.block.iter_vars:
                    store(stmt, path)
                else:
                    visit(stmt.block.body, path)

    def store(realize: Any, path: list[_Loop]) -> None:
        block = realize.block
        if str(block.name_hint).endswith("_init"):
            return
        if PACKING in block.annotations:
            if not panels:
                packed[block.body.buffer] = _Packed(block.body.buffer)
            homes.pop(block.body.buffer)
            return
        if _TOGETHER in block.annotations:
            path = [loop for loop in path if loop.thread not in WITHIN_BLOCK]
        values = _iterations(path)
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            values[iterator.var] = _value(value, values)
        loads = _loads(block.body.value)
        looked_up: set[tuple[Any, int]] = set()
        elements: dict[Any, list[list[Ints]]] = {}
        for buffer, indices in [(block.body.buffer, block.body.indices), *((x.source, x.indices) for x in loads)]:
            arrays = [_value(i, values) for i in indices]
            if buffer in packed:
                arrays = [_flat(arrays, [int(e) for e in buffer.shape])]
            elements.setdefault(packed.get(buffer, buffer), []).append(arrays)
            looked_up |= {(buffer, d) for d, i in enumerate(indices) if _loads(i)}
        name = str(block.name_hint).removesuffix("_update")
        stores.append(
            _Store(name, path, block.body.buffer, [packed.get(x.source, x.source) for x in loads], elements, looked_up)
        )

    visit(func.body, [])
    return stores, homes


def _aligns(func: Any) -> dict[Any, _Aligns]:
    """What blocks note about the steps of the buffers they write."""
    found: dict[Any, _Aligns] = {}
    for block in tvmlib.found(func.body, tvmlib.s_tir.SBlock):
        for number, dimension, factor, offset in block.annotations.get(ALIGNED, ()):
            buffer = block.writes[int(number)].source
            found.setdefault(buffer, []).append((int(dimension), int(factor), int(offset)))
    return found


def _loads(expression: Any) -> list[Any]:
    return tvmlib.found(expression, tvmlib.ir.TensorLoad)


class _Values(dict[Any, Ints]):
    """Values of variables in all iterations; loops of extent 1 stand at 0."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def __missing__(self, _: Any) -> Ints:
        return np.zeros(self.length, dtype=np.int64)


def _iterations(path: list[_Loop]) -> _Values:
    shape = [loop.extent for loop in path]
    values = _Values(math.prod(shape))
    grid = np.indices(shape, dtype=np.int64).reshape(len(shape), math.prod(shape))
    for loop, column in zip(path, grid, strict=True):
        values[loop.variable] = column
    return values


def _value(node: Any, values: _Values) -> Ints:
    match type(node).__name__:
        case "IntImm":
            return np.full(values.length, int(node.value), dtype=np.int64)
        case "Var":
            return values[node]
        case "Cast":
            return _value(node.value, values)
        case "TensorLoad":  # as if all elements were different
            return _flat([_value(i, values) for i in node.indices], [int(e) for e in node.source.shape])
    a, b = _value(node.a, values), _value(node.b, values)
    operations = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "FloorDiv": np.floor_divide,
        "FloorMod": np.mod,
        "Div": np.floor_divide,  # of numbers from 0
        "Mod": np.mod,
        "Min": np.minimum,
        "Max": np.maximum,
    }
    result: Ints = operations[type(node).__name__](a, b)
    return result


def _flat(arrays: list[Ints], shape: list[int]) -> Ints:
    """Positions in row-major order."""
    flat = np.zeros_like(arrays[0])
    for extent, array in zip(shape, arrays, strict=True):
        flat = flat * extent + array
    return flat


class _Counter:
    """What one store touches, level by level."""

    def __init__(self, store: _Store, homes: dict[Any, list[_Loop]], aligns: Mapping[Any, _Aligns]) -> None:
        self.store, self.aligns = store, aligns
        self.extents = [loop.extent for loop in store.loops]
        self.total = math.prod(self.extents)
        self.homes = homes

    def inner(self, level: int) -> int:
        return math.prod(self.extents[level:])

    def fixed(self, buffer: Any, level: int) -> bool:
        """Whether the loop has a buffer of its own in every iteration, hence reaches no new elements."""
        return self.store.loops[level] in self.homes.get(buffer, [])

    def box(self, buffer: Any, level: int) -> list[int]:
        """Extent in each dimension of what is touched while the loops from `level` inwards run once."""
        runs = np.ones(self.extents, dtype=bool)
        for outer in range(len(self.extents)):
            if outer < level or self.fixed(buffer, outer):
                runs[(slice(None),) * outer + (slice(1, None),)] = False
        rows = runs.reshape(-1)
        return [self.width(buffer, d, rows) for d in range(len(buffer.shape))]

    def width(self, buffer: Any, dimension: int, rows: npt.NDArray[np.bool_]) -> int:
        arrays = [a[dimension][rows] for a in self.accesses(buffer)]
        if (buffer, dimension) in self.store.looked_up:
            return min(max(len(np.unique(a)) for a in arrays), int(buffer.shape[dimension]))
        return int(max(a.max() for a in arrays)) - int(min(a.min() for a in arrays)) + 1

    def accesses(self, buffer: Any) -> list[list[Ints]]:
        return self.store.elements[buffer]

    def touched(self, level: int) -> int:
        return sum(math.prod(self.box(b, level)) * item(b) for b in self.store.elements)

    def shape(self, buffer: Any) -> list[int]:
        """Of an internal buffer, what is used of it where it is allocated."""
        return self.whole[buffer] if buffer in self.homes else [int(e) for e in buffer.shape]

    whole: dict[Any, list[int]]

    def stride(self, buffer: Any, level: int) -> float:
        """Elements by which a step of a loop moves the flat position on average; 0 if it does not (smallest of
        several)."""
        if self.fixed(buffer, level):
            return 0
        steps = []
        shape, between = self.shape(buffer), self.between(buffer)
        for arrays in self.accesses(buffer):
            count = self.extents[level] - 1
            last = self.inner(level + 1) * count
            total = 0.0
            for d, (extent, array) in enumerate(zip(shape, arrays, strict=True)):
                way = float(array[last] - array[0])
                if (buffer, d) in self.store.looked_up:
                    way = count * extent / 3 if way else 0.0
                total += way * between[d]
            steps.append(abs(total) / count)
        return min((s for s in steps if s), default=0)

    def between(self, buffer: Any) -> list[int]:
        """For each dimension, the elements from one place to the next."""
        found: list[int] = []
        step = 1
        for d, extent in reversed(list(enumerate(self.shape(buffer)))):
            for dimension, factor, offset in self.aligns.get(buffer, ()):
                while dimension == d and step % factor != offset:
                    step += 1
            found.append(step)
            step *= extent
        return found[::-1]

    def moved(self, buffer: Any, level: int) -> bool:
        """Whether the loop touches more elements than the loops inside it."""
        return self.box(buffer, level) != self.box(buffer, level + 1)


def item(buffer: Any) -> int:
    """Bytes of an element."""
    return 1 if str(buffer.dtype) == "bool" else np.dtype(str(buffer.dtype)).itemsize


def _row(
    store: _Store,
    earlier: list[_Store],
    homes: dict[Any, list[_Loop]],
    aligns: Mapping[Any, _Aligns],
    device: Device,
    lanes: int,
) -> dict[str, float]:
    counter = _Counter(store, homes, aligns)
    others = [_Counter(s, homes, aligns) for s in earlier]
    whole: dict[Any, list[int]] = {}
    for one in [*others, counter]:
        for buffer in one.store.elements:
            if buffer in homes:
                box = one.box(buffer, 0)
                grown = [max(a, b) for a, b in zip(whole.get(buffer, box), box, strict=True)]
                whole[buffer] = [min(a, int(e)) for a, e in zip(grown, buffer.shape, strict=True)]  # guarded reads
    for one in [*others, counter]:
        one.whole = whole
    row: dict[str, float] = {"iterations": counter.total}
    for name, capacity in (
        ("registers", device.register_bytes),
        ("l1", device.l1_bytes),
        ("l2", device.l2_bytes),
    ):
        row[f"traffic_{name}"] = sum(_moved(counter, b, capacity) * item(b) for b in store.elements)
    row["moves"] = sum(_moved(counter, b, device.register_bytes, lanes) for b in store.elements)
    for slot, buffer in enumerate(list(store.elements)[:5]):
        columns = {**_access(counter, buffer), **_reuse(counter, others, buffer)}
        uses = columns["reuse_count"] or 0.5
        for name in ("bytes", "unique_bytes", "lines", "unique_lines"):
            columns[f"{name}_per_reuse"] = columns[name] / uses
        row.update({f"buffer{slot}_{name}": value for name, value in columns.items()})
    return row


def _moved(counter: _Counter, buffer: Any, capacity: int, lanes: int = 1) -> float:
    """Elements; with lanes, instructions that move so many iterations of the innermost loops at once where they lie
    side by side."""
    moved = 1.0
    for level in reversed(range(len(counter.extents))):
        within = counter.inner(level) <= lanes
        if within and counter.stride(buffer, level) < 2:
            continue
        if counter.touched(level + 1) <= capacity:
            moved *= math.prod(counter.box(buffer, level)) / math.prod(counter.box(buffer, level + 1))
        else:
            moved *= counter.extents[level]
    return moved


def _lanes(schedule: Any) -> dict[str, int]:
    """For each block the iterations of its vector loop; 1 in nests that are fused whole and split, and on GPUs, where
    loops are not vectors one by one."""
    found: dict[str, int] = defaultdict(lambda: 1)

    def visit(stmt: Any, lanes: int) -> None:
        match type(stmt).__name__:
            case "For" if stmt.thread_binding is not None:
                pass
            case "For":
                vector = stmt.kind == tvmlib.tirx.ForKind.VECTORIZED
                whole = str(stmt.loop_var.name).endswith("_fused_1")
                visit(stmt.body, lanes * int(stmt.extent) if vector and not whole else lanes)
            case "SeqStmt":
                for part in stmt.seq:
                    visit(part, lanes)
            case "SBlockRealize" if stmt.block.iter_vars:
                found[str(stmt.block.name_hint).removesuffix("_update")] = lanes
            case "SBlockRealize":
                visit(stmt.block.body, lanes)

    visit(schedule.mod["main"].body, 1)
    return found


def _access(counter: _Counter, buffer: Any) -> dict[str, float]:
    store, size = counter.store, item(buffer)
    levels = range(len(counter.extents))
    unique = math.prod(counter.box(buffer, 0)) * size
    lines = 1.0
    for level in reversed(levels):
        if counter.moved(buffer, level):
            per_step = min(1.0, counter.stride(buffer, level) * size / _LINE)
            lines = counter.total / counter.inner(level + 1) * per_step
            break
    contiguous = 1
    for width, extent in zip(reversed(counter.box(buffer, 0)), reversed(counter.shape(buffer)), strict=True):
        if width == extent:
            contiguous = extent * size
            break
    stored, loaded = buffer.same_as(store.target), any(buffer.same_as(b) for b in store.loaded)
    return {
        "read": float(not stored),
        "write": float(stored and not loaded),
        "read_write": float(stored and loaded),
        "bytes": counter.total * size,
        "unique_bytes": unique,
        "lines": max(1.0, lines),
        "unique_lines": max(1.0, unique / min(_LINE, contiguous)),
        "stride": counter.stride(buffer, len(counter.extents) - 1) if counter.extents else 0,
    }


def _reuse(counter: _Counter, others: list[_Counter], buffer: Any) -> dict[str, float]:
    names = (
        "reuse_loop",
        "reuse_serial",
        "reuse_none",
        "reuse_distance_iterations",
        "reuse_distance_bytes",
        "reuse_count",
    )
    for level in reversed(range(len(counter.extents))):
        if not counter.moved(buffer, level):
            values = (1, 0, 0, counter.inner(level + 1), counter.touched(level + 1), counter.extents[level])
            return dict(zip(names, map(float, values), strict=True))
        loop = counter.store.loops[level]
        sharing = [(o, o.store.loops.index(loop)) for o in others if loop in o.store.loops]
        before = [(o, at) for o, at in sharing if any(buffer.same_as(b) for b in o.store.elements)]
        if before:
            elements = [math.prod(counter.box(buffer, level)), *(math.prod(o.box(buffer, at)) for o, at in before)]
            touched = counter.touched(level) + sum(o.touched(at) for o, at in sharing)
            extent = counter.extents[level]
            values_ = (0.0, 1.0, 0.0, min(elements) / extent, touched / extent, float(len(before)))
            return dict(zip(names, values_, strict=True))
    return dict(zip(names, (0.0, 0.0, 1.0, 0.0, 0.0, 0.0), strict=True))
