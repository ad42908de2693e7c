"""Generate kernels that sort rows of integer keys, and that select the largest keys of rows.

    sorted:   count the keys by each byte
              for byte in bytes: move each key behind those whose byte comes earlier       (radix sort, stable)
    largest:  for block in row: if max(block) > the k-th largest so far: insert the block's elements

Input: keys (row, element) of an integer type. Output: positions of the keys in each row, or the sorted keys. TVM's own
kernels compare and call the C++ library on one thread. Here, rows are computed in parallel, and the work does not
depend on comparisons that processors mispredict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt, TirExpr
from felixlike.codegen.build import Builder, named, seq

_INDEX = "int64"
_BYTE = 256
_COUNT = "int32"
"""Type of positions within kernels. Rows are shorter than `MOST`."""
MOST = 2**31
"""Limit on the elements of a row."""
LEAST = 64
"""Elements of a row from which these kernels are used: a radix sort visits 256 counters for each byte."""
MOST_INSERTED = 128
"""Upper limit on k for a selection by insertion, which moves up to k elements for each one. Chosen by hand."""
_BLOCK = 64
"""Elements whose maximum is compared with the k-th largest at once. Chosen by hand."""


def sort_positions(keys: Any, *, descending: bool) -> Any:
    """Return the TE tensor of the positions that sort each row. Equal keys keep their order.

    Args:
        keys: TE tensor of integers, (rows, elements).
        descending: Whether the largest key is first.

    Returns:
        TE tensor of int64, (rows, elements).
    """
    return _kernel(keys, int(keys.shape[1]), "radix_sort", partial(_Radix, descending=descending))


def sort_keys(keys: Any, *, descending: bool) -> Any:
    """Return the TE tensor of the sorted keys of each row, as `sort_positions` returns their positions."""
    emitter = partial(_Radix, descending=descending, of_keys=True)
    return _kernel(keys, int(keys.shape[1]), "radix_sort", emitter, str(keys.dtype))


def largest_positions(keys: Any, *, count: int, largest: bool) -> Any:
    """Return the TE tensor of the positions of the largest or smallest keys of each row, in their order.

    Args:
        keys: TE tensor of integers, (rows, elements).
        count: Number of positions, at most `MOST_INSERTED`.
        largest: Whether the largest keys are selected, and not the smallest.

    Returns:
        TE tensor of int64, (rows, count).
    """
    return _kernel(keys, count, "largest", partial(_Largest, count=count, largest=largest))


def _kernel(keys: Any, count: int, name: str, emitter: Callable[..., Any], dtype: str = _INDEX) -> Any:
    """Return the TE tensor that a kernel computes, with `count` positions or keys in each row."""

    def whole(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        one = emitter(inputs[0], outputs[0])
        return _BUILD.loop("row", int(keys.shape[0]), one.row, "PARALLEL")

    return _tvm.te.extern([(keys.shape[0], count)], [keys], whole, name, [dtype])


_BUILD = Builder(_INDEX, 1)


def _buffer(name: str, dtype: str, *shape: int) -> Buffer:
    """Return a new buffer."""
    return _tvm.tirx.decl_buffer(shape, dtype, name)


def _store(buffer: Buffer, value: Any, *place: Any) -> Stmt:
    """Return the store of an element, converted to the buffer's type."""
    value = value if hasattr(value, "ty") else _tvm.tirx.const(value, str(buffer.dtype))
    return _tvm.tirx.BufferStore(buffer, value.astype(str(buffer.dtype)), list(place))


@dataclass
class _Radix:
    """Generates a stable sort of a row by the bytes of its keys, from the lowest to the highest.

    Attributes:
        keys: Keys (row, element).
        result: The output (row, element), positions or keys.
        descending: Whether the largest key is first.
        of_keys: Whether the output has the keys themselves, so that no positions are moved.
    """

    keys: Buffer
    result: Buffer
    descending: bool
    of_keys: bool = False

    def row(self, row: Any) -> Stmt:
        """Return the code for a row."""
        size, dtype = int(self.keys.shape[1]), str(self.keys.dtype)
        passes = _tvm.bits(dtype) // 8
        counts = _buffer("counts", _COUNT, passes, _BYTE)
        # Each pass reads what the one before has written.
        values = [_buffer(f"values_{number}", dtype, size) for number in range(min(passes - 1, 2))]
        origins = [_buffer(f"origins_{number}", _COUNT, size) for number in range(0 if self.of_keys else len(values))]

        def moved(byte: int, i: Any) -> Stmt:
            key, bind_key = named("key", values[(byte - 1) % 2][i] if byte else self.keys[row, i])
            digit, bind_digit = named("digit", self._digit(key, byte))
            position, bind_position = named("position", counts[byte, digit].astype(_INDEX))
            last = byte == passes - 1
            moves = [(key, values)] if self.of_keys or not last else []
            if not self.of_keys:
                moves.append((origins[(byte - 1) % 2][i] if byte else i, origins))
            stores = [
                _store(self.result, value, row, position) if last else _store(buffers[byte % 2], value, position)
                for value, buffers in moves
            ]
            advance = _store(counts, position + 1, byte, digit)
            return seq(bind_key, bind_digit, bind_position, advance, *stores)

        return seq(
            *map(_tvm.tirx.AllocBuffer, (counts, *values, *origins)),
            *(_BUILD.loop("digit", _BYTE, partial(_store, counts, 0, byte)) for byte in range(passes)),
            _BUILD.loop("i", size, partial(self._counted, counts, row)),
            *(self._starts(counts, byte) for byte in range(passes)),
            *(_BUILD.loop("i", size, partial(moved, byte)) for byte in range(passes)),
        )

    def _digit(self, key: TirExpr, byte: int) -> TirExpr:
        """Return a byte of a key as a number in the order of the sort."""
        dtype = str(self.keys.dtype)
        highest = byte == _tvm.bits(dtype) // 8 - 1
        signed = highest and not dtype.startswith("uint")
        flipped = (_BYTE // 2 if signed else 0) ^ (_BYTE - 1 if self.descending else 0)
        digit = (key >> _tvm.tirx.const(8 * byte, dtype)).astype(_INDEX) & _BUILD.const(_BYTE - 1)
        return digit ^ _BUILD.const(flipped) if flipped else digit

    def _counted(self, counts: Buffer, row: Any, i: Any) -> Stmt:
        """Return the code that counts the bytes of a key."""
        key, bind = named("key", self.keys[row, i])
        stores = []
        for byte in range(int(counts.shape[0])):
            digit, bind_digit = named("digit", self._digit(key, byte))
            stores += [bind_digit, _store(counts, counts[byte, digit] + _tvm.tirx.const(1, _COUNT), byte, digit)]
        return seq(bind, *stores)

    @staticmethod
    def _starts(counts: Buffer, byte: int) -> Stmt:
        """Return the code that replaces counts by the position of the first key with each byte."""
        start, before = _buffer("start", _COUNT, 1), _buffer("before", _COUNT, 1)

        def advanced(digit: Any) -> Stmt:
            return seq(
                _store(before, start[0], 0),
                _store(start, start[0] + counts[byte, digit], 0),
                _store(counts, before[0], byte, digit),
            )

        allocations = map(_tvm.tirx.AllocBuffer, (start, before))
        return seq(*allocations, _store(start, 0, 0), _BUILD.loop("digit", _BYTE, advanced))


@dataclass
class _Largest:
    """Generates a selection of the largest keys of a row, in descending order.

    Attributes:
        keys: Keys (row, element).
        places: The output, positions (row, number).
        count: Number of keys to select.
        largest: Whether the largest keys are selected, and not the smallest.
    """

    keys: Buffer
    places: Buffer
    count: int
    largest: bool

    def row(self, row: Any) -> Stmt:
        """Return the code for a row."""
        size, dtype, tirx = int(self.keys.shape[1]), str(self.keys.dtype), _tvm.tirx
        # Before the largest key is one that no key exceeds, at which insertions end.
        best, origins = _buffer("best", dtype, self.count + 1), _buffer("origins", _COUNT, self.count + 1)
        last, peak = _buffer("last", _INDEX, 1), _buffer("peak", dtype, 1)
        buffers = (best, origins, last, peak)
        least, most = tirx.min_value(dtype), tirx.max_value(dtype)

        def inserted(i: Any, end: Any) -> Stmt:
            """Return the code that inserts an element before the first smaller one of those up to `end`."""
            key, bind = named("key", self._key(row, i))
            at = last[0]
            shifted = seq(_store(best, best[at], at + 1), _store(origins, origins[at], at + 1), _store(last, at - 1, 0))
            return seq(
                bind,
                _store(last, end, 0),
                tirx.While(best[at] < key, shifted),
                _store(best, key, at + 1),
                _store(origins, i, at + 1),
            )

        def tried(i: Any) -> Stmt:
            larger = self._key(row, i) > best[self.count]
            return tirx.IfThenElse(larger, inserted(i, _BUILD.const(self.count - 1)), None)

        def block(number: Any) -> Stmt:
            start = number * _BLOCK + self.count
            value = partial(self._key, row)
            largest = _BUILD.loop("i", _BLOCK, lambda i: _store(peak, tirx.max(peak[0], value(start + i)), 0))
            insert = _BUILD.loop("i", _BLOCK, lambda i: tried(start + i))
            return seq(_store(peak, least, 0), largest, tirx.IfThenElse(peak[0] > best[self.count], insert, None))

        blocks, rest = divmod(size - self.count, _BLOCK)
        return seq(
            *map(tirx.AllocBuffer, buffers),
            _store(best, most, 0),
            _BUILD.loop("i", self.count, lambda i: inserted(i, i)),
            *([_BUILD.loop("block", blocks, block)] if blocks else []),
            *([_BUILD.loop("i", rest, lambda i: tried(size - rest + i))] if rest else []),
            _BUILD.loop("i", self.count, lambda i: _store(self.places, origins[i + 1], row, i)),
        )

    def _key(self, row: Any, i: Any) -> TirExpr:
        """Return a key, in reverse order if the smallest ones are selected."""
        key, dtype = self.keys[row, i], str(self.keys.dtype)
        if self.largest:
            return key
        return key ^ (_tvm.tirx.max_value(dtype) if dtype.startswith("uint") else _tvm.tirx.const(-1, dtype))
