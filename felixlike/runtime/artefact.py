"""A compiled model as one file, or as bytes, and back.

In: Compiled and a report. Out: a zip of meta.json and model.so, or a zip in it for each of a model's parts, and from it
Compiled again, without model, store or compiler. Reading executes nothing from the file but the compiled code itself:
load only files you trust.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from felixlike import _tvm, codegen
from felixlike._util import option_checks, scratch
from felixlike._util.atomic_files import check_writable, written_whole
from felixlike.errors import CompilationFailed, InvalidArtefact, first_line
from felixlike.hardware import COMPILERS, c_compiler, kind_of
from felixlike.runtime import artefact_description, artefact_file
from felixlike.runtime.batch_buckets import Chunked, described, from_description
from felixlike.runtime.callable import Compiled
from felixlike.runtime.shared_library import Library

_BYTES = "a pickled model"
"""Where bytes come from, in messages."""

Source = str | os.PathLike[str] | IO[bytes]
"""The path of a file, or an open file."""


def save(compiled: Compiled, path: str | os.PathLike[str], *, report: Mapping[str, Any]) -> None:
    """Write a compiled model to a file, whole or not at all; through a symbolic link, to its target.

    report: JSON data kept beside it. Raises OutputNotWritable, CompilationFailed without a C compiler, InvalidModel
    if the class of the outputs cannot be named in a file."""
    check_writable(path)
    meta, files = _content(compiled, report)  # before anything is beside the path
    with written_whole(path) as file:
        artefact_file.pack(file, meta, files)


def save_again(saved: str | os.PathLike[str], path: str | os.PathLike[str], *, report: Mapping[str, Any]) -> None:
    """Write a saved model to another file with another report, without linking it again.  Raises as `save` and `load`
    do."""
    with _opened(saved) as (file, where):
        meta, files = artefact_file.read(file, where)
    with written_whole(path) as file:
        artefact_file.pack(file, {**meta, "report": dict(report)}, files)


def export_library(compiled: Compiled, path: str | os.PathLike[str]) -> None:
    """Write the shared library alone, which TVM's runtime can load without felixlike, Python or torch; whole or not at
    all. Raises as `save` does."""
    check_writable(path)
    if isinstance(compiled, Chunked):
        raise CompilationFailed(
            f"there is a library for each of the batch sizes {', '.join(map(str, compiled.parts))}",
            where="export_library",
            remedy="optimize the model for one of them and export that, or save the model for felixlike.load",
        )
    library = _library(compiled, artefact_description.describe(compiled))
    with written_whole(path) as file:
        file.write(library)


def load(path: Source) -> tuple[Compiled, dict[str, Any]]:
    """A saved model, and the report saved with it.

    Raises InvalidArtefact if the file is missing, damaged, edited, of another kind, or made by an incompatible version
    or for another processor; NoGPU or WrongArchitecture where it needs a GPU that is not here; OutputNotWritable where
    there is no room for temporary files."""
    with _opened(path) as (file, where):
        meta, files = artefact_file.read(file, where)
    return _open(meta, files, where)


def to_bytes(compiled: Compiled, *, report: Mapping[str, Any]) -> bytes:
    """What `save` would write.  Raises CompilationFailed and InvalidModel like it."""
    file = io.BytesIO()
    artefact_file.pack(file, *_content(compiled, report))
    return file.getvalue()


def from_bytes(content: bytes) -> tuple[Compiled, dict[str, Any]]:
    """The inverse of to_bytes.  Raises InvalidArtefact like `load`."""
    return load(io.BytesIO(content))


def read_report(path: Source) -> dict[str, Any]:
    """The report saved with a model, on any machine and without reading its code. Raises InvalidArtefact."""
    with _opened(path) as (file, where):
        return artefact_description.read_report(artefact_file.read_description(file, where), where)


def _content(compiled: Compiled, report: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The description, and what stands beside it."""
    if isinstance(compiled, Chunked):
        parts = {artefact_file.part_name(size): to_bytes(part, report={}) for size, part in compiled.parts.items()}
        return artefact_description.with_versions({"chunks": described(compiled)}, report), parts
    code = artefact_description.describe(compiled)
    return artefact_description.with_versions(code, report), {artefact_file.CODE: _library(compiled, code)}


def _library(compiled: Compiled, code: Mapping[str, Any]) -> bytes:
    """The shared library, which says what it is.  Only links what LLVM generated, so any C compiler will do."""
    if compiled.library is not None:
        return compiled.library.path.read_bytes()
    compiler = linker()
    try:
        target = compiled.target if kind_of(compiled.target).on_host else _tvm.with_host(compiled.target)
        executable = codegen.relink_relax(compiled.lowered, compiled.runtime, target, json.dumps(code))
        with scratch.temporary("link") as folder:
            library = folder / "model.so"
            executable.export_library(str(library), cc=compiler, workspace_dir=str(folder))
            return library.read_bytes()
    except (*_tvm.TVM_ERRORS, OSError) as error:
        if not isinstance(error, OSError) and not _tvm.raised_in_tvm(error):
            raise
        raise CompilationFailed(
            f"linking with {compiler} failed: {first_line(error)}",
            where="save",
            remedy="see that the compiler works and that there is room for temporary files (TMPDIR)",
        ) from error


def linker() -> str:
    """The C compiler that links models.  Raises CompilationFailed if there is none; meant for before long work, too."""
    compiler = c_compiler()
    if compiler is None:
        raise CompilationFailed(
            f"no C compiler was found to link the model ({', '.join(COMPILERS)})",
            where="save",
            remedy="install gcc, or name a compiler in the environment variable CC",
        )
    return compiler


@contextlib.contextmanager
def _opened(given: Source) -> Iterator[tuple[IO[bytes], str]]:
    """The open file of a path, or one that is open already; and what it is called in messages."""
    if not isinstance(given, str | os.PathLike) and hasattr(given, "read"):
        yield given, str(getattr(given, "name", _BYTES))
        return
    path = option_checks.path(given, "load", error=InvalidArtefact)
    if not path.is_file():
        kind = "it is not a file" if path.exists() else "there is no such file"
        raise InvalidArtefact(kind, where=str(path), remedy="check the path")
    try:
        with path.open("rb") as file:
            yield file, str(path)
    except PermissionError:
        raise InvalidArtefact("permission is denied", where=str(path), remedy="see who may read it") from None


def _open(meta: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> tuple[Compiled, dict[str, Any]]:
    """The code, opened from a file that lives as long as the model, so that it can be saved again."""
    if "chunks" in meta:
        return _open_chunks(meta, files, where), artefact_description.read_report(meta, where)
    told = artefact_description.read(meta, where)
    report = artefact_description.read_report(meta, where)
    library = Library(files[artefact_file.CODE])
    try:
        compiled = Compiled(
            codegen.open_library(str(library.path)),
            inputs=told.inputs,
            outputs=told.outputs,
            signature=told.signature,
            structure=told.structure,
            target=told.target,
            name=told.name,
            key=told.key,
            library=library,
            parallel=told.parallel,
            sizes=told.sizes,
            unaligned=told.unaligned,
        )
        own = codegen.description_in(compiled.machine)
    except (*_tvm.TVM_ERRORS, AttributeError, OSError) as error:
        if not isinstance(error, OSError) and not _tvm.raised_in_tvm(error):
            raise
        raise InvalidArtefact(
            f"its compiled code cannot be opened: {first_line(error)}",
            where=where,
            remedy="save the model again, or optimize it again",
        ) from None
    artefact_description.compare(meta, own, where)
    return compiled, report


def _open_chunks(meta: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> Chunked:
    artefact_description.check_versions(meta, where)

    def part(size: int) -> Compiled:
        if artefact_file.part_name(size) not in files:
            raise ValueError(f"its part for {size} is missing")
        own, code = artefact_file.read(io.BytesIO(files[artefact_file.part_name(size)]), where)
        if "chunks" in own:
            raise ValueError(f"its part for {size} has parts itself")
        return _open(own, code, where)[0]

    try:
        return from_description(meta["chunks"], part)
    except ValueError as error:
        raise InvalidArtefact(
            f"its description is wrong: {error}", where=where, remedy="save the model again, or optimize it again"
        ) from None
