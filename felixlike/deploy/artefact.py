"""A compiled model as one file, and back.

In: Compiled and a report. Out: a zip of meta.json and model.so, and from it Compiled again, without model, store or
compiler. Reading executes nothing from the file but, when called, the compiled code itself: load only files you trust.
"""

import json
import os
import platform
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from felixlike._version import __version__
from felixlike.deploy.callable import Compiled
from felixlike.errors import CompilationFailed, InvalidArtefact, OutputNotWritable, UnknownTarget, first_line
from felixlike.frontend import InputSpec, Structure
from felixlike.hardware import COMPILERS, c_compiler, device_name, host_target, instruction_sets

FORMAT = 1
"""Version of the file's layout; a reader knows its own only."""


def check_writable(path: str | Path) -> Path:
    """Raise OutputNotWritable unless a file can be written there; meant for before long work. Returns the path."""
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        raise OutputNotWritable("it is a directory", where=str(path), remedy="give the path of a file")
    if not folder.is_dir():
        raise OutputNotWritable(f"there is no directory {folder}", where=str(path), remedy="make it first")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise OutputNotWritable("permission is denied", where=str(path), remedy="choose another place")
    return path


def save(compiled: Compiled, path: str | Path, *, report: Mapping[str, Any]) -> None:
    """Write a compiled model to a file, whole or not at all.

    report: JSON data kept beside it. Raises OutputNotWritable, CompilationFailed without a C compiler, InvalidModel
    if the class of the outputs cannot be named in a file."""
    path = check_writable(path)
    meta = _meta(compiled, report)
    with tempfile.TemporaryDirectory(prefix="felixlike-") as folder:
        library = Path(folder) / "model.so"
        if compiled.library is not None:
            shutil.copyfile(compiled.library, library)
        else:
            _link(compiled, library)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr("meta.json", json.dumps(meta, indent=1))
                archive.write(library, "model.so")
            partial.replace(path)
        except OSError as error:
            raise OutputNotWritable(f"writing failed: {error.strerror}", where=str(path)) from None
        finally:
            partial.unlink(missing_ok=True)


def load(path: str | Path) -> tuple[Compiled, dict[str, Any]]:
    """A saved model, and the report saved with it.

    Raises InvalidArtefact if the file is missing, damaged, of another kind, or made by an incompatible version or
    for another processor."""
    from felixlike import tvmlib

    path = Path(path)
    meta, library = _read(path)
    _check_versions(meta, tvmlib.version(), str(path))
    _check_machine(meta, str(path))
    try:
        target = tvmlib.Target(meta["target"])
        device_name(target)  # raises where the GPU it needs is missing
        inputs = tuple(InputSpec(i["name"], tuple(map(int, i["shape"])), i["dtype"]) for i in meta["inputs"])
        structure = Structure.from_json(meta["structure"])
        name, report = str(meta["name"]), dict(meta["report"])
    except UnknownTarget as error:
        raise InvalidArtefact(str(error), where=str(path)) from None
    except (KeyError, TypeError, ValueError, *tvmlib.TVM_ERRORS) as error:
        if isinstance(error, InvalidArtefact):
            raise
        raise InvalidArtefact(f"its description is damaged: {error}", where=str(path)) from None
    compiled = _open_library(library, str(path), inputs=inputs, structure=structure, target=target, name=name)
    return compiled, report


def read_report(path: str | Path) -> dict[str, Any]:
    """The report saved with a model, on any machine and without opening its code. Raises InvalidArtefact."""
    meta, _ = _read(Path(path))
    if not isinstance(meta.get("report"), dict):
        raise InvalidArtefact("it has no report", where=str(path))
    return dict(meta["report"])


def _meta(compiled: Compiled, report: Mapping[str, Any]) -> dict[str, Any]:
    from felixlike import tvmlib

    return {
        "format": FORMAT,
        "felixlike": __version__,
        "tvm": tvmlib.version(),
        "machine": [platform.system(), platform.machine()],
        "instructions": sorted(instruction_sets(tvmlib.cpu_features(_host(compiled.target)))),
        "target": str(compiled.target),
        "name": compiled.name,
        "inputs": [asdict(spec) for spec in compiled.inputs],
        "structure": compiled.structure.to_json(),
        "report": dict(report),
    }


def _host(target: Any) -> Any:
    """The CPU part of a target."""
    return host_target() if target.kind.name == "cuda" else target


def _link(compiled: Compiled, library: Path) -> None:
    """Write the shared library.  Only links what LLVM generated, so any C compiler will do."""
    from felixlike import tvmlib

    compiler = c_compiler()
    if compiler is None:
        raise CompilationFailed(
            f"no C compiler was found to link the model ({', '.join(COMPILERS)})",
            where="save",
            remedy="install gcc, or name a compiler in the environment variable CC",
        )
    try:
        target = tvmlib.with_host(compiled.target) if compiled.device.type == "cuda" else compiled.target
        executable = tvmlib.relink_relax(compiled.lowered, compiled.runtime, target)
        executable.export_library(str(library), cc=compiler)
    except (*tvmlib.TVM_ERRORS, OSError) as error:
        raise CompilationFailed(f"linking with {compiler} failed: {first_line(error)}", where="save") from error


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The file's description and library.  zipfile checks both against their checksums."""
    if not path.is_file():
        raise InvalidArtefact("there is no such file", where=str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            meta = json.loads(archive.read("meta.json"))
            library = archive.read("model.so")
    except KeyError:
        raise InvalidArtefact("it is a zip file, but not one of felixlike's", where=str(path)) from None
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OSError) as error:
        raise InvalidArtefact(f"the file is damaged or of another kind: {error}", where=str(path)) from None
    if not isinstance(meta, dict) or "format" not in meta:
        raise InvalidArtefact("it is a zip file, but not one of felixlike's", where=str(path))
    return meta, library


def _check_versions(meta: Mapping[str, Any], tvm: str, where: str) -> None:
    if meta["format"] != FORMAT:
        raise InvalidArtefact(
            f"it has format {meta['format']!r}, this version reads {FORMAT}",
            where=where,
            remedy=f"load it with felixlike {meta.get('felixlike', '(unknown)')}, or optimize the model again",
        )
    if meta.get("tvm") != tvm:
        raise InvalidArtefact(
            f"it was compiled by TVM {meta.get('tvm')}, but {tvm} is installed",
            where=where,
            remedy="install that version, or optimize the model again",
        )


def _check_machine(meta: Mapping[str, Any], where: str) -> None:
    """Refuse code for another processor: it would end in an illegal instruction."""
    from felixlike import tvmlib

    here = [platform.system(), platform.machine()]
    if meta.get("machine") != here:
        made = " ".join(map(str, meta.get("machine") or ["an unknown machine"]))
        raise InvalidArtefact(
            f"it was made for {made}, this is {' '.join(here)}",
            where=where,
            remedy="optimize the model on this machine",
        )
    host = tvmlib.cpu_features(host_target())
    missing = [str(feature) for feature in meta.get("instructions", ()) if feature not in host]
    if missing:
        raise InvalidArtefact(
            f"it needs a processor with {', '.join(missing)}", where=where, remedy="optimize the model on this machine"
        )


def _open_library(library: bytes, where: str, **known: Any) -> Compiled:
    """Open a shared library from a file that lives as long as the model, so that it can be saved again."""
    from felixlike import tvmlib

    folder = Path(tempfile.mkdtemp(prefix="felixlike-"))
    try:
        file = folder / "model.so"
        file.write_bytes(library)
        compiled = Compiled(tvmlib.runtime.load_module(str(file)), library=file, **known)
    except (*tvmlib.TVM_ERRORS, AttributeError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InvalidArtefact(f"its compiled code cannot be opened: {first_line(error)}", where=where) from None
    weakref.finalize(compiled, shutil.rmtree, folder, ignore_errors=True)
    return compiled
