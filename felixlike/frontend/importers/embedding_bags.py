"""Convert PyTorch's embedding bags to one kernel: sums or means of the rows that each bag lists.

    for bag in parallel bags:
        for group of columns:                              in registers
            sum = 0
            for i in offsets[bag] .. offsets[bag + 1]: sum += table[indices[i], group]
            result[bag, group] = sum

Input: a node of an ExportedProgram's graph and TVM's importer. Output: the Relax value. The decomposition, which GPUs
and other cases use, writes each row to memory, compares each index with all offsets, and scatters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt, TirExpr
from felixlike.codegen.build import Builder, named, seq
from felixlike.hardware import kind_of, target_device

_OPERATORS = ("_embedding_bag_forward_only.default", "embedding_bag.padding_idx", "embedding_bag.default")
"""Operators of bags. All but the first are decomposed into the first."""
_DTYPES = ("float32", "float64")
_GROUP = 8
"""Vectors of columns that are summed at once. Chosen by hand: they fit into half of the registers of AVX2."""


def bag_converters(program: Any, target: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converter by operator if all bags of an ExportedProgram can be converted, else none.

    This needs a CPU as target, fixed sizes, floats, sums or means, and that only the result is used.
    """
    calls = [node for node in program.graph.nodes if getattr(node.target, "__name__", "") in _OPERATORS]
    if not calls or target is None or not kind_of(target).on_host or not all(map(_is_supported, calls)):
        return {}
    return {_OPERATORS[0]: partial(_convert, device=target_device(target))}


def _is_supported(node: Any) -> bool:
    """Return whether a call can be converted."""
    table, indices, offsets, mode = _arguments(node)[:4]
    tensors = [argument.meta["val"] for argument in (table, indices, offsets)]
    fixed = all(isinstance(size, int) and size > 0 for tensor in tensors for size in tensor.shape)
    others = [user for user in node.users if getattr(user.target, "__name__", "") != "getitem" or user.args[1] != 0]
    alone = not any(user.users for user in others)
    return fixed and alone and mode in (0, 1) and str(tensors[0].dtype).removeprefix("torch.") in _DTYPES


def _arguments(node: Any) -> tuple[Any, ...]:
    """Return table, indices, offsets, mode, factors, whether the last offset is the end, and the index to skip."""
    defaults = (None, None, None, False, 0, False, None, False, -1)
    names = ("scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset", "padding_idx")
    values = [*node.args, *defaults[len(node.args) :]]
    for place, name in enumerate(names, start=3):
        values[place] = node.kwargs.get(name, values[place])
    table, indices, offsets, _, mode, _, factors, include_last, padding = values
    return table, indices, offsets, mode, factors, include_last, -1 if padding is None else padding


def _convert(node: Any, importer: Any, *, device: Any) -> Any:
    """Convert aten._embedding_bag_forward_only. Only the first of its results is returned."""
    emit, env = importer.block_builder.emit, importer.env
    table, indices, offsets, mode, factors, include_last, padding = _arguments(node)
    # Offsets that are drawn for shapes alone must be 0. `index_ranges` draws 0 for what it cannot follow, like abs.
    starts = emit(_tvm.relax.op.abs(env[offsets]))
    inputs = [env[table], env[indices], starts, *([] if factors is None else [env[factors]])]
    bags = offsets.meta["val"].shape[0] - bool(include_last)
    lanes = device.unit.lanes(_tvm.bits(str(env[table].ty.dtype)))
    kernel = partial(_kernel, bags=bags, padding=padding, means=mode == 1, lanes=lanes)
    result = importer.block_builder.emit_te(kernel, *inputs, primfunc_name_hint="embedding_bag")
    return emit(_tvm.relax.Tuple([result]))


def _kernel(*inputs: Any, bags: int, padding: int, means: bool, lanes: int) -> Any:
    """Return the TE tensor of the results (bag, column)."""
    shape, dtype = (bags, int(inputs[0].shape[1])), str(inputs[0].dtype)
    reads = [_tvm.tirx.decl_buffer(x.shape, str(x.dtype), x.op.name) for x in inputs]  # which start at offset 0
    writes = _tvm.tirx.decl_buffer(shape, dtype, "bags")

    def whole(buffers: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        table, indices, offsets, *factors = buffers
        return _Bags(table, indices, offsets, factors, outputs[0], padding, means, Builder("int64", lanes)).all()

    return _tvm.te.extern([shape], inputs, whole, "embedding_bag", None, reads, [writes])


@dataclass
class _Bags:
    """Generates the sums of bags.

    Attributes:
        table: Rows (row, column).
        indices: Row of each element.
        offsets: First element of each bag, and the end of the last one if there is one more than bags.
        factors: At most one buffer, with a factor for each element.
        result: The output (bag, column).
        padding: Row to skip, or a negative number.
        means: Whether sums are divided by the numbers of elements.
        build: Builder with the elements of a vector.
    """

    table: Buffer
    indices: Buffer
    offsets: Buffer
    factors: list[Buffer]
    result: Buffer
    padding: int
    means: bool
    build: Builder

    def all(self) -> Stmt:
        """Return the loop over bags."""
        bags, width = map(int, self.result.shape)
        columns = self.build.lanes * _GROUP

        def bag(number: Any) -> Stmt:
            begin, bind_begin = named("begin", self._clamped(self.offsets[number]))
            end, bind_end = named("end", self._end(number, bags))
            part = partial(self._group, number, begin, end)
            groups = []
            if width >= columns:
                whole = self._pieces(columns)
                groups.append(self.build.loop("group", width // columns, lambda g: part(g * columns, whole)))
            if rest := width % columns:
                groups.append(part(self.build.const(width - rest), self._pieces(rest)))
            return seq(bind_begin, bind_end, *groups)

        return self.build.loop("bag", bags, bag, "PARALLEL")

    def _clamped(self, place: TirExpr) -> TirExpr:
        """Return an offset within the indices."""
        tirx, last = _tvm.tirx, self.build.const(int(self.indices.shape[0]))
        return tirx.max(tirx.min(place.astype("int64"), last), self.build.const(0))

    def _end(self, bag: Any, bags: int) -> TirExpr:
        """Return where a bag ends."""
        if int(self.offsets.shape[0]) > bags:
            return self._clamped(self.offsets[bag + 1])
        count = self.build.const(int(self.indices.shape[0]))
        following = self.offsets[_tvm.tirx.min(bag + 1, self.build.const(bags - 1))]
        return _tvm.tirx.Select(bag + 1 < bags, self._clamped(following), count)

    def _pieces(self, columns: int) -> list[tuple[int, int]]:
        """Return the first column and the length of each vector, whole ones first, then powers of two."""
        pieces, start, length = [], 0, self.build.lanes
        while start < columns:
            while length > columns - start:
                length //= 2
            pieces.append((start, length))
            start += length
        return pieces

    def _group(self, bag: Any, begin: Any, end: Any, first: Any, pieces: list[tuple[int, int]]) -> Stmt:
        """Return the sums of some columns of a bag."""
        tirx, build, dtype = _tvm.tirx, self.build, str(self.table.dtype)
        sums = [tirx.decl_buffer((length,), dtype, f"sum_{start}") for start, length in pieces]
        counted = tirx.decl_buffer((1,), "int64", "counted")
        zero, one = build.const(0), build.const(1)

        def each(store: Callable[[Buffer, int, Any], Stmt]) -> list[Stmt]:
            """Return a statement for each vector."""
            parts = zip(sums, pieces, strict=True)
            return [build.side_by_side(count, partial(store, total, at)) for total, (at, count) in parts]

        def element(i: Any) -> Stmt:
            place = begin + i
            row, bind = named("row", self.indices[place].astype("int64"))

            def added(total: Buffer, at: int, lane: Any) -> Stmt:
                value = self.table[row, first + at + lane]
                value = value * self.factors[0][place] if self.factors else value
                return tirx.BufferStore(total, total[lane] + value, [lane])

            def lost(total: Buffer, _: int, lane: Any) -> Stmt:
                return tirx.BufferStore(total, tirx.const(math.nan, dtype), [lane])

            inside = tirx.all(row >= zero, row < int(self.table.shape[0]))
            # PyTorch raises an error for a row outside of the table, which a kernel cannot.
            body = tirx.IfThenElse(inside, seq(*each(added)), seq(*each(lost)))
            if self.padding < 0:
                return seq(bind, body)
            more = tirx.BufferStore(counted, counted[zero] + one, [zero])
            return seq(bind, tirx.IfThenElse(row != self.padding, seq(body, more), None))

        def written(total: Buffer, at: int, lane: Any) -> Stmt:
            value = total[lane]
            if self.means:
                count = counted[zero] if self.padding >= 0 else end - begin
                value = value / tirx.max(count, one).astype(dtype)
            return tirx.BufferStore(self.result, value, [bag, first + at + lane])

        def cleared(total: Buffer, _: int, lane: Any) -> Stmt:
            return tirx.BufferStore(total, tirx.const(0, dtype), [lane])

        return seq(
            *map(tirx.AllocBuffer, (*sums, counted)),
            tirx.BufferStore(counted, zero, [zero]),
            *each(cleared),
            build.loop("i", tirx.max(end - begin, zero), element),
            *each(written),
        )
