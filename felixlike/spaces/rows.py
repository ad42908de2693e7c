"""Row by row: reductions along rows and whatever surrounds them, all stages of one row after another.

In: the schedule of a whole unscheduled function. Out: schedules in which a single parallel loop runs over groups of
rows (or of columns), and every stage of softmax, norms, means and their like is computed within it, in vectors.
MetaSchedule's default space gives each stage a loop nest of its own and reduces into one scalar. Works on loop nests
and indices, never on names of operators.

Nests are joined by `merge` rather than compute_at, which refuses blocks under a test: those of rows that no vector
divides. TVM does not look whether loops may be merged; `_rows` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from felixlike import tvmlib
from felixlike.lowering import PEEL

_ACCUMULATORS = (1, 4)
"""Vectors of partial results a reduction is split into: more hide the latency of additions, fewer suit short rows."""
_MOST_ROWS, _MOST_UNROLLED, _MOST_VECTORS = 64, 16, 8
"""Rows a task, vectors of a row unrolled, vectors of columns a task: bounds of what is sampled."""
_NARROWEST = 4
"""Elements of the shortest vector that columns are worth being computed in."""
_CHEAP = frozenset(["prim.if_then_else", "prim.likely", "tirx.reinterpret"])
"""Calls that may be computed again wherever their value is read; others, like exp, are worth a buffer."""
_Access = tuple[Any, tuple[Any, ...]]
"""A buffer and the indices of one element."""


def row_by_row(sch: Any, lanes: int) -> list[Any]:
    """New schedules with reductions along rows, or along columns, at one parallel loop; [] where this does not apply.

    sch: of the whole function, stays as it is.  lanes: elements of a vector, a power of two.

    Applies if every reduction reads each element of some buffer once, and every buffer between the stages is indexed by
    the same rows.  Along rows (the reduced axes are the innermost of what is read): partial results in the lanes of
    `lanes` or 4 · `lanes` accumulators, combined in halves.  Along columns: vectors of neighbouring columns."""
    found: list[Any] = []
    if not _plain(sch):
        return found
    for accumulators in _ACCUMULATORS:
        try:
            new = _scheduled(sch.copy(), lanes, accumulators)
        except tvmlib.ScheduleError:
            continue
        if new is None:
            break  # what one accumulator does not suit, more do not either
        found.append(new)
    return found


def _scheduled(sch: Any, lanes: int, accumulators: int) -> Any:
    """The schedule, or None where the rule does not apply, or would do the same as with fewer accumulators."""
    stages = _inlined(sch)
    rows = _rows(stages)
    if rows is None:
        return None
    if any(str(buffer.dtype) == "bool" for stage in stages if stage.reduced for buffer, _ in stage.writes):
        return None  # TVM knows no least or greatest bool to begin partial results with
    first = next(stage for stage in stages if stage.reduced)
    read = next((access for access in first.reads if _whole(first, access)), None)
    if read is None:
        return None
    if first.step(read, first.innermost(first.reduced)) == 1:
        if accumulators > 1 and _contiguous(first, first.reduced)[0] < 2 * accumulators * lanes:
            return None
        return _along_rows(sch, stages, rows, lanes, accumulators)
    if accumulators == 1 and rows[first.name] and first.step(read, first.innermost(rows[first.name])) == 1:
        return _along_columns(sch, stages, rows, lanes)
    return None


def _plain(sch: Any) -> bool:
    """True if every block stands in a perfect nest of loops, one for each of its variables, in their order."""
    probe = sch.copy()
    for realize in tvmlib.found(probe.mod["main"].body, tvmlib.s_tir.SBlockRealize):
        if realize.block.name_hint != "root":
            loops = [probe.get(loop).loop_var for loop in probe.get_loops(probe.get_sblock(realize.block.name_hint))]
            values = list(realize.iter_values)
            if len(loops) != len(values) or not all(a.same_as(b) for a, b in zip(loops, values, strict=True)):
                return False
    return True


def _whole(stage: "_Stage", access: _Access) -> bool:
    """True if a reduction reads every element of a buffer once: contractions read each often, windows overlap."""
    return prod(stage.extents.values()) == prod(int(extent) for extent in access[0].shape)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A block: its variables with their extents in the order of its loops, and what it accesses, by index."""

    name: str
    extents: dict[Any, int]
    reduced: tuple[Any, ...]
    reads: tuple[_Access, ...]
    writes: tuple[_Access, ...]
    costly: bool
    output: bool

    def step(self, access: _Access, variable: Any) -> int:
        """By how many elements an access moves where a variable, all others 0, goes from 0 to 1; -1 if data decide."""
        buffer, indices = access
        address = tvmlib.tirx.const(0, "int64")
        for index, extent in zip(indices, buffer.shape, strict=True):
            address = address * extent + index.astype("int64")

        start = dict.fromkeys(self.extents, 0)
        moved = tvmlib.simplify(tvmlib.substituted(address, start | {variable: 1}) - tvmlib.substituted(address, start))
        return int(moved) if isinstance(moved, tvmlib.tirx.IntImm) else -1

    def innermost(self, variables: Sequence[Any]) -> Any:
        """The last of some variables that is more than one iteration, or the last."""
        return next((v for v in reversed(variables) if self.extents[v] > 1), variables[-1])


def _stages(sch: Any) -> list[_Stage]:
    """The function's blocks in their order."""
    main = sch.mod["main"]
    stages = []
    for block in tvmlib.found(main.body, tvmlib.s_tir.SBlock):
        if block.name_hint == "root":
            continue
        calls = {str(getattr(call.op, "name", "")) for call in tvmlib.found(block.body, tvmlib.ir.Call)}
        written = [region.source for region in block.writes]
        stages.append(
            _Stage(
                name=str(block.name_hint),
                extents={i.var: int(i.dom.extent) for i in block.iter_vars},
                reduced=tuple(i.var for i in block.iter_vars if tvmlib.is_reduction(i)),
                reads=tuple(
                    (load.source, tuple(load.indices))
                    for load in tvmlib.found(block.body, tvmlib.ir.TensorLoad)
                    if load.source not in written
                ),
                writes=tuple((r.source, tuple(x.min for x in r.region)) for r in block.writes),
                costly=not calls <= _CHEAP,
                output=any(p.same_as(buffer) for p in main.params for buffer in written),
            )
        )
    return stages


def _inlined(sch: Any) -> list[_Stage]:
    """Put the cheap stages between reductions into those that read them; the stages that are left.

    Kept: one value a row, which is computed once; and what is costly and read twice, like softmax's exponentials."""
    _undo_last_reshape(sch)
    stages = _stages(sch)
    rows = {prod(e for v, e in s.extents.items() if v not in s.reduced) for s in stages if s.reduced}
    for stage in stages:
        readers = sum(any(r[0].same_as(w[0]) for r in s.reads for w in stage.writes) for s in stages)
        once = prod(stage.extents.values()) in rows
        if not (stage.reduced or stage.output or once or (stage.costly and readers > 1)):
            sch.compute_inline(sch.get_sblock(stage.name))
    return _stages(sch)


def _undo_last_reshape(sch: Any) -> None:
    """Let the stage before a final reshape write the output itself, in its own loops, which know the rows."""
    last = _stages(sch)[-1]
    plain = all(index in last.extents for _, indices in last.reads for index in indices)
    if last.output and not last.reduced and len(last.reads) == 1 and not plain:
        sch.reverse_compute_inline(sch.get_sblock(last.name))


def _rows(stages: Sequence[_Stage]) -> dict[str, tuple[Any, ...]] | None:
    """For each stage, by name, the variables that number the rows, in one order; None where stages disagree.

    Every stage must write and read what others need at its own row: then all of them may run row by row."""
    if not any(stage.reduced for stage in stages) or sum(stage.output for stage in stages) != 1:
        return None
    first = next(stage for stage in stages if stage.reduced)
    spatial = tuple(v for v in first.extents if v not in first.reduced)
    extents = tuple(first.extents[v] for v in spatial)
    known: dict[str, dict[int, Any]] = {stage.name: {} for stage in stages}
    known[first.name] = dict(enumerate(spatial))
    # For each buffer between stages: dimension → number of the row variable that indexes it.
    places: dict[Any, dict[int, int]] = {buffer: {} for s in stages if not s.output for buffer, _ in s.writes}
    accesses = [(s, access) for s in stages for access in (*s.reads, *s.writes) if access[0] in places]
    for _ in stages:
        for stage, (buffer, indices) in accesses:
            for number, variable in list(known[stage.name].items()):
                places[buffer].update({d: number for d, i in enumerate(indices) if variable.same_as(i)})
            for dimension, number in places[buffer].items():
                if indices[dimension] in stage.extents:
                    known[stage.name].setdefault(number, indices[dimension])
    long = [number for number, extent in enumerate(extents) if extent > 1]
    for stage in stages:
        mine = known[stage.name]
        if any(n not in mine for n in long) or len(set(mine.values())) < len(mine):
            return None
        if any(v in stage.reduced or stage.extents[v] != extents[n] for n, v in mine.items()):
            return None
    for stage, (buffer, indices) in accesses:
        at = {number: dimension for dimension, number in places[buffer].items()}
        if any(n not in at or not known[stage.name][n].same_as(indices[at[n]]) for n in long):
            return None
    return {name: tuple(mine[n] for n in sorted(mine)) for name, mine in known.items()}


def _along_rows(
    sch: Any, stages: Sequence[_Stage], rows: dict[str, tuple[Any, ...]], lanes: int, accumulators: int
) -> Any:
    """Everything at a loop over rows; reductions in lanes."""
    nests: list[_Nest] = []
    for stage in stages:
        nests += _split_stage(sch, stage, rows[stage.name], lanes, accumulators)
    row_loops = [_row_loop(sch, nest) for nest in nests]
    tile = sch.sample_perfect_tile(row_loops[0], 2, _MOST_ROWS)
    inner = [sch.split(loop, tile)[1] for loop in row_loops]
    if len(inner) > 1:
        sch.merge(*inner)
    sch.parallel(sch.get_loops(nests[-1].block)[0])
    for nest in nests:
        _in_vectors(sch, nest, lanes)
    return sch


def _along_columns(sch: Any, stages: Sequence[_Stage], rows: dict[str, tuple[Any, ...]], lanes: int) -> Any:
    """Everything at a loop over groups of neighbouring columns; None where no vector divides their number.

    The columns are numbered by the last row variable of more than one value."""
    first = stages[0]
    last = first.innermost(rows[first.name])
    at = rows[first.name].index(last)
    width = min(lanes, first.extents[last] & -first.extents[last])
    if width < min(lanes, _NARROWEST):
        return None
    groups, tile = [], None
    for stage in stages:
        block = sch.get_sblock(stage.name)
        loops = dict(zip(stage.extents, sch.get_loops(block), strict=True))
        along = [loops[v] for v in stage.extents if v not in rows[stage.name]]
        others = [loops[v] for v in rows[stage.name]]
        column = others.pop(at)
        vectors, lane = sch.split(column, [None, width])
        tile = tile or sch.sample_perfect_tile(vectors, 2, _MOST_VECTORS)
        group, vector = sch.split(vectors, tile)
        sch.reorder(*others, group, *along, vector, lane)
        groups.append(sch.fuse(*others, group) if others else group)
    if len(groups) > 1:
        sch.merge(*groups)
    blocks = [sch.get_sblock(stage.name) for stage in stages]
    sch.parallel(sch.get_loops(blocks[-1])[0])
    for block, stage in zip(blocks, stages, strict=True):
        *_, vector, lane = sch.get_loops(block)
        sch.unroll(vector)
        sch.vectorize(lane)
        if stage.reduced:
            sch.decompose_reduction(block, sch.get_loops(block)[1])
    return sch


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loop nest of one block, rows outermost.

    rows: how many loops number rows.  length: elements along the row; width: how many of them the innermost loop
    covers, the one around it covers the rest.  reduces: some loop within the row is a reduction."""

    block: Any
    rows: int
    length: int
    width: int
    reduces: bool


def _split_stage(sch: Any, stage: _Stage, rows: tuple[Any, ...], lanes: int, accumulators: int) -> list[_Nest]:
    """Order the loops of a stage, fuse those along the row, and give a reduction its lanes: the nests it becomes."""
    block = sch.get_sblock(stage.name)
    loops = dict(zip(stage.extents, sch.get_loops(block), strict=True))
    along = [v for v in stage.extents if v not in rows]
    if list(loops) != [*rows, *along]:
        sch.reorder(*(loops[v] for v in (*rows, *along)))
    length, fused = _contiguous(stage, along)
    if fused > 1:
        sch.fuse(*(loops[v] for v in along[len(along) - fused :]))
    width = min(_power_of_two_below(length), lanes * (accumulators if stage.reduced else 1))
    if length > width or (stage.reduced and width > 1):
        _, loop = sch.split(sch.get_loops(block)[-1], [None, width])
    nests = []
    if stage.reduced and width > 1:
        dimension = len(stage.writes[0][1])
        nests.append(_Nest(sch.rfactor(loop, dimension), len(rows), length, width, reduces=True))
        while width > 2:
            width //= 2
            _, loop = sch.split(sch.get_loops(block)[-1], [None, width])
            nests.append(_Nest(sch.rfactor(loop, dimension), len(rows), 2 * width, width, reduces=True))
        length = width = 1
    return [*nests, _Nest(block, len(rows), length, width, reduces=bool(stage.reduced))]


def _contiguous(stage: _Stage, along: Sequence[Any]) -> tuple[int, int]:
    """How many elements the innermost loops run through in one go in all buffers, and how many loops that are."""
    accesses = stage.reads if stage.reduced else (*stage.reads, *stage.writes)
    length, steps, count = 1, [1] * len(accesses), 0
    for variable in reversed(along):
        extent = stage.extents[variable]
        found = [stage.step(access, variable) for access in accesses]
        if extent > 1 and length > 1 and any(f != s * length for f, s in zip(found, steps, strict=True)):
            break
        steps = steps if extent == 1 or length > 1 else found
        length *= extent
        count += 1
    return length, count


def _row_loop(sch: Any, nest: _Nest) -> Any:
    """The one loop of a nest that numbers all rows."""
    if nest.rows == 0:
        return sch.add_unit_loop(nest.block if not sch.get_loops(nest.block) else sch.get_loops(nest.block)[0])
    loops = sch.get_loops(nest.block)[: nest.rows]
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _in_vectors(sch: Any, nest: _Nest, lanes: int) -> None:
    """Vectorise the innermost loop within the row, unroll around it; initial values before the reducing loops."""
    loops = sch.get_loops(nest.block)[2:]
    if nest.length % nest.width:
        # TVM refuses to vectorise, and to take initial values out of, what is under a test.
        sch.annotate(loops[-2], PEEL, [nest.length, lanes])
        return
    if nest.width > lanes:
        more, lane = sch.split(loops[-1], [None, lanes])
        sch.unroll(more)
        sch.vectorize(lane)
    elif nest.width > 1:
        sch.vectorize(loops[-1])
    if nest.length == 2 * nest.width:
        sch.unroll(loops[-2])
    elif nest.length > nest.width:
        _unroll_some(sch, loops[-2])
    if nest.reduces:
        sch.decompose_reduction(nest.block, sch.get_loops(nest.block)[2])


def _unroll_some(sch: Any, loop: Any) -> None:
    """Split a loop by a sampled factor and unroll the inner one."""
    sch.unroll(sch.split(loop, sch.sample_perfect_tile(loop, 2, _MOST_UNROLLED))[1])


def _power_of_two_below(number: int) -> int:
    """The largest power of two that is at most a number."""
    return 1 << (number.bit_length() - 1)
