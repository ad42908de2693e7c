"""Choose the roles of a contraction's axes in a register tile: which is vectorized, which is broadcast against it.

Input: a contraction and a device. Output: the `Roles` that are cheapest by an instruction count, or None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from felixlike.hardware import Device, estimate
from felixlike.hardware.vectors import TILE, widths
from felixlike.spaces.contraction import Axis, Contraction, Operand, slides
from felixlike.spaces.padding import whole_vectors

_REUSES = 16
"""Rows from which copying an operand into panels pays: a load and a store are an eighth of as many products. Chosen by
hand: no benchmark compares other values."""

_VECTORS_PER_CORE = 4
"""Vectors for each core from which all rows can share a copied operand: two tiles of two vectors. Chosen by hand."""

_FEWEST_ROWS = 6
"""Rows from which the innermost axis suffices. On Ice Lake, with rows along a batch of 16 images, a transposed
convolution 1024×4×4 → 512×8×8 takes 0.68 of the time, and a 3×3 convolution 512×2×2 0.23, but a 1×1 convolution
256×4×4, whose weights stay in the cache, three times as long. Chosen by hand."""

SHARED_VECTORS = TILE.vectors // 2
"""Vectors of a row of a tile in estimates of what fits into a cache, before the row's length is chosen."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What the axes of a contraction are used for. None where there is no such axis or operand.

    Attributes:
        vector: The vectorized axis.
        rows: The axis that is broadcast against the vectors.
        window: Another axis along which an operand is reused. Tiles along it share a copy of the padded input, or what
            one of them has brought into the caches.
        summed: The outermost reduction axis that does not belong to a window.
        lanes: Elements of a vector.
        panel: The operand that is copied into panels first.
    """

    vector: Axis
    rows: Axis | None
    window: Axis | None
    summed: Axis | None
    lanes: int
    panel: Operand | None


def choose_roles(contraction: Contraction, device: Device, *, padded: bool = False) -> Roles | None:
    """Return the cheapest vector axis and the roles that follow from it, or None if no axis is suitable.

    `padded` says whether axes may be padded to whole vectors.
    """
    lanes = device.unit.lanes(contraction.item_bits)
    candidates: list[tuple[float, Roles]] = []
    for axis in contraction.spatial:
        extent = whole_vectors(axis.extent, lanes) if padded and axis.extent > 1 else axis.extent
        width = next((w for w in widths(lanes) if extent % w == 0), None)
        holding = [o for o in contraction.operands if axis.place in o.axes]
        if width is None or not holding:
            continue
        strided = [o for o in holding if not o.constant and not o.contiguous(axis)]
        if strided and len(holding) > 1:
            continue  # both operands would need a new layout
        rows = _rows_axis(contraction, axis, holding, shared_bytes(contraction, width) > device.tile_bytes)
        panel = holding[0] if len(holding) == 1 and _wants_panel(contraction, holding[0], rows, bool(strided)) else None
        if strided and (panel is None or rows is None):
            continue  # the copy would be used only once
        left = [a for a in contraction.spatial if a not in (axis, rows) and a.extent > 1]
        window = next((a for a in reversed(left) if _reuses(contraction, a)), None)
        summed = next((a for a in contraction.reduction if a.extent > 1 and not slides(contraction, a)), None)
        roles = Roles(axis, rows, window, summed, width, panel)
        candidates.append((_cost(contraction, roles, extent, strided, device.cores), roles))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _cost(contraction: Contraction, roles: Roles, extent: int, strided: list[Operand], cores: int) -> float:
    """Estimate the time of the contraction, in products: the products, the copies and the transposed write-back.

    Each core copies strided operands by itself if rows are needed to keep all cores busy. A write-back is transposed if
    its vectors lie across the output's last dimension. `extent` is that of the vector axis, padded.
    """
    others = [a for a in contraction.axes if a is not roles.vector]
    products = extent // roles.lanes * math.prod(a.extent for a in others)
    copied = sum(extent * math.prod(a.extent for a in others if a.place in o.axes) for o in strided)
    without_rows = math.prod(a.extent for a in contraction.spatial if a not in (roles.vector, roles.rows))
    if extent // roles.lanes * without_rows < _VECTORS_PER_CORE * cores:
        copied *= cores
    outputs = extent * math.prod(a.extent for a in others if not a.reduced)
    transposed = outputs if contraction.written[-1] != roles.vector.place else 0
    return (
        products * (estimate.COSTS.unshared if roles.rows is None else 1.0)
        + estimate.COSTS.copied * copied
        + estimate.COSTS.transposed * transposed
    )


def shared_bytes(contraction: Contraction, lanes: int) -> int:
    """Return the bytes of an operand's vectors that the tiles of a row share in the whole reduction."""
    return math.prod(a.extent for a in contraction.reduction) * SHARED_VECTORS * lanes * contraction.item_bits // 8


def _rows_axis(contraction: Contraction, vector: Axis, holding: list[Operand], far: bool) -> Axis | None:
    """Return the axis along which one of the operands is reused: the innermost one, or the longest if that is short.

    Tiles of few rows load vectors too often that do not stay in the L2 cache in between (`far`): with images of 4×4,
    rows of a batch of 16 are faster. An operand that is no constant is copied into panels, along the innermost axis.
    """
    others = [a for a in contraction.spatial if a is not vector and a.extent > 1]
    if len(holding) == 1:
        independent = [a for a in others if a.place not in holding[0].axes]
        if independent:
            few = far and holding[0].constant and independent[-1].extent < _FEWEST_ROWS
            return max(reversed(independent), key=lambda a: a.extent) if few else independent[-1]
    reusing = [a for a in others if _reuses(contraction, a)]
    return reusing[-1] if reusing else None


def _reuses(contraction: Contraction, axis: Axis) -> bool:
    """Return whether exactly one operand depends on an axis, so that the other is reused along it."""
    return sum(axis.place in operand.axes for operand in contraction.operands) == 1


def _wants_panel(contraction: Contraction, operand: Operand, rows: Axis | None, strided: bool) -> bool:
    """Return whether the vectorized operand should be copied into panels.

    It should if it is strided, if it is copied anyway, or if enough rows reuse it. No axis may slide over it, because
    the copies would overlap.
    """
    sliding = any(slides(contraction, axis) for axis in contraction.spatial if axis.place in operand.axes)
    used_again = rows is not None and rows.extent >= _REUSES
    return not operand.constant and not sliding and (strided or operand.copied or used_again)
