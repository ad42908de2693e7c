"""Bring the blocks around a contraction into the form that a tile needs.

    P = pad(relu(X)); Y = P · W; Z = Y + b; V = max(Z, 0)     →     P = pad(relu(X)); Y = P · W; V = max(Y + b, 0)

Blocks after the contraction become one epilogue. Elementwise blocks before it are inlined. Blocks that pad or call
functions stay, to be copied where they are needed, so that neither is left in the hot loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import BlockRef, Schedule
from felixlike.spaces.blocks import costs, elementwise, loads_of


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The blocks around a contraction that stay.

    Attributes:
        copies: Blocks that compute an operand before it is used.
        epilogue: The last block after the contraction. None if the contraction writes the function's output.
    """

    copies: tuple[Any, ...]
    epilogue: Any | None


class _NoPlace(Exception):
    """Raised if a block cannot be placed around a tile."""


def settle_surroundings(schedule: Schedule, block: BlockRef, *, stored: bool = False) -> Surroundings | None:
    """Inline the blocks around a block of a schedule.

    With `stored`, operands that other blocks compute are copies, even where they could be inlined.
    Returns None if another block is not elementwise or the blocks after it have several ends. The schedule may then be
    changed in part.
    """
    try:
        return _inline_surroundings(schedule, block, stored=stored)
    except _NoPlace:
        return None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        return None


def _inline_surroundings(schedule: Schedule, block: BlockRef, *, stored: bool) -> Surroundings | None:
    """Inline the blocks around `block`."""
    chain = _blocks_after(schedule, block)
    if chain is None:
        return None
    copies: list[Any] = []
    for producer in schedule.get_producers(block):
        copies += _inline_producer(schedule, producer, stored=stored)
    names = {str(schedule.get(b).name_hint) for b in (block, *chain)}
    for consumer in chain:
        for producer in schedule.get_producers(consumer):
            if str(schedule.get(producer).name_hint) not in names and _inline_producer(schedule, producer):
                return None
    for consumer in chain[:-1]:
        schedule.compute_inline(consumer)
    if chain:
        _follow(schedule, chain[-1], block)
    return Surroundings(tuple(copies), chain[-1] if chain else None)


def _blocks_after(schedule: Schedule, block: BlockRef) -> list[Any] | None:
    """Return the blocks after a block, each after those that it reads.

    The blocks may fork and join again, as x · sigmoid(x) does. Returns None if they have two ends or one is not
    elementwise.
    """
    consumers_by_name: dict[str, Any] = {}

    def visit(at: Any) -> None:
        for consumer in schedule.get_consumers(at):
            name = str(schedule.get(consumer).name_hint)
            if name not in consumers_by_name:
                visit(consumer)
                consumers_by_name[name] = consumer

    visit(block)
    blocks = list(reversed(consumers_by_name.values()))
    ends = [b for b in blocks if not schedule.get_consumers(b)]
    return blocks if len(ends) <= 1 and all(elementwise(schedule, b) for b in blocks) else None


def _inline_producer(schedule: Schedule, block: BlockRef, *, stored: bool = False) -> list[Any]:
    """Inline a block's producers, and the block too unless it has calls or is stored. Return the blocks that stay."""
    if not elementwise(schedule, block):
        raise _NoPlace("a block contains a reduction")
    for producer in schedule.get_producers(block):
        if _inline_producer(schedule, producer):
            raise _NoPlace("two consecutive blocks pad")
    if stored or costs(schedule, block):
        return [block]
    schedule.compute_inline(block)
    return []


def _follow(schedule: Schedule, epilogue: BlockRef, block: BlockRef) -> None:
    """Transform the epilogue's loops to the order of the block's output.

    for y: Y[y] = X[y mod 2, y div 2]   →   for p, q: Y[2·q + p] = X[p, q]

    TVM would move the first form into loops over p, where half of the values it reads are not computed yet. Raises
    _NoPlace if there is no such order, as for a part of the output.
    """
    statement, source = schedule.get(epilogue), schedule.get(block).writes[0].source
    variables = [iterator.var for iterator in statement.iter_vars]
    (indices, *others) = [load.indices for load in loads_of(statement.body, source)]
    if any(not _tvm.structural_equal(indices, other) for other in others):
        raise _NoPlace("the epilogue reads two elements")
    if not all(any(index.same_as(variable) for variable in variables) for index in indices):
        schedule.transform_block_layout(epilogue, _tvm.tirx.IndexMap(variables, list(indices), None))
