"""Write and read the zip file of a compiled model: a description, the code of the model or of each part, and constants.

Inputs: a description and named contents, or an open file. Outputs: the zip, or its contents. Files may come from
untrusted sources, so members are checked before they are read: their names are known, none is compressed, and their
total size does not exceed the file's. The description can be read without the code. The constants start at a page
boundary of the file, so that they can be mapped instead of read.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import IO, Any, NamedTuple

from felixlike.errors import InvalidArtefact, InvalidOption, first_line
from felixlike.hardware import huge_pages
from felixlike.runtime.constant_layout import ALIGNMENT

META = "meta.json"
"""Name of the member with the description."""

CODE = "model.so"
"""Name of the member with the shared library of a model without parts."""

STATE = "state.bin"
"""Name of the member with the values of the buffers that a model changes, one after the other."""

CONSTANTS = "constants.bin"
"""Name of the member with the large constants of the model, or of all its parts."""

KERNELS = "kernels.o"
"""Name of the member with the kernels of a model with large constants, to link them again with the constants."""

PROGRAM = "program.json"
"""Name of the member with such a model's Relax functions, in TVM's JSON format, which loading does not read."""

_MEMBERS = (META, CODE, STATE, CONSTANTS, KERNELS, PROGRAM)

_PAGE = 4096
"""Alignment of the constants in the file, in bytes: the size of a page of most systems."""

_PADDING = 0xD935
"""Identifier of the extra field of a zip member that aligns its data. Android's zipalign uses the same."""

_EXTRA = struct.Struct("<HH")
"""Start of an extra field: its identifier, and the number of bytes that follow."""

_ZIP64_BYTES = 20
"""Size of the extra field that zipfile adds with force_zip64, which makes it independent of the member's size."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Header before a zip member's data: its signature, and the lengths of the name and the extra field that follow."""

_CHUNK = 2**24
"""Number of bytes that are read at once. Chosen by hand."""

_PART = re.compile(r"part-[1-9][0-9]{0,5}\.felix", re.ASCII)
"""Names of the members with the parts of a model."""

_MOST_MEMBERS = 1000
"""Maximum number of members. Models have about ten parts. Chosen by hand."""

_MOST_META_BYTES = 2**28
"""Maximum size of the description in bytes. A report has 1–4 KB per task, an unnamed input some hundred bytes. Chosen
by hand."""

_GIVE = "give a file saved by felixlike, or save the model again"


class Constants(NamedTuple):
    """The content of the member with the constants.

    Attributes:
        data: Its memory, which starts at a page boundary. Of a file that is mapped, the pages are read when they are
            used, and processes share them.
        mapped: Whether the file is mapped.
    """

    data: memoryview
    mapped: bool = False


NO_CONSTANTS = Constants(memoryview(b""))
"""The constants of a file without the member."""


def pack(
    file: IO[bytes], meta: Mapping[str, Any], contents: Mapping[str, bytes], constants: Iterable[memoryview] = ()
) -> None:
    """Write a description and the other members by name.

    constants: The consecutive pieces of the member with the constants; empty without such a member.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(META, json.dumps(meta, indent=1))
        for name, content in contents.items():
            archive.writestr(name, content)
        if pieces := [piece for piece in constants if len(piece)]:
            member = _aligned_member(file.tell(), sum(map(len, pieces)))
            with archive.open(member, "w", force_zip64=True) as stream:
                for piece in pieces:
                    stream.write(piece)


def _aligned_member(position: int, size: int) -> zipfile.ZipInfo:
    """Return the member with the constants, whose data starts at a page boundary.

    position: Where in the file its header will start. size: Its size in bytes.
    """
    member = zipfile.ZipInfo(CONSTANTS)
    member.file_size = size
    padding = -(position + _LOCAL_HEADER.size + len(CONSTANTS) + _EXTRA.size + _ZIP64_BYTES) % _PAGE
    member.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
    return member


def part_name(size: int) -> str:
    """Return the name of the member with the part for a batch size, which is itself such a zip file."""
    return f"part-{size}.felix"


def read_description(file: IO[bytes], where: str) -> dict[str, Any]:
    """Read the description alone. Raises InvalidArtefact if the file is damaged or of another kind."""
    return _read(file, where, with_contents=False, mapped=False)[0]


def read(file: IO[bytes], where: str, *, mapped: bool = False) -> tuple[dict[str, Any], dict[str, bytes], Constants]:
    """Read the description, the other members by name, and the constants.

    zipfile checks all members against their checksums, except the constants, whose checksums are in the description.

    Args:
        file: The open file.
        where: Its name, for messages.
        mapped: Whether to map the constants instead of reading them.

    Raises:
        InvalidArtefact: The file is damaged or of another kind, or it cannot be mapped.
        InvalidOption: `mapped` is true, and `file` is not a file on disk.
    """
    if mapped and not isinstance(getattr(file, "raw", file), io.FileIO):
        raise InvalidOption(
            "mmap=True needs a file on disk", where=where, remedy="give the path of a file, or leave out mmap=True"
        )
    return _read(file, where, with_contents=True, mapped=mapped)


def _read(
    file: IO[bytes], where: str, *, with_contents: bool, mapped: bool
) -> tuple[dict[str, Any], dict[str, bytes], Constants]:
    """Read the description and, if requested, the other members and the constants."""
    constants = NO_CONSTANTS
    try:
        with zipfile.ZipFile(file) as archive:
            if META not in archive.namelist():
                raise _not_ours(where)
            file_size = file.seek(0, os.SEEK_END)
            names = _members(archive, file_size)
            meta = json.loads(archive.read(META))
            json.dumps(meta, ensure_ascii=False).encode()  # lone surrogates cannot be encoded; raises ValueError
            contents = {name: archive.read(name) for name in names if name != CONSTANTS} if with_contents else {}
            if with_contents and CONSTANTS in names:
                member = archive.getinfo(CONSTANTS)
                start = _data_start(file, member, file_size)
                size = member.file_size
                constants = _mapped(file, start, size, where) if mapped else _copied(file, start, size)
    except InvalidArtefact:  # it is a ValueError, which the next clause would catch
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, RuntimeError, OSError) as error:
        # RuntimeError: encrypted, or nested too deeply
        raise InvalidArtefact(
            f"the file is damaged or not a saved model: {first_line(error)}", where=where, remedy=_GIVE
        ) from None
    if not isinstance(meta, dict) or "format" not in meta or (CODE in names) == ("chunks" in meta):
        raise _not_ours(where)
    return meta, contents, constants


def _data_start(file: IO[bytes], member: zipfile.ZipInfo, file_size: int) -> int:
    """Return where in the file a member's data starts. Raise ValueError if the data is not all there."""
    file.seek(member.header_offset)
    signature, name_size, extra_size = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = int(member.header_offset + _LOCAL_HEADER.size + name_size + extra_size)
    if signature != b"PK\3\4" or start + member.file_size > file_size:
        raise ValueError(f"member {member.filename} is incomplete")
    return start


def _mapped(file: IO[bytes], start: int, size: int, where: str) -> Constants:
    """Return the constants mapped from the file. Writing to them would change a private copy of the page.

    Raises InvalidArtefact if that is not possible."""
    problem = f"member {CONSTANTS} is not aligned" if start % ALIGNMENT else ""
    before = start % mmap.ALLOCATIONGRANULARITY
    try:
        whole = mmap.mmap(file.fileno(), before + size, access=mmap.ACCESS_COPY, offset=start - before)
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        raise InvalidArtefact(f"the file cannot be mapped: {problem}", where=where, remedy="load it without mmap=True")
    return Constants(memoryview(whole)[before:], mapped=True)


def _copied(file: IO[bytes], start: int, size: int) -> Constants:
    """Return the constants read into new memory, which starts at a page boundary."""
    data = memoryview(huge_pages.memory(size))
    file.seek(start)
    position = 0
    while position < size:
        count = _read_into(data[position : position + _CHUNK], file)
        if not count:
            raise EOFError(f"member {CONSTANTS} is incomplete")
        position += count
    return Constants(data)


def _read_into(memory: memoryview, file: IO[bytes]) -> int:
    """Read from a file into memory, and return the number of bytes."""
    if isinstance(file, io.BufferedIOBase):
        return file.readinto(memory)  # without a copy between
    chunk = file.read(len(memory))
    memory[: len(chunk)] = chunk
    return len(chunk)


def _members(archive: zipfile.ZipFile, size: int) -> list[str]:
    """Return the names of all members except the description. `size` is the size of the file in bytes.

    Raise ValueError unless the members are those of a saved model, uncompressed and not larger than the file."""
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"expected at most {_MOST_MEMBERS} members, got {len(members)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"member {twice[0][:60]!r} occurs twice")
    for member in members:
        if member.filename not in _MEMBERS and not _PART.fullmatch(member.filename):
            raise ValueError(f"unexpected member {member.filename[:60]!r}")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ValueError(f"member {member.filename} is compressed")
    if sum(member.file_size for member in members) > size:
        raise ValueError("the members are larger than the file")
    if archive.getinfo(META).file_size > _MOST_META_BYTES:
        raise ValueError(f"member {META} has more than {_MOST_META_BYTES:,} bytes")
    return [name for name in names if name != META]


def _not_ours(where: str) -> InvalidArtefact:
    """Return the error for a zip file of another kind."""
    return InvalidArtefact("the file is a zip archive, but not a saved model", where=where, remedy=_GIVE)
