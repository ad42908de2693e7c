"""Recover rows of a damaged store from the single pages of its file.

SQLite fails if a page that refers to others is damaged. This module reads every page by itself and yields the rows
whose checksum is right, so every recovered row is as it was written. It needs no indices, schema or header, and it
handles truncated files and the log beside the file. The format is SQLite's: https://www.sqlite.org/fileformat2.html.
Rows of version 1 have no checksums and are not recovered.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from felixlike.records.schema import REALS, VALUES, Row, opened

_LEAF = 13
"""Type byte of a table's leaf page (SQLite's file format)."""

_LOG_HEADER, _FRAME_HEADER = 32, 24
"""Sizes of the headers of a write-ahead log and of each frame, bytes (SQLite's file format)."""

_SIZES = (4096, 1024, 2048, 8192, 16384, 32768, 65536, 512)
"""Page sizes that SQLite allows, bytes; the first is used if the header is damaged."""

_MOST_BYTES = 2**24
"""Upper limit on the size of a row, bytes; chosen by hand to reject lengths that damage has produced."""

_WHOLE = (0, 1, 2, 3, 4, 6, 8)
"""Bytes of the values of serial types 0 … 6: NULL and integers (SQLite's file format)."""

_NUMBERED = ("measurements", "commands")
"""Tables whose rows begin with their number."""

_SHAPES = {len(names) + 1 + (table in _NUMBERED): table for table, names in VALUES.items()}
_SHAPES[_BEFORE_KERNELS := len(VALUES["measurements"]) + 1] = "measurements"
"""Maps the number of columns in the file, including the checksum, to the table.

Rows of version 2 end with their checksum, also after the file is upgraded."""

_Pages = Callable[[int], bytes]
"""Returns a page by its number, from 1; the last page of a truncated file is shorter."""


def salvage(path: Path) -> Iterator[tuple[str, int, Row]]:
    """Yield (table, row's number, row with its checksum) of every readable row, unordered; rows may repeat.

    Raises OSError, and ValueError for an empty file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        size = _page_size(content)
        log = path.with_name(path.name + "-wal")
        newer = _logged(log.read_bytes(), size) if log.is_file() else {}

        def written(number: int) -> bytes:
            return content[(number - 1) * size : number * size]

        def newest(number: int) -> bytes:
            return newer[number] if number in newer else written(number)

        numbers = range(1, len(content) // size + 2)
        yield from _found(numbers, written, size)
        if newer:
            yield from _found({*numbers, *newer}, newest, size)


def _found(numbers: Iterable[int], pages: _Pages, size: int) -> Iterator[tuple[str, int, Row]]:
    """Yield the rows of these pages that belong to a table and whose checksum is right."""
    for page in numbers:
        for number, row in _rows(pages(page), 100 if page == 1 else 0, pages, size):
            known = _known(row)
            if known is not None:
                yield known[0], number, known[1]


def _page_size(content: mmap.mmap) -> int:
    """Return the page size of the file's header, or 4096 if it is invalid."""
    size = int.from_bytes(content[16:18], "big")
    return 65536 if size == 1 else size if size in _SIZES else _SIZES[0]


def _logged(log: bytes, size: int) -> dict[int, bytes]:
    """Return the newest page of each number in a write-ahead log."""
    step = _FRAME_HEADER + size
    return {
        int.from_bytes(log[i : i + 4], "big"): log[i + _FRAME_HEADER : i + step]
        for i in range(_LOG_HEADER, len(log) - step + 1, step)
    }


def _known(row: Row) -> tuple[str, Row] | None:
    """Return a row's table and its values with the checksum last; None if it belongs to no table or is damaged."""
    table = _SHAPES.get(len(row))
    if table == "measurements":  # the column of kernels follows the checksum
        row = (*row[:-1], "", row[-1]) if len(row) == _BEFORE_KERNELS else (*row[:-2], row[-1], row[-2])
    if table is None or not isinstance(row[-1], bytes):
        return None
    sealed_values = row[1:] if table in _NUMBERED else row
    # SQLite stores 2.0 as the integer 2 and converts it by the column's type.
    names = (*VALUES[table], "checksum")
    sealed_values = tuple(
        float(v) if n in REALS and isinstance(v, int) else v for n, v in zip(names, sealed_values, strict=True)
    )
    try:
        opened(sealed_values)
    except (ValueError, TypeError):
        return None
    return table, sealed_values


def _rows(page: bytes, start: int, pages: _Pages, size: int) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of a table's leaf page; nothing for other pages. `start` is the header's offset."""
    if len(page) < start + 8 or page[start] != _LEAF:
        return
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    for i in range(min(count, size // 4)):
        at = start + 8 + 2 * i
        try:
            number, payload = _cell(page, int.from_bytes(page[at : at + 2], "big"), pages, size)
            yield number, _row(payload)
        except (ValueError, IndexError):
            continue


def _cell(page: bytes, at: int, pages: _Pages, size: int) -> tuple[int, bytes]:
    """Return a row's number and its bytes, including those on overflow pages."""
    length, at = _number(page, at)
    number, at = _number(page, at)
    if length > _MOST_BYTES:
        raise ValueError("too long")
    here = length
    if length > size - 35:
        least = (size - 12) * 32 // 255 - 23
        here = least + (length - least) % (size - 4)
        here = here if here <= size - 35 else least
    payload = bytearray(page[at : at + here])
    following = int.from_bytes(page[at + here : at + here + 4], "big") if here < length else 0
    while len(payload) < length:
        overflow = pages(following) if following else b""
        if len(overflow) < size:
            raise ValueError("cut off")
        payload += overflow[4 : 4 + length - len(payload)]
        following = int.from_bytes(overflow[:4], "big")
    return number, bytes(payload)


def _row(payload: bytes) -> Row:
    """Return the values of a record."""
    end, at = _number(payload, 0)
    kinds = []
    while at < end:
        kind, at = _number(payload, at)
        kinds.append(kind)
    values: list[object] = []
    at = end
    for kind in kinds:
        length = 8 if kind == 7 else _WHOLE[kind] if kind < 7 else 0 if kind < 12 else (kind - 12) // 2
        raw = payload[at : at + length]
        if len(raw) < length:
            raise ValueError("cut off")
        at += length
        if kind == 0:
            values.append(None)
        elif kind < 7:
            values.append(int.from_bytes(raw, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", raw)[0])
        elif kind < 10:
            values.append(kind - 8)
        else:
            values.append(raw.decode() if kind % 2 else raw)
    return tuple(values)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, end offset) of a variable-length integer."""
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    return value << 8 | data[at + 8], at + 9
