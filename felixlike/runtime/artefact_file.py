"""Write and read the zip file of a compiled model: a description, and the code of the model or of each part.

Inputs: a description and named contents, or an open file. Outputs: the zip, or its contents. Files may come from
untrusted sources, so members are checked before they are read: their names are known, none is compressed, and their
total size does not exceed the file's. The description can be read without the code.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

from felixlike.errors import InvalidArtefact, first_line

META = "meta.json"
"""Name of the member with the description."""

CODE = "model.so"
"""Name of the member with the shared library of a model without parts."""

STATE = "state.bin"
"""Name of the member with the values of the buffers that a model changes, one after the other."""

_PART = re.compile(r"part-[1-9][0-9]{0,5}\.felix", re.ASCII)
"""Names of the members with the parts of a model."""

_MOST_MEMBERS = 1000
"""Maximum number of members. Models have about ten parts. Chosen by hand."""

_MOST_META_BYTES = 2**28
"""Maximum size of the description in bytes. A report has 1–4 KB per task, an unnamed input some hundred bytes. Chosen
by hand."""

_GIVE = "give a file saved by felixlike, or save the model again"


def pack(file: IO[bytes], meta: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
    """Write a description and the other members by name."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(META, json.dumps(meta, indent=1))
        for name, content in contents.items():
            archive.writestr(name, content)


def part_name(size: int) -> str:
    """Return the name of the member with the part for a batch size, which is itself such a zip file."""
    return f"part-{size}.felix"


def read_description(file: IO[bytes], where: str) -> dict[str, Any]:
    """Read the description alone. Raises InvalidArtefact if the file is damaged or of another kind."""
    return _read(file, where, with_contents=False)[0]


def read(file: IO[bytes], where: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the description and the other members by name, all checked against their checksums by zipfile.

    Raises InvalidArtefact if the file is damaged or of another kind."""
    return _read(file, where, with_contents=True)


def _read(file: IO[bytes], where: str, *, with_contents: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the description and, if requested, the other members."""
    try:
        with zipfile.ZipFile(file) as archive:
            if META not in archive.namelist():
                raise _not_ours(where)
            names = _members(archive, file.seek(0, os.SEEK_END))
            meta = json.loads(archive.read(META))
            json.dumps(meta, ensure_ascii=False).encode()  # lone surrogates cannot be encoded; raises ValueError
            contents = {name: archive.read(name) for name in names} if with_contents else {}
    except InvalidArtefact:  # it is a ValueError, which the next clause would catch
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, RuntimeError, OSError) as error:
        # RuntimeError: encrypted, or nested too deeply
        raise InvalidArtefact(
            f"the file is damaged or not a saved model: {first_line(error)}", where=where, remedy=_GIVE
        ) from None
    if not isinstance(meta, dict) or "format" not in meta or (CODE in names) == ("chunks" in meta):
        raise _not_ours(where)
    return meta, contents


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
        if member.filename not in (META, CODE, STATE) and not _PART.fullmatch(member.filename):
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
