"""Read what a CUDA compiler writes into machine code about its kernels, without a GPU or NVIDIA's tools.

Input: a cubin, an ELF file. Output: a `Kernel` each. Sections: `.nv.info` has registers and stack of all kernels by
their symbols, `.nv.info.NAME` has the threads of a block, and the size of `.nv.shared.NAME` is the static shared
memory, plus a KiB for the system on architectures that reserve it. The format is not documented. NVIDIA's cuobjdump
shows the same numbers (--dump-resource-usage, --dump-elf), and so does an H100's driver.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from felixlike.hardware.occupancy import Kernel

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_REGISTERS, _STACK, _MOST_THREADS, _EXACT_THREADS = 0x2F, 0x11, 0x05, 0x10
"""EIATTR_REGCOUNT, EIATTR_FRAME_SIZE, EIATTR_MAX_THREADS, EIATTR_REQNTID."""
_SIZED = 4
"""EIFMT_SVAL: the attribute's size follows, then its bytes. Other attributes have two bytes instead of the size."""
_RESERVED = 1024
"""Bytes that .nv.shared includes in addition to the kernel's shared memory, from sm_90 on."""
_RESERVING_FROM = 90
"""The first such architecture."""


class _Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    size: int
    content: bytes
    entry: int


def kernels_of(binary: bytes, arch: str) -> tuple[Kernel, ...]:
    """Return the kernels of a cubin, sorted by name.

    Args:
        binary: The cubin. Other formats, such as PTX or fat binaries, have no kernels here.
        arch: The architecture that it was compiled for, as in "sm_90".
    """
    if not binary.startswith(_MAGIC):
        return ()
    try:
        return tuple(sorted(_kernels(binary, arch), key=lambda kernel: kernel.name))
    except (struct.error, IndexError, ValueError, UnicodeDecodeError, KeyError):
        return ()  # truncated, or of a later format: nothing depends on these numbers


def _kernels(binary: bytes, arch: str) -> Iterator[Kernel]:
    """Yield the kernels of a cubin."""
    sections = {section.name: section for section in _sections(binary)}
    symbols = _symbols(sections)
    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    for attribute, values in _attributes(sections[".nv.info"].content):
        if attribute in (_REGISTERS, _STACK):
            (registers if attribute == _REGISTERS else stacks)[symbols[values[0]]] = values[1]
    reserved = _RESERVED if int("".join(filter(str.isdigit, arch))) >= _RESERVING_FROM else 0
    for name in (section.removeprefix(".text.") for section in sections if section.startswith(".text.")):
        kernel_attributes = (
            dict(_attributes(sections[f".nv.info.{name}"].content)) if f".nv.info.{name}" in sections else {}
        )
        threads = kernel_attributes.get(_EXACT_THREADS, kernel_attributes.get(_MOST_THREADS, (0,)))
        most = 1
        for extent in threads:
            most *= extent
        shared = sections[f".nv.shared.{name}"].size - reserved if f".nv.shared.{name}" in sections else 0
        yield Kernel(name, registers.get(name, 0), stacks.get(name, 0), max(0, shared), most)


def _sections(binary: bytes) -> Iterator[_Section]:
    """Yield the sections of an ELF file."""
    (table,) = struct.unpack_from("<Q", binary, 40)
    step, count, names = struct.unpack_from("<HHH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, table + i * step) for i in range(count)]
    texts = headers[names][4]
    for name, kind, _, _, offset, size, _, _, _, entry in headers:
        start = texts + name
        empty = kind in (0, 8)  # empty sections, and memory that is not in the file
        content = b"" if empty else binary[offset : offset + size]
        yield _Section(binary[start : binary.index(b"\0", start)].decode(), size, content, entry)


def _symbols(sections: dict[str, _Section]) -> dict[int, str]:
    """Return the names of the symbols by their numbers."""
    table, texts = sections[".symtab"], sections[".strtab"].content
    names = {}
    for number, at in enumerate(range(0, len(table.content), table.entry)):
        (start,) = struct.unpack_from("<I", table.content, at)
        names[number] = texts[start : texts.index(b"\0", start)].decode()
    return names


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (attribute, values) of a section of attributes."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _SIZED:
            yield attribute, struct.unpack_from(f"<{size // 4}I", content, at)
            at += size
