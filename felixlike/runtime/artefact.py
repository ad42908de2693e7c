"""Save a compiled model to one file or to bytes, and load it again.

Inputs: a compiled model and a report. Output: a zip of meta.json and model.so, or of one such zip per part. Loading
returns the compiled model and needs no original model, store or compiler. It executes only the compiled code of the
file: load only files you trust.
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
"""Name of the source of bytes, in messages."""

Source = str | os.PathLike[str] | IO[bytes]
"""The path of a file, or an open file."""


def save(compiled: Compiled, path: str | os.PathLike[str], *, report: Mapping[str, Any]) -> None:
    """Save a compiled model to a file, which is written whole or not at all.

    Args:
        compiled: The model.
        path: The file; a symbolic link is followed.
        report: JSON data saved with the model.

    Raises:
        OutputNotWritable: The path cannot be written.
        CompilationFailed: No C compiler is found, or linking fails.
        InvalidModel: The class of the outputs cannot be named in a file.
    """
    check_writable(path)
    meta, files = _content(compiled, report)  # before a temporary file is created beside the path
    with written_whole(path) as file:
        artefact_file.pack(file, meta, files)


def save_again(saved: str | os.PathLike[str], path: str | os.PathLike[str], *, report: Mapping[str, Any]) -> None:
    """Copy a saved model to another file with another report, without linking it again.

    Args:
        saved: The saved model.
        path: The new file.
        report: JSON data saved with the model.

    Raises:
        InvalidArtefact: `saved` is missing or damaged.
        OutputNotWritable: The path cannot be written.
    """
    with _opened(saved) as (file, where):
        meta, files = artefact_file.read(file, where)
    with written_whole(path) as file:
        artefact_file.pack(file, {**meta, "report": dict(report)}, files)


def export_library(compiled: Compiled, path: str | os.PathLike[str]) -> None:
    """Write only the shared library, which TVM's runtime loads without felixlike, Python or torch.

    Args:
        compiled: The model.
        path: The file, which is written whole or not at all.

    Raises:
        OutputNotWritable: The path cannot be written.
        CompilationFailed: The model has one library per batch size, PyTorch runs some of its operators, no C compiler
            is found, or linking fails.
        InvalidModel: The class of the outputs cannot be named in a file.
    """
    check_writable(path)
    if isinstance(compiled, Chunked):
        raise CompilationFailed(
            f"the model has one library per batch size: {', '.join(map(str, compiled.parts))}",
            where="export_library",
            remedy="optimize the model for one batch size and export it, or save the model for felixlike.load",
        )
    if compiled.pytorch:
        raise CompilationFailed(
            f"PyTorch runs some of the model's operators: {', '.join(compiled.pytorch)}",
            where="export_library",
            remedy="save the model for felixlike.load, or use other operators",
        )
    library = _library(compiled, artefact_description.describe(compiled))
    with written_whole(path) as file:
        file.write(library)


def load(path: Source) -> tuple[Compiled, dict[str, Any]]:
    """Load a saved model and its report.

    Args:
        path: A path or an open binary file.

    Raises:
        InvalidArtefact: The file is missing, damaged, edited, of another kind, or made by an incompatible version or
            for another processor.
        NoGPU: The model needs a GPU, and there is none.
        WrongArchitecture: The model needs a GPU of another architecture.
        OutputNotWritable: There is no space for temporary files.
    """
    with _opened(path) as (file, where):
        meta, files = artefact_file.read(file, where)
    return _open(meta, files, where)


def to_bytes(compiled: Compiled, *, report: Mapping[str, Any]) -> bytes:
    """Return the bytes that `save` writes.

    Raises:
        CompilationFailed: As for `save`.
        InvalidModel: As for `save`.
    """
    file = io.BytesIO()
    artefact_file.pack(file, *_content(compiled, report))
    return file.getvalue()


def from_bytes(content: bytes) -> tuple[Compiled, dict[str, Any]]:
    """Load a model from the result of `to_bytes`. Raise the errors of `load`."""
    return load(io.BytesIO(content))


def read_report(path: Source) -> dict[str, Any]:
    """Return the report saved with a model, on any machine and without reading its code.

    Raises:
        InvalidArtefact: The file is missing, damaged or of another kind.
    """
    with _opened(path) as (file, where):
        return artefact_description.read_report(artefact_file.read_description(file, where), where)


def _content(compiled: Compiled, report: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the description and the other members of a model's file."""
    if isinstance(compiled, Chunked):
        parts = {artefact_file.part_name(size): to_bytes(part, report={}) for size, part in compiled.parts.items()}
        return artefact_description.with_versions({"chunks": described(compiled)}, report), parts
    code = artefact_description.describe(compiled)
    files = {artefact_file.CODE: _library(compiled, code)}
    if compiled.mutations.state:
        files[artefact_file.STATE] = b"".join(_bytes_of(tensor) for tensor in compiled.mutations.state)
    return artefact_description.with_versions(code, report), files


def _bytes_of(tensor: Any) -> bytes:
    """Return the values of a tensor, in row-major order."""
    import torch

    data: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data


def _library(compiled: Compiled, code: Mapping[str, Any]) -> bytes:
    """Return the shared library with its embedded description. Any C compiler can link LLVM's objects."""
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
            remedy="check that the compiler works and that the disk has space for temporary files (TMPDIR)",
        ) from error


def linker() -> str:
    """Return the C compiler that links models. Call it before long work to fail early.

    Raises:
        CompilationFailed: No C compiler is found.
    """
    compiler = c_compiler()
    if compiler is None:
        raise CompilationFailed(
            f"no C compiler was found to link the model ({', '.join(COMPILERS)})",
            where="save",
            remedy="install gcc, or set the environment variable CC to a compiler",
        )
    return compiler


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[IO[bytes], str]]:
    """Open a path, or use an open file; yield the file and its name for messages."""
    if not isinstance(source, str | os.PathLike) and hasattr(source, "read"):
        yield source, str(getattr(source, "name", _BYTES))
        return
    path = option_checks.path(source, "load", error=InvalidArtefact)
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "a device or a pipe"
        what = f"expected a file, got {kind}" if path.exists() else "there is no such file"
        raise InvalidArtefact(what, where=str(path), remedy="check the path")
    try:
        with path.open("rb") as file:
            yield file, str(path)
    except PermissionError:
        raise InvalidArtefact("permission denied", where=str(path), remedy="check the file's permissions") from None


def _open(meta: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> tuple[Compiled, dict[str, Any]]:
    """Open the code from a file that exists as long as the model, so that the model can be saved again."""
    if "chunks" in meta:
        return _open_chunks(meta, files, where), artefact_description.read_report(meta, where)
    description = artefact_description.read(meta, where, files.get(artefact_file.STATE, b""))
    report = artefact_description.read_report(meta, where)
    library = Library(files[artefact_file.CODE])
    try:
        compiled = Compiled(
            codegen.open_library(str(library.path)),
            inputs=description.inputs,
            outputs=description.outputs,
            signature=description.signature,
            structure=description.structure,
            target=description.target,
            name=description.name,
            key=description.key,
            library=library,
            parallel=description.parallel,
            sizes=description.sizes,
            unaligned=description.unaligned,
            mutations=description.mutations,
            pytorch=description.pytorch,
        )
        embedded = codegen.description_in(compiled.machine)
    except (*_tvm.TVM_ERRORS, AttributeError, OSError) as error:
        if not isinstance(error, OSError) and not _tvm.raised_in_tvm(error):
            raise
        raise InvalidArtefact(
            f"the compiled code cannot be loaded: {first_line(error)}",
            where=where,
            remedy="save the model again, or optimize it again",
        ) from None
    artefact_description.compare(meta, embedded, where)
    return compiled, report


def _open_chunks(meta: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> Chunked:
    """Open a model with several parts."""
    artefact_description.check_versions(meta, where)

    def part(size: int) -> Compiled:
        if artefact_file.part_name(size) not in files:
            raise ValueError(f"the part for batch size {size} is missing")
        part_meta, code = artefact_file.read(io.BytesIO(files[artefact_file.part_name(size)]), where)
        if "chunks" in part_meta:
            raise ValueError(f"the part for batch size {size} consists of parts")
        return _open(part_meta, code, where)[0]

    try:
        return from_description(meta["chunks"], part)
    except ValueError as error:
        raise InvalidArtefact(
            f"invalid description: {error}", where=where, remedy="save the model again, or optimize it again"
        ) from None
