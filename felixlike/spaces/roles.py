"""What the axes of a contraction are for in a register tile: which lies in vectors, which is broadcast against it.

In: a contraction, a device. Out: `Roles`, the cheapest by a count of instructions, or None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike import _tvm
from felixlike.hardware import Device, estimate
from felixlike.hardware.vectors import widths
from felixlike.spaces.contraction import Axis, Contraction, Operand
from felixlike.spaces.padding import whole_vectors

_REUSES = 16
"""Rows from which copying an operand into panels pays: a load and a store are an eighth of as many products.  Chosen by
hand: no benchmark compares other values."""

_ENOUGH = 4
"""Vectors for each core with which all rows can share what is copied: tiles of two, twice.  Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What the axes of a contraction are for.

    vector: in vectors.  rows: broadcast against them.  window: another along which an operand is used again: tiles
    along it share a copy of the padded input, or what one of them brought into the caches.  summed: the outermost
    reduction, which is no window's.  lanes: of a vector.  panel: the operand that is copied first.  None where there is
    no such axis or operand."""

    vector: Axis
    rows: Axis | None
    window: Axis | None
    summed: Axis | None
    lanes: int
    panel: Operand | None


def choose_roles(contraction: Contraction, device: Device, *, padded: bool = False) -> Roles | None:
    """The cheapest vector axis and what follows from it; None where no axis is fit.  padded: whether axes may be padded
    to whole vectors."""
    lanes = device.unit.lanes(contraction.item_bits)
    found: list[tuple[float, Roles]] = []
    for axis in contraction.spatial:
        extent = whole_vectors(axis.extent, lanes) if padded and axis.extent > 1 else axis.extent
        width = next((w for w in widths(lanes) if extent % w == 0), None)
        holding = [o for o in contraction.operands if axis.place in o.axes]
        if width is None or not holding:
            continue
        apart = [o for o in holding if not o.constant and not o.contiguous(axis)]
        if apart and len(holding) > 1:
            continue  # both operands would have to be laid out anew
        rows = _rows_axis(contraction, axis, holding)
        panel = holding[0] if len(holding) == 1 and _wants_panel(contraction, holding[0], rows, bool(apart)) else None
        if apart and (panel is None or rows is None):
            continue  # copied for nothing: it is used once
        left = [a for a in contraction.spatial if a not in (axis, rows) and a.extent > 1]
        window = next((a for a in reversed(left) if _reuses(contraction, a)), None)
        summed = next((a for a in contraction.reduction if a.extent > 1 and not slides(contraction, a)), None)
        roles = Roles(axis, rows, window, summed, width, panel)
        found.append((_cost(contraction, roles, extent, apart, device.cores), roles))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _cost(contraction: Contraction, roles: Roles, extent: int, apart: list[Operand], cores: int) -> float:
    """Time in products: those themselves, copies of what is apart in memory, by each core where it takes rows to keep
    them all busy, and what transposes an output whose vectors lie across.

    extent: of the axis in vectors, padded."""
    others = [a for a in contraction.axes if a is not roles.vector]
    products = extent // roles.lanes * math.prod(a.extent for a in others)
    copied = sum(extent * math.prod(a.extent for a in others if a.place in o.axes) for o in apart)
    without_rows = math.prod(a.extent for a in contraction.spatial if a not in (roles.vector, roles.rows))
    if extent // roles.lanes * without_rows < _ENOUGH * cores:
        copied *= cores
    outputs = extent * math.prod(a.extent for a in others if not a.reduced)
    transposed = outputs if contraction.written[-1] != roles.vector.place else 0
    return (
        products * (estimate.UNSHARED if roles.rows is None else 1.0)
        + estimate.COPIED * copied
        + estimate.TRANSPOSED * transposed
    )


def _rows_axis(contraction: Contraction, vector: Axis, holding: list[Operand]) -> Axis | None:
    """The innermost axis along which either operand is used again."""
    others = [a for a in contraction.spatial if a is not vector and a.extent > 1]
    if len(holding) == 1:
        apart = [a for a in others if a.place not in holding[0].axes]
        if apart:
            return apart[-1]
    once = [a for a in others if _reuses(contraction, a)]
    return once[-1] if once else None


def _reuses(contraction: Contraction, axis: Axis) -> bool:
    """Whether one operand alone depends on an axis, so that the other is used again along it."""
    return sum(axis.place in operand.axes for operand in contraction.operands) == 1


def _wants_panel(contraction: Contraction, operand: Operand, rows: Axis | None, apart: bool) -> bool:
    """Whether the operand in vectors should be copied into panels: it is apart in memory, or its rows are and it is
    used again, or it is copied anyway.  No axis may slide over it: copies would overlap."""
    sliding = any(slides(contraction, axis) for axis in contraction.spatial if axis.place in operand.axes)
    used_again = rows is not None and rows.extent >= _REUSES
    return not operand.constant and not sliding and (apart or operand.copied or used_again)


def slides(contraction: Contraction, axis: Axis) -> bool:
    """Whether an index has both the axis and one of the other kind, so that a window slides along it."""
    others = [a for a in contraction.axes if a.reduced != axis.reduced]
    indices = [index for operand in contraction.operands for index in operand.indices]
    return any(
        _tvm.uses(index, axis.variable) and any(_tvm.uses(index, other.variable) for other in others)
        for index in indices
    )
