"""Open a .pt2 file without running code from it.

Input: a path. Output: an ExportedProgram. torch.export.load unpickles and evaluates parts of the file, so the file is
checked first. Plain tensors, aten operators, fixed sizes and plain containers are accepted, everything else is
refused.
"""

import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from felixlike._util.torch_modes import alone
from felixlike._util.wording import advice
from felixlike.errors import InvalidModel, first_line

_TRUST = "if you trust the file, load it yourself: felixlike.optimize(torch.export.load(path))"
_TRUST_COMMAND = (
    "if you trust the file, write a Python file with def model(): return torch.export.load(PATH), and pass"
    " FILE.py:model"
)

_NAMES = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|data/(weights|constants)/(weight|tensor)_\d+"
    r"|data/(weights|constants)/model_(weights|constants)_config\.json|models/model\.json|data/sample_inputs/model\.pt"
    r"|extra/.*"
)
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.\w+\.\w+|_operator\.getitem")
_SUSPECT = (
    "guards_code",
    "range_constraints",
    "custom_obj_values",
    "as_custom_obj",
    "custom_obj",
    "as_operator",
    "as_graph",
)
"""Entries of the program's JSON that must be empty."""
_CONTAINER = re.compile(r"builtins\.(tuple|list|dict)|collections\.OrderedDict|transformers\.[\w.]+\.\w+Output\w*")


@alone(exports=True)
def open_pt2(path: Path) -> Any:
    """Open a file written by torch.export.save.

    Raises InvalidModel if the file cannot be read, or if opening it would run code. torch 2.13 would run: pickles of
    weights and constants marked use_pickle (torch.load with weights_only=False, pickle.loads), custom objects, the
    sample inputs (falls back to a full unpickler), symbolic sizes (sympy's eval), guards (exec), and output
    containers that name modules to import.
    """
    import torch

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidModel(
            f"cannot read the file: {error.strerror}", where=str(path), remedy="check the path and its permissions"
        ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check(archive, str(path))
        with warnings.catch_warnings():
            # PyTorch before 2.13 warns of the buffer that it reads the file into itself.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            return torch.export.load(io.BytesIO(data))
    except InvalidModel:
        raise
    except Exception as error:  # torch and zipfile raise many kinds on damaged files
        raise InvalidModel(
            f"cannot read the exported program: {first_line(error)}",
            where=str(path),
            remedy="create the file with torch.export.save",
        ) from None


def _check(archive: zipfile.ZipFile, where: str) -> None:
    """Raise InvalidModel if opening the archive could run code."""
    names = archive.namelist()
    if len(set(names)) < len(names):
        raise _unsafe("two entries have the same name", where)
    files = {name.partition("/")[2]: name for name in names}
    unknown = sorted(name for name in files if not _NAMES.fullmatch(name))
    if unknown or len(files) < len(names):
        what = f"the unexpected entry {unknown[0]!r}" if unknown else "several archives"
        raise _unsafe(f"it contains {what}", where)
    program = json.loads(archive.read(files["models/model.json"]))
    for kind in ("weights", "constants"):
        config = json.loads(archive.read(files[f"data/{kind}/model_{kind}_config.json"]))["config"]
        for key, entry in config.items():
            if entry.get("use_pickle") is not False or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
                raise _unsafe(f"{kind[:-1]} {key} is pickled", where)
    _check_program(program, where)
    _check_samples(archive.read(files["data/sample_inputs/model.pt"]), where)


def _check_program(program: Any, where: str) -> None:
    """Check the program's JSON: operators, symbolic expressions, guards, custom objects and containers."""
    for key, value in _entries(program):
        if key == "target" and not (isinstance(value, str) and _OPERATOR.fullmatch(value)):
            raise _unsafe(f"it calls {value!r}, which is not an aten operator", where)
        if key in ("expr_str", "as_expr"):
            raise _unsafe("it has symbolic sizes (dynamic shapes are not supported in files)", where)
        if key in _SUSPECT and value:
            raise _unsafe(f"its {key} is not empty", where)
        if key in ("in_spec", "out_spec", "treespec") and value:
            for inner, kind in _entries(json.loads(value)):
                if inner == "type" and kind is not None and not _CONTAINER.fullmatch(kind):
                    raise _unsafe(f"its inputs or outputs are nested in {kind}", where)
            if "__enum__" in value:
                raise _unsafe("keys of its inputs or outputs are enumeration members", where)


def _check_samples(data: bytes, where: str) -> None:
    """Raise InvalidModel if the sample inputs contain more than plain tensors."""
    import torch

    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        raise _unsafe("its sample inputs are not plain tensors", where) from None


def _entries(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield all (key, value) pairs of nested JSON."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key, value
            yield from _entries(value)
    elif isinstance(data, list):
        for value in data:
            yield from _entries(value)


def _unsafe(what: str, where: str) -> InvalidModel:
    """Return the error for a file whose opening could run code."""
    return InvalidModel(
        f"opening the file could run code from it: {what}", where=where, remedy=advice(_TRUST, _TRUST_COMMAND)
    )
