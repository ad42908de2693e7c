"""What stands around a contraction in its function, brought into the form that a tile needs.

    P = pad(relu(X)); Y = P · W; Z = Y + b; V = max(Z, 0)     →     P = pad(relu(X)); Y = P · W; V = max(Y + b, 0)

What comes after the block becomes one epilogue; what computes single elements before it is inlined; what pads or
calls functions is kept, to be copied where it is needed, so that neither is left in the hot loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.spaces.blocks import costs, elementwise, loads_of


@dataclass(frozen=True, slots=True)
class Surroundings:
    """copies: blocks that compute an operand before it is used.  epilogue: the last block after the contraction;
    None where the contraction's output is the function's."""

    copies: tuple[Any, ...]
    epilogue: Any | None


class _NoPlace(Exception):
    """A block does what does not go around a tile."""


def settle_surroundings(schedule: Schedule, block: BlockRef) -> Surroundings | None:
    """Inline around a block of a schedule; None, the schedule then half changed, where other blocks do more than
    compute single elements, or what comes after it has several ends."""
    try:
        return _settled(schedule, block)
    except _NoPlace:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None


def _settled(schedule: Schedule, block: BlockRef) -> Surroundings | None:
    chain = _after(schedule, block)
    if chain is None:
        return None
    copies: list[Any] = []
    for producer in schedule.get_producers(block):
        copies += _settle_producer(schedule, producer)
    own = {str(schedule.get(b).name_hint) for b in (block, *chain)}
    for consumer in chain:
        for producer in schedule.get_producers(consumer):
            if str(schedule.get(producer).name_hint) not in own and _settle_producer(schedule, producer):
                return None
    for consumer in chain[:-1]:
        schedule.compute_inline(consumer)
    if chain:
        _follow(schedule, chain[-1], block)
    return Surroundings(tuple(copies), chain[-1] if chain else None)


def _after(schedule: Schedule, block: BlockRef) -> list[Any] | None:
    """The blocks after a block, each after those it reads; it may fork on the way, as x · sigmoid(x) does, but not end
    in two.  None where there are two ends, or one that does more than compute single elements."""
    found: dict[str, Any] = {}

    def visit(at: Any) -> None:
        for consumer in schedule.get_consumers(at):
            name = str(schedule.get(consumer).name_hint)
            if name not in found:
                visit(consumer)
                found[name] = consumer

    visit(block)
    blocks = list(reversed(found.values()))
    ends = [b for b in blocks if not schedule.get_consumers(b)]
    return blocks if len(ends) <= 1 and all(elementwise(schedule, b) for b in blocks) else None


def _settle_producer(schedule: Schedule, block: BlockRef) -> list[Any]:
    """Inline what is before a block, and the block too unless it pads.  The blocks that stay."""
    if not elementwise(schedule, block):
        raise _NoPlace("a block sums up")
    for producer in schedule.get_producers(block):
        if _settle_producer(schedule, producer):
            raise _NoPlace("two blocks pad, one after the other")
    if costs(schedule, block):
        return [block]
    schedule.compute_inline(block)
    return []


def _follow(schedule: Schedule, epilogue: BlockRef, block: BlockRef) -> None:
    """Let an epilogue that takes elements from all over a block's output run in that output's order instead.

    for y: Y[y] = X[y mod 2, y div 2]   →   for p, q: Y[2·q + p] = X[p, q]

    TVM would move the first form into loops over p where half of what it writes is not there yet. Raises _NoPlace
    where there is no such order, as for a part of the output."""
    statement, source = schedule.get(epilogue), schedule.get(block).writes[0].source
    variables = [iterator.var for iterator in statement.iter_vars]
    (indices, *others) = [load.indices for load in loads_of(statement.body, source)]
    if any(not _tvm.structural_equal(indices, other) for other in others):
        raise _NoPlace("the epilogue reads two elements")
    if not all(any(index.same_as(variable) for variable in variables) for index in indices):
        schedule.transform_block_layout(epilogue, _tvm.tirx.IndexMap(variables, list(indices), None))
