"""What a CUDA compiler writes into machine code about its kernels, read without a GPU or NVIDIA's tools.

In: a cubin, an ELF file. Out: a `Kernel` each. Sections: `.nv.info` has registers and stack of all kernels by their
symbols, `.nv.info.NAME` how many threads a block may have, `.nv.shared.NAME` is as long as static shared memory, with
a KiB for the system where the architecture keeps one. The format is not documented; NVIDIA's cuobjdump shows the same
numbers (--dump-resource-usage, --dump-elf), and so does an H100's driver.
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
"""EIFMT_SVAL: the attribute's size follows, then so many bytes. Others have two bytes in place of the size."""
_RESERVED = 1024
"""Bytes of shared memory that .nv.shared counts beside the kernel's own, from sm_90 on."""
_RESERVING_FROM = 90


class _Section(NamedTuple):
    name: str
    size: int
    content: bytes
    entry: int


def kernels_of(binary: bytes, arch: str) -> tuple[Kernel, ...]:
    """The kernels of a cubin, by name; none for other formats, such as PTX or several architectures' code in one.

    arch: as in "sm_90", which it was compiled for."""
    if not binary.startswith(_MAGIC):
        return ()
    try:
        return tuple(sorted(_kernels(binary, arch), key=lambda kernel: kernel.name))
    except (struct.error, IndexError, ValueError, UnicodeDecodeError, KeyError):
        return ()  # cut off, or of a later format: nothing depends on these numbers


def _kernels(binary: bytes, arch: str) -> Iterator[Kernel]:
    sections = {section.name: section for section in _sections(binary)}
    symbols = _symbols(sections)
    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    for attribute, values in _attributes(sections[".nv.info"].content):
        if attribute in (_REGISTERS, _STACK):
            (registers if attribute == _REGISTERS else stacks)[symbols[values[0]]] = values[1]
    reserved = _RESERVED if int("".join(filter(str.isdigit, arch))) >= _RESERVING_FROM else 0
    for name in (section.removeprefix(".text.") for section in sections if section.startswith(".text.")):
        own = dict(_attributes(sections[f".nv.info.{name}"].content)) if f".nv.info.{name}" in sections else {}
        threads = own.get(_EXACT_THREADS, own.get(_MOST_THREADS, (0,)))
        most = 1
        for extent in threads:
            most *= extent
        shared = sections[f".nv.shared.{name}"].size - reserved if f".nv.shared.{name}" in sections else 0
        yield Kernel(name, registers.get(name, 0), stacks.get(name, 0), max(0, shared), most)


def _sections(binary: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", binary, 40)
    step, count, names = struct.unpack_from("<HHH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, table + i * step) for i in range(count)]
    texts = headers[names][4]
    for name, kind, _, _, offset, size, _, _, _, entry in headers:
        start = texts + name
        empty = kind in (0, 8)  # nothing, and memory that is not in the file
        content = b"" if empty else binary[offset : offset + size]
        yield _Section(binary[start : binary.index(b"\0", start)].decode(), size, content, entry)


def _symbols(sections: dict[str, _Section]) -> dict[int, str]:
    table, texts = sections[".symtab"], sections[".strtab"].content
    found = {}
    for number, at in enumerate(range(0, len(table.content), table.entry)):
        (start,) = struct.unpack_from("<I", table.content, at)
        found[number] = texts[start : texts.index(b"\0", start)].decode()
    return found


def _attributes(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _SIZED:
            yield attribute, struct.unpack_from(f"<{size // 4}I", content, at)
            at += size
