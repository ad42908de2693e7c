"""Schedule reductions along rows and the stages around them, all stages of one row after another.

Input: the schedule of a whole unscheduled function. Output: schedules with a single parallel loop over groups of rows
(or of columns) that contains every stage of softmax, norms, means and similar operators, in vectors. MetaSchedule's
default space gives each stage its own loop nest and reduces into one scalar. The rule reads loop nests and indices,
never names of operators.

Nests are joined by `merge` instead of compute_at, which refuses blocks below a predicate, as for rows that no vector
divides. TVM does not check whether loops may be merged; `rows_of_stages` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import LoopRef, Schedule
from felixlike.codegen.annotations import Columns, Peel
from felixlike.hardware.vectors import SHORTEST, power_of_two_below
from felixlike.spaces.stages import Access, Stage, contiguous, in_plain_nests, stages_of

_ACCUMULATORS = (1, 4)
"""Vectors of partial results of a reduction. More of them hide the latency of additions, which take several cycles
while one may begin in each. Fewer suit short rows. There is a sketch for each value, and measurements decide."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on rows and vectors. All are chosen by hand; no benchmark compares other values of `image`.

    Attributes:
        rows: Upper limit on rows of a parallel iteration, when sampling.
        unrolled: Upper limit on unrolled vectors of a row, when sampling.
        vectors: Upper limit on vectors of columns of an iteration, when sampling.
        image: Upper limit on vectors of an image whose columns are one group: half of AVX-512's registers.
        whole: Elements of a reduction of everything from which on it is split into parts for all cores. Fewer take less
            time than a parallel loop.
        parts: Upper limit on these parts.
    """

    rows: int = 64
    unrolled: int = 16
    vectors: int = 8
    image: int = 16
    whole: int = 2**16
    parts: int = 64


_LIMITS = _Limits()


def row_by_row(sch: Schedule, lanes: int) -> list[Schedule]:
    """Return new schedules with reductions along rows or columns in one parallel loop, or [] if it does not apply.

    The rule applies if every reduction reads each element of some buffer once, and all buffers between the stages are
    indexed by the same rows. Along rows, the reduced axes are the innermost of what is read: partial results are in the
    lanes of `lanes` or 4 · `lanes` accumulators and combined in halves. Along columns, vectors have neighbouring
    columns.

    Args:
        sch: The schedule of the whole function. It is not changed.
        lanes: Elements of a vector, a power of two.
    """
    schedules: list[Any] = []
    if not in_plain_nests(sch) or not any(stage.reduced for stage in stages_of(sch)):
        return schedules
    for accumulators in _ACCUMULATORS:
        try:
            new = _scheduled(sch.copy(), lanes, accumulators)
        except RuntimeError as error:  # a ScheduleError, or a failed check in TVM
            if not _tvm.refusal(error):
                raise
            continue
        if new is None:
            break  # the rule does not apply with more accumulators either
        schedules.append(new)
    return schedules


def _scheduled(sch: Schedule, lanes: int, accumulators: int) -> Any:
    """Return the schedule, or None if the rule does not apply or more accumulators make no difference."""
    stages = _between_reductions_inlined(sch)
    rows = rows_of_stages(stages)
    if rows is None:
        return None
    reduction = first_reduction(stages)
    if reduction is None:
        return None
    first, read = reduction
    if first.step(read, first.innermost(first.reduced)) == 1:
        for more in reversed(_ACCUMULATORS):
            if parts := _parts(stages, rows, lanes * more):
                return _in_parts(sch, stages, rows, parts, lanes, more) if accumulators == 1 else None
        if accumulators > 1 and contiguous(first, first.reduced)[0] < 2 * accumulators * lanes:
            return None
        return _along_rows(sch, stages, rows, lanes, accumulators)
    if accumulators == 1 and rows[first.name] and first.step(read, first.innermost(rows[first.name])) == 1:
        return _along_columns(sch, stages, rows, lanes)
    return None


def first_reduction(stages: Sequence[Stage]) -> tuple[Stage, Access] | None:
    """Return the first reduction stage and the access that reads every element of a buffer once.

    Returns None if there is no such buffer, or a stage reduces bools.
    """
    if any(str(buffer.dtype) == "bool" for stage in stages if stage.reduced for buffer, _ in stage.writes):
        return None  # TVM has no least or greatest bool to initialize partial results with
    first = next(stage for stage in stages if stage.reduced)
    read = next((access for access in first.reads if _reads_all_once(first, access)), None)
    return None if read is None else (first, read)


def _reads_all_once(stage: Stage, access: Access) -> bool:
    """Return whether a reduction reads every element of a buffer once, unlike contractions and overlapping windows."""
    return prod(stage.extents.values()) == prod(int(extent) for extent in access[0].shape)


def _between_reductions_inlined(sch: Schedule) -> list[Stage]:
    """Inline the cheap stages between reductions into their readers and return the remaining stages.

    Stages with one value a row stay, since they are computed once, as do costly stages that are read twice, like
    softmax's exponentials.
    """
    undo_last_reshape(sch)
    stages = stages_of(sch)
    rows = {prod(e for v, e in s.extents.items() if v not in s.reduced) for s in stages if s.reduced}
    for stage in stages:
        readers = sum(any(r[0].same_as(w[0]) for r in s.reads for w in stage.writes) for s in stages)
        once = prod(stage.extents.values()) in rows
        if not (stage.reduced or stage.output or once or (stage.costly and readers > 1)):
            sch.compute_inline(sch.get_sblock(stage.name))
    return stages_of(sch)


def undo_last_reshape(sch: Schedule) -> None:
    """Make the stage before a final reshape write the output itself, in its own loops, which have the rows."""
    last = stages_of(sch)[-1]
    plain = all(index in last.extents for _, indices in last.reads for index in indices)
    if last.output and not last.reduced and len(last.reads) == 1 and not plain:
        sch.reverse_compute_inline(sch.get_sblock(last.name))


def rows_of_stages(stages: Sequence[Stage]) -> dict[str, tuple[Any, ...]] | None:
    """Return for each stage, by name, the variables that number the rows, in one order; None if stages disagree.

    Every stage must write and read what others need at its own row, so that all stages can run row by row.
    """
    if not any(stage.reduced for stage in stages):
        return None
    first = next(stage for stage in stages if stage.reduced)
    spatial = tuple(v for v in first.extents if v not in first.reduced)
    extents = tuple(first.extents[v] for v in spatial)
    known: dict[str, dict[int, Any]] = {stage.name: {} for stage in stages}
    known[first.name] = dict(enumerate(spatial))
    # For each buffer between stages, outputs included: dimension → number of the row variable that indexes it.
    read = [buffer for stage in stages for buffer, _ in stage.reads]
    between = [b for s in stages for b, _ in s.writes if not s.output or any(b.same_as(other) for other in read)]
    places: dict[Any, dict[int, int]] = {buffer: {} for buffer in between}
    accesses = [(s, access) for s in stages for access in (*s.reads, *s.writes) if access[0] in places]
    _propagate_rows(known, places, accesses)
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
    # Variables of extent 1 may be missing.
    common = [n for n in range(len(extents)) if all(n in mine for mine in known.values())]
    return {name: tuple(mine[n] for n in common) for name, mine in known.items()}


def _propagate_rows(
    known: dict[str, dict[int, Any]], places: dict[Any, dict[int, int]], accesses: Sequence[tuple[Stage, Any]]
) -> None:
    """Number the row variables of all stages through the buffers between them, from a stage where they are known."""
    for _ in known:
        for stage, (buffer, indices) in accesses:
            for number, variable in list(known[stage.name].items()):
                places[buffer].update({d: number for d, i in enumerate(indices) if variable.same_as(i)})
            for dimension, number in places[buffer].items():
                if indices[dimension] in stage.extents:
                    known[stage.name].setdefault(number, indices[dimension])


def _along_rows(
    sch: Schedule,
    stages: Sequence[Stage],
    rows: dict[str, tuple[Any, ...]],
    lanes: int,
    accumulators: int,
    most: int = _LIMITS.rows,
) -> Any:
    """Compute all stages at a loop over rows, with reductions in lanes, at most `most` rows in an iteration."""
    _add_missing_loops(sch, stages)
    nests: list[_Nest] = []
    for stage in stages:
        nests += _split_stage(sch, stage, rows[stage.name], lanes, accumulators)
    row_loops = [_row_loop(sch, nest) for nest in nests]
    tile = sch.sample_perfect_tile(row_loops[0], 2, most)
    inner = [sch.split(loop, tile)[1] for loop in row_loops]
    if len(inner) > 1:
        sch.merge(*inner)
    sch.parallel(sch.get_loops(nests[-1].block)[0])
    for nest in nests:
        _in_vectors(sch, nest, lanes)
    return sch


def _add_missing_loops(sch: Schedule, stages: Sequence[Stage]) -> None:
    """Put loops around blocks without loops, next to which rfactor fails."""
    for stage in stages:
        if not stage.extents:
            sch.add_unit_loop(sch.get_sblock(stage.name))


def _parts(stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]], width: int) -> int:
    """Return the number of parts into which a long reduction of everything is split, 0 for none.

    It is the only reduction, and the parts are whole vectors of `width` elements.
    """
    first, *others = stages
    if not first.reduced or any(prod(stage.extents.values()) > 1 for stage in others):
        return 0
    length = prod(first.extents[v] for v in first.reduced)
    along = [v for v in first.extents if v not in rows[first.name]]
    if length < _LIMITS.whole or prod(first.extents.values()) > length or contiguous(first, along)[0] < length:
        return 0
    return max((n for n in range(2, _LIMITS.parts + 1) if length % (n * width) == 0), default=0)


def _in_parts(
    sch: Schedule, stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]], parts: int, lanes: int, accumulators: int
) -> Any:
    """Reduce everything in parts, which become rows, and then reduce their results."""
    first, *others = stages
    _add_missing_loops(sch, stages)
    block = sch.get_sblock(first.name)
    loops = dict(zip(first.extents, sch.get_loops(block), strict=True))
    along = [loops[v] for v in first.extents if v not in rows[first.name]]
    length = prod(first.extents[v] for v in first.reduced) // parts
    part = sch.split(sch.fuse(*along) if len(along) > 1 else along[0], [None, length])[0]
    partial = sch.get(sch.rfactor(part, 0)).name_hint
    results = {stage.name: stage for stage in stages_of(sch)}
    number = next(v for v in results[partial].extents if v not in results[partial].reduced)
    _along_rows(sch, [results[partial]], {partial: (number,)}, lanes, accumulators, most=1)
    # TVM's block of the results has the name of the block that was split.
    rest = [results[name] for name in (first.name, *(stage.name for stage in others))]
    return _along_rows(sch, rest, {stage.name: () for stage in rest}, lanes, 1)


def _along_columns(sch: Schedule, stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]], lanes: int) -> Any:
    """Compute all stages at a loop over groups of neighbouring columns. Return None if a vector has more columns.

    The last row variable of more than one value numbers the columns. If vectors do not divide them, the last group has
    fewer, and the loops within a group are annotated to be peeled.
    """
    first = stages[0]
    last = first.innermost(rows[first.name])
    at, length = rows[first.name].index(last), first.extents[last]
    if length % lanes and (image := _image(stages, rows, lanes)):
        return _image_by_image(sch, stages, rows, image, lanes)
    width = min(lanes, power_of_two_below(length))
    if width < min(lanes, SHORTEST):
        return None
    groups, tile = [], None
    for stage in stages:
        block = sch.get_sblock(stage.name)
        loops = dict(zip(stage.extents, sch.get_loops(block), strict=True))
        along = [loops[v] for v in stage.extents if v not in rows[stage.name]]
        others = [loops[v] for v in rows[stage.name]]
        column = others.pop(at)
        vectors, lane = sch.split(column, [None, width])
        tile = tile or sch.sample_perfect_tile(vectors, 2, _LIMITS.vectors)
        group, vector = sch.split(vectors, tile)
        sch.reorder(*others, group, *along, vector, lane)
        groups.append(sch.fuse(*others, group) if others else group)
    return _columns_in_vectors(sch, stages, groups, 2, Columns(length, width) if length % width else None)


def _image(stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]], lanes: int) -> int:
    """Return how many of the last row variables number columns that are contiguous in all buffers, 0 for none.

    There must be several such variables, and few enough columns for one group.
    """
    count = min(contiguous(stage, rows[stage.name])[1] for stage in stages)
    extents = [stages[0].extents[v] for v in rows[stages[0].name]]
    fitting = [n for n in range(2, count + 1) if min(lanes, SHORTEST) <= prod(extents[-n:]) <= _LIMITS.image * lanes]
    return max((n for n in fitting if extents[-n] > 1 and prod(extents[1 - n :]) > 1), default=0)


def _image_by_image(
    sch: Schedule, stages: Sequence[Stage], rows: dict[str, tuple[Any, ...]], image: int, lanes: int
) -> Any:
    """Compute all stages at a loop over images, whose columns continue over the ends of lines.

    `image` is the number of row variables of an image.
    """
    groups = []
    for stage in stages:
        loops = dict(zip(stage.extents, sch.get_loops(sch.get_sblock(stage.name)), strict=True))
        along = [loops[v] for v in stage.extents if v not in rows[stage.name]]
        every = [loops[v] for v in rows[stage.name]]
        others, columns = every[:-image], every[-image:]
        sch.reorder(*others, *along, *columns)
        outermost = sch.get_loops(sch.get_sblock(stage.name))[0]
        groups.append(sch.fuse(*others) if len(others) > 1 else others[0] if others else sch.add_unit_loop(outermost))
    first = stages[0]
    length = prod(first.extents[v] for v in rows[first.name][-image:])
    return _columns_in_vectors(sch, stages, groups, image, Columns(length, lanes))


def _columns_in_vectors(
    sch: Schedule, stages: Sequence[Stage], groups: Sequence[Any], inner: int, mark: Columns | None
) -> Any:
    """Merge the stages' loops over groups and make vectors of the columns in the `inner` innermost loops.

    `mark` is the annotation of a group's loops if they are to be peeled.
    """
    sch.parallel(sch.merge(*groups) if len(groups) > 1 else groups[0])
    for stage in stages:
        block = sch.get_sblock(stage.name)
        *unrolled, lane = sch.get_loops(block)[-inner:]
        for loop in unrolled:
            sch.unroll(loop)
        sch.vectorize(lane)
        nests = [block]
        if stage.reduced:
            nests.append(sch.decompose_reduction(block, sch.get_loops(block)[1]))
        if mark:
            for nest in nests:
                mark.put(sch, sch.get_loops(nest)[1])
    return sch


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loop nest of one block, rows outermost.

    Attributes:
        block: The block.
        rows: Number of loops over rows.
        length: Elements along the row.
        width: Elements that the innermost loop covers. The loop around it covers the rest.
        reduces: Whether a loop within the row is a reduction.
    """

    block: Any
    rows: int
    length: int
    width: int
    reduces: bool


def _split_stage(sch: Schedule, stage: Stage, rows: tuple[Any, ...], lanes: int, accumulators: int) -> list[_Nest]:
    """Order a stage's loops, fuse those along the row, split a reduction into lanes, and return the resulting nests."""
    block = sch.get_sblock(stage.name)
    if not stage.extents:
        return [_Nest(block, rows=0, length=1, width=1, reduces=False)]
    loops = dict(zip(stage.extents, sch.get_loops(block), strict=True))
    along = [v for v in stage.extents if v not in rows]
    if list(loops) != [*rows, *along]:
        sch.reorder(*(loops[v] for v in (*rows, *along)))
    length, fused = contiguous(stage, along)
    if fused > 1:
        sch.fuse(*(loops[v] for v in along[len(along) - fused :]))
    width = min(power_of_two_below(length), lanes * (accumulators if stage.reduced else 1))
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


def _row_loop(sch: Schedule, nest: _Nest) -> Any:
    """Fuse the loops of a nest that number rows into one."""
    if nest.rows == 0:
        return sch.add_unit_loop(nest.block if not sch.get_loops(nest.block) else sch.get_loops(nest.block)[0])
    loops = sch.get_loops(nest.block)[: nest.rows]
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _in_vectors(sch: Schedule, nest: _Nest, lanes: int) -> None:
    """Vectorize the innermost loop within the row, unroll around it, and initialize before the reduction loops."""
    loops = sch.get_loops(nest.block)[2:]
    if nest.length % nest.width:
        # TVM refuses to vectorize blocks with a predicate, and to decompose their reductions.
        Peel(nest.length, lanes).put(sch, loops[-2])
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


def _unroll_some(sch: Schedule, loop: LoopRef) -> None:
    """Split a loop by a sampled factor and unroll the inner one."""
    sch.unroll(sch.split(loop, sch.sample_perfect_tile(loop, 2, _LIMITS.unrolled))[1])
