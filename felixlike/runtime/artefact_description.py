"""Write, read and validate the description of a saved model.

Inputs: the JSON data of a file's description, and the copy embedded in its code. Output: the validated description, or
an InvalidArtefact error that names the field. Every field must have the right type, fit this machine, and equal the
code's copy. A file may have been edited with corrected checksums, and generated code does not check sizes and types, so
every field is validated.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike._version import __version__
from felixlike.errors import InvalidArtefact, NoGPU, UnknownTarget, WrongArchitecture, first_line
from felixlike.frontend import NONE, InputSpec, Mutations, OutputSpec, Signature, Sizes, Structure
from felixlike.hardware import (
    PAIRS,
    TILES,
    device_name,
    has_instruction,
    host_target,
    instruction_sets,
    kind_of,
    require_runnable,
    resolve_target,
)
from felixlike.runtime import constant_layout
from felixlike.runtime.artefact_file import NO_CONSTANTS, Constants

if TYPE_CHECKING:
    from felixlike.runtime.callable import Compiled

FORMATS = (2, 3, 4, 5)
"""Versions of the file format that can be read. A file has version 3 only if an output has a memory order, 4 only if
the model changes tensors in place, and 5 only if large constants are stored apart from the code, or PyTorch runs some
of its operators."""

_LARGEST = 2**40
"""Maximum size of a dimension: larger than that of any tensor."""

_Nested = TypeVar("_Nested", Signature, Structure)

_AGAIN = "save the model again, or optimize it again"


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a file's code; see the arguments of `Compiled`."""

    target: Any
    name: str
    key: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    signature: Signature
    structure: Structure
    parallel: bool
    sizes: Sizes | None
    unaligned: bool
    mutations: Mutations
    pytorch: tuple[str, ...]
    constants: tuple[Any, ...]


def describe(compiled: Compiled, constants: Sequence[Any] = ()) -> dict[str, Any]:
    """Return JSON data that describe the code: where it runs and how it is called.

    constants: The tensors that are stored apart from the code.
    """
    apart = {"constants": constant_layout.described(constants)} if constants else {}
    changed = {"changes": _changes(compiled.mutations)} if compiled.mutations else {}
    pytorch = {"pytorch": list(compiled.pytorch)} if compiled.pytorch else {}
    return {
        "tvm": _tvm.version(),
        "machine": [platform.system(), platform.machine()],
        "instructions": sorted(_instructions(_host(compiled.target))),
        "target": str(compiled.target),
        "name": compiled.name,
        "key": compiled.key,
        "inputs": [asdict(spec) for spec in compiled.inputs],
        "outputs": [_output(spec) for spec in compiled.outputs],
        "signature": compiled.signature.to_json(),
        "structure": compiled.structure.to_json(),
        "parallel": compiled.parallel,
        "sizes": None if compiled.sizes is None else compiled.sizes.to_json(),
        "unaligned": compiled.unaligned,
        **changed,
        **pytorch,
        **apart,
    }


def _changes(mutations: Mutations) -> dict[str, Any]:
    """Return the JSON data of what a model changes in place; the values of its buffers are a member of their own."""
    buffers = [
        {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in zip(mutations.buffers, mutations.state, strict=True)
    ]
    return {"inputs": list(mutations.inputs), "buffers": buffers}


def with_versions(
    description: Mapping[str, Any], report: Mapping[str, Any], *, constants_apart: bool = False
) -> dict[str, Any]:
    """Return the JSON data of the whole file, with versions and report.

    constants_apart: Whether the file has a member with constants.
    """
    ordered = any("order" in spec for spec in description.get("outputs", ()))
    newest = constants_apart or "pytorch" in description
    version = FORMATS[3 if newest else 2 if "changes" in description else int(ordered)]
    return {"format": version, "felixlike": __version__, **description, "report": dict(report)}


def _output(spec: OutputSpec) -> dict[str, Any]:
    """Return the JSON data of an output, with its memory order if it has one."""
    data = asdict(spec)
    return data if spec.order else {name: value for name, value in data.items() if name != "order"}


def read(meta: Mapping[str, Any], where: str, state: bytes = b"", constants: Constants = NO_CONSTANTS) -> Description:
    """Read and validate a description. Raise InvalidArtefact, NoGPU or WrongArchitecture.

    state: The values of the buffers that the model changes.
    constants: The values of the constants apart from the code. They are checked against their checksums unless they
        are mapped.
    """
    check_versions(meta, where)
    _check_compiler(meta, where)
    _check_machine(meta, where)
    inputs = tuple(InputSpec(**spec) for spec in _tensors(meta, "inputs", where))
    outputs = tuple(
        OutputSpec(**spec, order=_order(data, len(spec["shape"]), f"outputs[{place}]", where))
        for place, (spec, data) in enumerate(zip(_tensors(meta, "outputs", where), meta["outputs"], strict=True))
    )
    signature = _nested(meta, "signature", Signature.from_json, where)
    if len(signature.names) != len(inputs):
        raise _wrong("signature", f"has {counted(len(signature.names), 'tensor')}, but inputs has {len(inputs)}", where)
    structure = _nested(meta, "structure", Structure.from_json, where)
    if len(structure.places()) != len(outputs):
        raise _wrong(
            "structure", f"has {counted(len(structure.places()), 'tensor')}, but outputs has {len(outputs)}", where
        )
    parallel = _flag(meta, "parallel", where)
    unaligned = "unaligned" in meta and _flag(meta, "unaligned", where)  # earlier versions did not write it
    name, key = _text(meta, "name", where), _text(meta, "key", where)
    sizes = _sizes(meta, inputs, where)
    mutations = _mutations(meta, inputs, state, where)
    pytorch = tuple(_texts(meta, "pytorch", where)) if "pytorch" in meta else ()
    target = _target(meta, where)
    tensors = _constants(meta, constants, where)
    return Description(
        target,
        name,
        key,
        inputs,
        outputs,
        signature,
        structure,
        parallel,
        sizes,
        unaligned,
        mutations,
        pytorch,
        tensors,
    )


def _constants(meta: Mapping[str, Any], constants: Constants, where: str) -> tuple[Any, ...]:
    """Return the constants apart from the code, as tensors that share the memory; none in files without the field."""
    import torch

    if "constants" not in meta:
        return ()
    specs = _tensors(meta, "constants", where, named=False)
    offsets = _list(meta, "offsets", where, _is_offset, f"multiples of {constant_layout.ALIGNMENT}")
    if len(offsets) != len(specs):
        raise _wrong("offsets", f"has {len(offsets)} elements, but constants has {len(specs)}", where)
    tensors = []
    for index, (spec, offset) in enumerate(zip(specs, offsets, strict=True)):
        dtype, count = getattr(torch, spec["dtype"]), math.prod(spec["shape"])
        if offset + count * dtype.itemsize > len(constants.data):
            raise _wrong(f"constants[{index}]", f"needs more bytes than the {len(constants.data)} in the file", where)
        tensor = torch.frombuffer(constants.data, dtype=dtype, count=count, offset=offset)
        tensors.append(tensor.reshape(spec["shape"]))
    checksums = [data.get("crc32") for data in meta["constants"]]
    found = checksums if constants.mapped else constant_layout.checksums(tensors)
    for index, (checksum, expected) in enumerate(zip(found, checksums, strict=True)):
        if checksum != expected:
            raise InvalidArtefact(
                f"the file is damaged: the checksum of constants[{index}] is wrong", where=where, remedy=_AGAIN
            )
    return tuple(tensors)


def _mutations(meta: Mapping[str, Any], inputs: tuple[InputSpec, ...], state: bytes, where: str) -> Mutations:
    """Return what the model changes in place; nothing in files without the field."""
    import torch

    if "changes" not in meta:
        return NONE
    changes = meta["changes"]
    if not isinstance(changes, dict):
        raise _wrong("changes", f"is {_shown(changes)}, not an object", where)
    places = _list(
        changes, "inputs", where, lambda v: type(v) is int and 0 <= v < len(inputs), "indices of inputs", "changes"
    )
    if places != sorted(set(places)):
        raise _wrong("changes.inputs", f"is {_shown(places)}, not in ascending order", where)
    buffers, tensors = _tensors(changes, "buffers", where), list[Any]()
    for spec in buffers:
        dtype = getattr(torch, spec["dtype"])
        count = math.prod(spec["shape"])
        if count * dtype.itemsize > len(state):
            raise _wrong("changes.buffers", f"needs more bytes than {len(state)} for {_shown(spec['name'])}", where)
        tensors.append(torch.frombuffer(bytearray(state[: count * dtype.itemsize]), dtype=dtype).reshape(spec["shape"]))
        state = state[count * dtype.itemsize :]
    if state:
        raise _wrong("changes.buffers", f"leaves {len(state)} bytes of values", where)
    names = (*(inputs[place].name for place in places), *(spec["name"] for spec in buffers))
    return Mutations(names, (*places, *range(len(inputs), len(inputs) + len(buffers))), tuple(tensors))


def _is_offset(value: Any) -> bool:
    """Return whether a value is a valid offset of a constant."""
    return type(value) is int and value >= 0 and value % constant_layout.ALIGNMENT == 0


def _flag(meta: Mapping[str, Any], field: str, where: str) -> bool:
    """Return a field that must be a bool."""
    value = _field(meta, field, where)
    if not isinstance(value, bool):
        raise _wrong(field, f"is {_shown(value)}, not true or false", where)
    return value


def _sizes(meta: Mapping[str, Any], inputs: tuple[InputSpec, ...], where: str) -> Sizes | None:
    """Return the dynamic sizes; None without any, as in files of earlier versions."""
    if meta.get("sizes") is None:
        return None
    try:
        return Sizes.from_json(meta["sizes"], [spec.shape for spec in inputs])
    except InvalidArtefact as error:
        raise _wrong("sizes", f"is invalid: {error.what}", where) from None


def read_report(meta: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the report in a description, regardless of its machine. Raise InvalidArtefact if it is malformed."""
    report = _field(meta, "report", where)
    if not isinstance(report, dict):
        raise _wrong("report", f"is {_shown(report)}, not an object", where)
    return dict(report)


def compare(meta: Mapping[str, Any], own: str | None, where: str) -> None:
    """Raise InvalidArtefact unless the description equals `own`, the one embedded in the code."""
    try:
        truth = json.loads(own or "")
    except ValueError:
        truth = None
    if not isinstance(truth, dict):
        raise InvalidArtefact("the compiled code contains no description", where=where, remedy=_AGAIN)
    for field in (*truth, *(optional for optional in ("changes", "constants") if optional in meta)):
        value = truth.get(field)
        if _canonical(meta.get(field)) != _canonical(value):
            raise _wrong(field, f"is {_shown(meta.get(field))}, but the compiled code has {_shown(value)}", where)


def _canonical(value: Any) -> str:
    """Return a JSON value as text that is equal for equal values, including NaN."""
    return json.dumps(value, sort_keys=True)


def check_versions(meta: Mapping[str, Any], where: str) -> None:
    """Raise InvalidArtefact unless this version can read the file's format."""
    version, writer = _field(meta, "format", where), _text(meta, "felixlike", where)
    if type(version) is not int or version not in FORMATS:
        formats = f"{', '.join(map(str, FORMATS[:-1]))} or {FORMATS[-1]}"
        raise InvalidArtefact(
            f"expected file format {formats}, got {_shown(version)}",
            where=where,
            remedy=f"load it with felixlike {writer}, which saved it, or optimize the model again",
        )


def _check_compiler(meta: Mapping[str, Any], where: str) -> None:
    """Raise InvalidArtefact if the file was compiled by another version of TVM."""
    made = _text(meta, "tvm", where)
    if made != _tvm.version():
        raise InvalidArtefact(
            f"the model was compiled by TVM {made}, but TVM {_tvm.version()} is installed",
            where=where,
            remedy=f"install TVM {made}, or optimize the model again",
        )


def _check_machine(meta: Mapping[str, Any], where: str) -> None:
    """Raise InvalidArtefact for code of another processor, which would fail with an illegal instruction."""
    here = [platform.system(), platform.machine()]
    machine = _texts(meta, "machine", where)
    if machine != here:
        raise InvalidArtefact(
            f"the model was compiled for {' '.join(machine)}, but this machine is {' '.join(here)}",
            where=where,
            remedy="optimize the model on this machine",
        )
    host = _instructions(host_target())
    missing = [feature for feature in _texts(meta, "instructions", where) if feature not in host]
    if missing:
        raise InvalidArtefact(
            f"this processor lacks instructions that the model needs: {', '.join(missing)}",
            where=where,
            remedy="optimize the model on this machine",
        )


def _instructions(target: Any) -> frozenset[str]:
    """Return the instruction sets that code for a CPU's target may use."""
    sets = instruction_sets(_tvm.cpu_features(target))
    hidden = {name for name in (PAIRS, TILES) if not has_instruction(name, target)}
    return sets - hidden


def _target(meta: Mapping[str, Any], where: str) -> Any:
    """Return the target, if code for it can run on this machine."""
    text = _text(meta, "target", where)
    try:
        target = resolve_target(_tvm.Target(text))
        require_runnable(target)
        device_name(target)  # raises if the required GPU is missing
    except (NoGPU, WrongArchitecture) as error:  # the file is valid; another machine may read it
        raise type(error)(error.what, where=where, remedy=error.remedy) from None
    except UnknownTarget as error:
        raise InvalidArtefact(error.what, where=where, remedy=error.remedy) from None
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        raise _wrong("target", f"cannot be read: {first_line(error)}", where) from None
    return target


def _nested(meta: Mapping[str, Any], field: str, read: Callable[[Any], _Nested], where: str) -> _Nested:
    """Return how inputs or outputs are nested."""
    try:
        return read(_field(meta, field, where))
    except InvalidArtefact as error:
        raise _wrong(field, f"is invalid: {error.what}", where, error.remedy) from None


def _tensors(meta: Mapping[str, Any], field: str, where: str, *, named: bool = True) -> list[dict[str, Any]]:
    """Return the name, shape and dtype of each input or output; without `named` of tensors that have no name."""
    import torch

    specs = []
    for index, spec in enumerate(_list(meta, field, where, lambda value: isinstance(value, dict), "objects")):
        place = f"{field}[{index}]"
        shape = _list(spec, "shape", where, _is_size, "positive integers", place)
        dtype = _text(spec, "dtype", where, place)
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise _wrong(f"{place}.dtype", f"is {_shown(dtype)}, not a torch dtype", where)
        name = {"name": _text(spec, "name", where, place)} if named else {}
        specs.append({**name, "shape": tuple(shape), "dtype": dtype})
    names = [spec["name"] for spec in specs] if named else []
    if twice := [name for name in names if names.count(name) > 1]:
        raise _wrong(field, f"has the name {_shown(twice[0])} twice", where)
    return specs


def _order(spec: Mapping[str, Any], rank: int, place: str, where: str) -> tuple[int, ...]:
    """Return the memory order of an output; empty without one."""
    if "order" not in spec:
        return ()
    order = _list(spec, "order", where, lambda value: type(value) is int, "integers", place)
    if sorted(order) != list(range(rank)):
        raise _wrong(f"{place}.order", f"is {_shown(order)}, not a permutation of {counted(rank, 'dimension')}", where)
    return tuple(order)


def _is_size(value: Any) -> bool:
    """Return whether a value is a valid size of a dimension."""
    return type(value) is int and 1 <= value <= _LARGEST


def _field(meta: Mapping[str, Any], field: str, where: str, place: str = "") -> Any:
    """Return a field that must exist."""
    if field not in meta:
        raise _wrong(f"{place}.{field}" if place else field, "is missing", where)
    return meta[field]


def _text(meta: Mapping[str, Any], field: str, where: str, place: str = "") -> str:
    """Return a field that must be a string."""
    value = _field(meta, field, where, place)
    if not isinstance(value, str):
        raise _wrong(f"{place}.{field}" if place else field, f"is {_shown(value)}, not a string", where)
    return value


def _texts(meta: Mapping[str, Any], field: str, where: str) -> list[str]:
    """Return a field that must be a list of strings."""
    return _list(meta, field, where, lambda value: isinstance(value, str), "strings")


def _list(
    meta: Mapping[str, Any], field: str, where: str, fits: Callable[[Any], bool], kind: str, place: str = ""
) -> list[Any]:
    """Return a field that must be a list of valid elements."""
    value = _field(meta, field, where, place)
    if not isinstance(value, list) or not all(map(fits, value)):
        raise _wrong(f"{place}.{field}" if place else field, f"is {_shown(value)}, not a list of {kind}", where)
    return value


def _wrong(field: str, what: str, where: str, remedy: str = "") -> InvalidArtefact:
    """Return the error for a field."""
    return InvalidArtefact(f"invalid description: {field} {what}", where=where, remedy=remedy or _AGAIN)


def _shown(value: Any) -> str:
    """Return a value as JSON of at most 60 characters, for messages."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _host(target: Any) -> Any:
    """Return the CPU part of a target."""
    return target if kind_of(target).on_host else host_target()
