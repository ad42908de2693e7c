"""Compute recurrent layers with weights in bfloat16 where that is faster.

    s = G[t] + h · W  →  s = G[t] + h · float32(N)            N = bfloat16(W), packed once
                      →  s = G[t] + bfloat16(h) · N           in pairs, by an instruction

Input: the function of a layer (`frontend/importers/recurrent_kernel.py`), which no schedule can change. Output: two
sketches, whose only instruction names the form, and a postprocessor that generates the kernel in this form. All steps
load the same weights from a cache, so that half of the bytes take half of the time. Where a batch shares them, the
arithmetic takes longer, and pairs halve that. Sums, gates and states stay float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRef, Buffer, Func, Schedule, Stmt, TirExpr
from felixlike.codegen.annotations import LoopAnnotation, Narrow, Pairs
from felixlike.frontend.constants import PACKING, noted_constants
from felixlike.frontend.importers.recurrent_kernel import LAYER, Layer, kernel
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS, Device, Form, estimate
from felixlike.spaces.cpu import bfloat16_pairs

_WEIGHTS = 1
"""Position of the weights of h among the function's parameters."""

_FLOAT_BYTES = 4

_ANNOTATIONS: dict[Form | None, LoopAnnotation] = {
    None: Narrow(PRECISIONS.index(FLOAT32)),
    Form.WEIGHTS: Narrow(PRECISIONS.index(BFLOAT16)),
    Form.PAIRS: Pairs(PRECISIONS.index(BFLOAT16)),
}
"""What the block of a layer is annotated with, by form."""


def recurrent_forms(schedule: Schedule, block: BlockRef, device: Device) -> list[Schedule]:
    """Return schedules of a recurrent layer, one with rounded factors, or [] if that is not allowed or not faster."""
    func = schedule.mod["main"]
    layer = _layer(func, device)
    if layer is None or schedule.get_sref(block).parent is not None:
        return []
    form = faster_form(layer)
    forms = [] if form is None else [form, None]
    schedules = [schedule.copy() for _ in forms]
    for new, each in zip(schedules, forms, strict=True):
        note = _ANNOTATIONS[each]
        new.annotate(new.get_sblock(str(schedule.get(block).name_hint)), note.key, note.value)
    return schedules


def _layer(func: Func, device: Device) -> Layer | None:
    """Return the layer that a function computes if its products may be rounded on a device."""
    if device.precision != BFLOAT16.name or not func.attrs or LAYER not in func.attrs:
        return None
    layer = Layer.from_description(func.attrs[LAYER], device)
    shapes = [tuple(int(extent) for extent in parameter.shape) for parameter in func.params[: _WEIGHTS + 1]]
    as_made = shapes == [layer.gates_shape, layer.weights_shape]  # not for another device
    return layer if as_made and _WEIGHTS in noted_constants(func) else None


def faster_form(layer: Layer) -> Form | None:
    """Return the form of a layer that is estimated to be fastest, or None if that is float32.

    Of two forms that take the same time, it is the one that rounds less.
    """
    times = _times(layer)
    fastest = min(times, key=lambda form: times[form])
    return fastest if times[fastest] < times[None] else None


def _times(layer: Layer) -> dict[Form | None, float]:
    """Return the estimated time that a step takes with a vector of weights in each form, in products.

    It is the larger one of the arithmetic and of the load, which rows of a tile share.
    """
    rows = layer.rows[0][0]
    weights = _FLOAT_BYTES * math.prod(layer.weights_shape)
    near = weights <= layer.device.l1_bytes * (layer.device.cores if layer.shares_steps else 1)
    load = estimate.COSTS.unshared if near else estimate.COSTS.loaded
    times: dict[Form | None, float] = {
        None: max(rows, load),
        Form.WEIGHTS: max(rows + estimate.COSTS.unpacked, load / 2),
    }
    if layer.device.multiplies_pairs:
        copied = rows * estimate.COSTS.rounded / (layer.cell.gates * layer.hidden)
        times[Form.PAIRS] = max(rows / bfloat16_pairs.PAIR, load / 2) + copied
    return times


def in_its_form(schedule: Schedule, device: Device) -> bool:
    """Replace a layer's kernel by the one that its block is annotated with. Return whether there is one."""
    func = schedule.mod["main"]
    whole = func.body.block
    form = next((form for form, note in _ANNOTATIONS.items() if _noted(whole, note)), None)
    schedule.unannotate(schedule.get_sblock(str(whole.name_hint)), _ANNOTATIONS[form].key)
    if form is None:
        return True
    layer = _layer(func, device)
    if layer is None:
        return False
    layer = replace(layer, form=form)
    weights = func.params[_WEIGHTS]
    packed = _tvm.tirx.decl_buffer([_place(e) for e in layer.weights_shape], layer.weights_type, "packed")
    outputs = len(layer.output_shapes)
    operands = [packed if parameter.same_as(weights) else parameter for parameter in func.params]
    body = kernel(layer, operands[:-outputs], operands[-outputs:])
    cells = _tvm.s_tir.SBlockRealize([], True, _tvm.s_tir.SBlock([], [], [], str(whole.name_hint), body))
    both = _tvm.tirx.stmt_seq(_packing(layer, weights, packed), cells)
    root = _tvm.s_tir.SBlock([], [], [], "root", both, alloc_buffers=[packed])
    schedule.state.replace(schedule.get_sref(schedule.get_sblock(str(whole.name_hint))), root)
    return True


def _noted(block: Block, note: LoopAnnotation) -> bool:
    """Return whether a block has an annotation."""
    return note.key in block.annotations and int(block.annotations[note.key]) == note.value


def _place(number: int) -> TirExpr:
    """Return a number in the type of indices."""
    return _tvm.tirx.const(number, "int64")


def _packing(layer: Layer, weights: Buffer, packed: Buffer) -> Stmt:
    """Return the loops that round the weights and lay them out for the form of a layer."""
    tirx, zero = _tvm.tirx, _tvm.tirx.const(0, str(weights.dtype))
    loops = [tirx.Var(f"i{place}", "int64") for place in range(len(packed.shape))]
    axes = [tirx.Var(f"v{place}", "int64") for place in range(len(packed.shape))]
    d, n, unit, gate, column, *both = axes
    if both:
        unit = unit * bfloat16_pairs.PAIR + both[0]
    value: Any = weights[d, n, unit, gate, column]
    if both and layer.hidden % bfloat16_pairs.PAIR:
        value = tirx.if_then_else(unit < layer.hidden, value, zero)

    def iterator(axis: Any, extent: Any) -> Any:
        return tirx.IterVar(_tvm.ir.Range(_place(0), extent), axis, tirx.IterVar.DataPar)

    block = _tvm.s_tir.SBlock(
        list(map(iterator, axes, packed.shape)),
        [tirx.BufferRegion(weights, [_tvm.ir.Range(_place(0), extent) for extent in weights.shape])],
        [tirx.BufferRegion(packed, [_tvm.ir.Range.from_min_extent(axis, _place(1)) for axis in axes])],
        "rounded_weights",
        tirx.BufferStore(packed, value.astype(layer.weights_type), axes),
        annotations={PACKING: True},
    )
    nest: Stmt = _tvm.s_tir.SBlockRealize(loops, True, block)
    for loop, extent in reversed(list(zip(loops, packed.shape, strict=True))):
        nest = tirx.For(loop, _place(0), extent, tirx.ForKind.SERIAL, nest)
    return nest
