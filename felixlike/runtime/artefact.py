"""Save a compiled model to one file or to bytes, and load it again.

Inputs: a compiled model and a report. Output: a zip of meta.json and model.so, or of one such zip per part. Large
constants of models for CPUs are a member of their own, constants.bin, from which loaded models read them. Loading
returns the compiled model and needs no original model, store or compiler. It executes only the compiled code of the
file: load only files you trust.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import IO, Any

from felixlike import _tvm, codegen
from felixlike._util import option_checks, scratch
from felixlike._util.atomic_files import check_writable, written_whole
from felixlike.errors import CompilationFailed, InvalidArtefact, first_line
from felixlike.hardware import COMPILERS, c_compiler, kind_of
from felixlike.runtime import artefact_description, artefact_file
from felixlike.runtime.artefact_file import Constants
from felixlike.runtime.batch_buckets import Chunked, described, from_description
from felixlike.runtime.callable import Compiled
from felixlike.runtime.constant_layout import Layout, content_of
from felixlike.runtime.shared_library import Library

_AGAIN = "save the model again, or optimize it again"

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
    content = _content(compiled, report)  # before a temporary file is created beside the path
    with written_whole(path) as file:
        artefact_file.pack(file, *content)


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
        meta, files, constants = artefact_file.read(file, where, mapped=True)
    with written_whole(path) as file:
        artefact_file.pack(file, {**meta, "report": dict(report)}, files, (constants.data,))


def export_library(compiled: Compiled, path: str | os.PathLike[str]) -> None:
    """Write only the shared library, which TVM's runtime loads without felixlike, Python or torch.

    That of a model in slices of its batch computes the whole batch at once.

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
    if isinstance(compiled, Chunked) and compiled.whole is not None:
        compiled = compiled.whole
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
    library = _standalone_library(compiled)
    with written_whole(path) as file:
        file.write(library)


def load(path: Source, *, mmap: bool = False) -> tuple[Compiled, dict[str, Any]]:
    """Load a saved model and its report.

    Args:
        path: A path or an open binary file.
        mmap: Whether large constants are mapped from the file, unchecked, instead of read.

    Raises:
        InvalidOption: `mmap` is true, and `path` is an object that is not a file on disk.
        InvalidArtefact: The file is missing, damaged, edited, of another kind, or made by an incompatible version or
            for another processor.
        NoGPU: The model needs a GPU, and there is none.
        WrongArchitecture: The model needs a GPU of another architecture.
        OutputNotWritable: There is no space for temporary files.
    """
    with _opened(path) as (file, where):
        meta, files, constants = artefact_file.read(file, where, mapped=mmap)
    return _open(meta, files, constants, where)


def writer(compiled: Compiled, *, report: Mapping[str, Any]) -> Callable[[IO[bytes]], None]:
    """Return a function that writes to an open file what `save` writes. It refers to the weights and copies none.

    Raises:
        CompilationFailed: As for `save`.
        InvalidModel: As for `save`.
    """
    content = _content(compiled, report)
    return lambda file: artefact_file.pack(file, *content)


def to_bytes(compiled: Compiled, *, report: Mapping[str, Any]) -> bytes:
    """Return the bytes that `save` writes.

    Raises:
        CompilationFailed: As for `save`.
        InvalidModel: As for `save`.
    """
    file = io.BytesIO()
    writer(compiled, report=report)(file)
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


_Content = tuple[dict[str, Any], dict[str, bytes], Iterable[memoryview]]
"""The description, the other members by name, and the pieces of the member with the constants."""


def _content(compiled: Compiled, report: Mapping[str, Any]) -> _Content:
    """Return what a model's file consists of."""
    layout = Layout()
    if not isinstance(compiled, Chunked):
        return *_code(compiled, report, layout), layout.pieces
    parts = {}
    for size, part in compiled.parts.items():
        file = io.BytesIO()
        artefact_file.pack(file, *_code(part, {}, layout))
        parts[artefact_file.part_name(size)] = file.getvalue()
    description = {"chunks": described(compiled)}
    meta = artefact_description.with_versions(description, report, constants_apart=bool(layout.pieces))
    return meta, parts, layout.pieces


def _code(compiled: Compiled, report: Mapping[str, Any], layout: Layout) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the description and the other members of a model without parts. Its constants are added to the layout."""
    module, constants = compiled.lowered, compiled.constants
    if compiled.library is None and kind_of(compiled.target).on_host:
        module, constants = _with_constants_apart(compiled)
    if compiled.library is not None:
        code = json.loads(compiled.library.description)
        files = {name: path.read_bytes() for name, path in compiled.library.files.items()}
    else:
        code = artefact_description.describe(compiled, constants)
        files = _linked(module, codegen.kernels_of_runnable(compiled.runtime), compiled, code, apart=bool(constants))
    if compiled.mutations.state:
        files[artefact_file.STATE] = b"".join(content_of(tensor) for tensor in _on_cpu(compiled.mutations.state))
    meta = artefact_description.with_versions(code, report, constants_apart=bool(constants))
    return meta | ({"offsets": layout.placed(constants, code["constants"])} if constants else {}), files


def _with_constants_apart(compiled: Compiled) -> tuple[Any, tuple[Any, ...]]:
    """Return the lowered module with its large constants as parameters, and the constants as torch tensors."""
    from torch.utils.dlpack import from_dlpack

    module, constants = codegen.constants_as_parameters(compiled.lowered)
    return module, tuple(map(from_dlpack, constants))


def linked_model(kernels: Any, lowered: Any, attributes: Mapping[str, Any]) -> Compiled:
    """Link a compiled module for a CPU into a shared library, and open that.

    Machine code is generated once, for the library, from which the model can be saved too.

    Args:
        kernels: The module with the model's kernels, such as that of `codegen.kernels_of_runnable`; None without any.
        lowered: The Relax module that was compiled.
        attributes: Further arguments of `Compiled`.

    Raises:
        CompilationFailed: No C compiler is found, linking fails, or the library cannot be loaded.
        InvalidModel: The class of the outputs cannot be named in a file.
    """
    key = f"{attributes['name']}-{uuid.uuid4().hex}"
    unopened: Any = SimpleNamespace(lowered=lowered, sizes=None, key=key, **attributes)
    module, constants = _with_constants_apart(unopened)
    code = artefact_description.describe(unopened, constants)
    library = Library(_linked(module, kernels, unopened, code, apart=bool(constants)), json.dumps(code))
    try:
        opened = codegen.open_library(str(library.files[artefact_file.CODE]))
    except (*_tvm.TVM_ERRORS, OSError) as error:
        if not isinstance(error, OSError) and not _tvm.raised_in_tvm(error):
            raise
        raise CompilationFailed(
            f"the linked model cannot be loaded: {first_line(error)}",
            where=unopened.name,
            remedy=_remedy(library),
        ) from error
    return Compiled(opened, lowered=lowered, library=library, constants=constants, key=key, **attributes)


def _on_cpu(tensors: Iterable[Any]) -> Iterator[Any]:
    """Yield contiguous tensors on the CPU."""
    for tensor in tensors:
        yield tensor.cpu().contiguous()


def _standalone_library(compiled: Compiled) -> bytes:
    """Return a shared library with all constants."""
    library, module, kernels = compiled.library, compiled.lowered, None
    if library is None:
        kernels = codegen.kernels_of_runnable(compiled.runtime)
    elif not compiled.constants:
        return library.files[artefact_file.CODE].read_bytes()
    else:
        program = library.files[artefact_file.PROGRAM].read_text()
        module, kernels = codegen.linkable(program, library.files[artefact_file.KERNELS], compiled.tvm_constants())
    return _linked(module, kernels, compiled, artefact_description.describe(compiled))[artefact_file.CODE]


def _linked(
    module: Any, kernels: Any, compiled: Compiled, code: Mapping[str, Any], *, apart: bool = False
) -> dict[str, bytes]:
    """Return the shared library with an embedded description. Any C compiler can link LLVM's objects.

    Args:
        module: The lowered module.
        kernels: The module with the compiled kernels.
        compiled: The model.
        code: The description.
        apart: Whether the constants are stored apart. What the library can be linked again from is then returned too.
    """
    compiler = linker()
    try:
        target = compiled.target if kind_of(compiled.target).on_host else _tvm.with_host(compiled.target)
        executable = codegen.relink_relax(module, kernels, target, json.dumps(code))
        with scratch.temporary("link") as folder:
            library = folder / artefact_file.CODE
            executable.export_library(str(library), cc=compiler, workspace_dir=str(folder))
            files = {artefact_file.CODE: library.read_bytes()}
            if apart:
                files[artefact_file.KERNELS] = (folder / "lib0.o").read_bytes()  # the name that TVM gives it
                files[artefact_file.PROGRAM] = codegen.program_text(module).encode()
            return files
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


def _open(
    meta: Mapping[str, Any], files: Mapping[str, bytes], constants: Constants, where: str
) -> tuple[Compiled, dict[str, Any]]:
    """Open the code from a file that exists as long as the model, so that the model can be saved again."""
    if "chunks" in meta:
        return _open_chunks(meta, files, constants, where), artefact_description.read_report(meta, where)
    description = artefact_description.read(meta, where, files.get(artefact_file.STATE, b""), constants)
    for name in (artefact_file.KERNELS, artefact_file.PROGRAM) if description.constants else ():
        if name not in files:
            raise InvalidArtefact(f"member {name} is missing", where=where, remedy=_AGAIN)
    report = artefact_description.read_report(meta, where)
    library = Library({name: content for name, content in files.items() if name != artefact_file.STATE})
    try:
        compiled = Compiled(
            codegen.open_library(str(library.files[artefact_file.CODE])),
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
            constants=description.constants,
        )
        library.description = codegen.description_in(compiled.machine) or ""
    except (*_tvm.TVM_ERRORS, AttributeError, OSError) as error:
        if not isinstance(error, OSError) and not _tvm.raised_in_tvm(error):
            raise
        raise InvalidArtefact(
            f"the compiled code cannot be loaded: {first_line(error)}",
            where=where,
            remedy=_remedy(library),
        ) from None
    artefact_description.compare(meta, library.description, where)
    return compiled, report


def _remedy(library: Library) -> str:
    """Return what to do about a library that cannot be loaded."""
    folder = library.files[artefact_file.CODE].parent
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return f"set TMPDIR to a folder whose file system allows code to run: that of {folder} is mounted with noexec"
    return _AGAIN


def _open_chunks(meta: Mapping[str, Any], files: Mapping[str, bytes], constants: Constants, where: str) -> Chunked:
    """Open a model with several parts."""
    artefact_description.check_versions(meta, where)

    def part(size: int) -> Compiled:
        if artefact_file.part_name(size) not in files:
            raise ValueError(f"the part for batch size {size} is missing")
        part_meta, code, _ = artefact_file.read(io.BytesIO(files[artefact_file.part_name(size)]), where)
        if "chunks" in part_meta:
            raise ValueError(f"the part for batch size {size} consists of parts")
        return _open(part_meta, code, constants, where)[0]

    try:
        return from_description(meta["chunks"], part)
    except ValueError as error:
        raise InvalidArtefact(f"invalid description: {error}", where=where, remedy=_AGAIN) from None
