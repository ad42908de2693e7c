"""Import ONNX models: check a file or ModelProto, fix its shapes and import it with TVM.

Input: a path or a ModelProto, and shapes for sizes that the file leaves open. Output: a `Source`. Needs the optional
`onnx` package.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util.wording import advice
from felixlike.errors import (
    EmptyModel,
    InvalidModel,
    InvalidShape,
    MissingDependency,
    RandomOperator,
    UnsupportedOperator,
    first_line,
)
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.input_shapes import Example, Given, Input, check_count, check_names, read_shapes
from felixlike.frontend.importers.onnx_constants import with_computed_sizes
from felixlike.frontend.importers.onnx_functions import operators_without_converter, with_functions_written_out
from felixlike.frontend.importers.onnx_operators import converters
from felixlike.frontend.importers.pytorch_regions import note_of
from felixlike.frontend.importers.refusals import quiet
from felixlike.frontend.importers.relax import from_relax
from felixlike.frontend.originals.onnx_reference import nodes_of
from felixlike.frontend.signature.signature import Signature


def from_onnx(model: Any, shapes: Any, target: Any = None) -> Source:
    """Import an ONNX file (a path) or ModelProto.

    `shapes` must contain the sizes that the model leaves open (named or unspecified). Recurrent layers need a CPU as
    target. Raises MissingDependency, InvalidModel, InvalidShape, UnsupportedOperator, RandomOperator, EmptyModel.
    """
    onnx = _onnx()
    name = _name_of(model)
    proto = _checked(onnx, model, name)
    inputs = _declared_inputs(onnx, proto, name)
    examples = _match(read_shapes(shapes), inputs, where=name)
    specs = {key: example for (key, _, _), example in zip(inputs, examples, strict=True)}
    module = _imported(proto, {key: list(example.shape) for key, example in specs.items()}, name, target)
    user_inputs = Given(positional=tuple(Input((example,)) for example in specs.values()))
    source = from_relax(module, user_inputs, name=name)
    signature = Signature.plain(list(specs))  # TVM renames input.1 to input_1
    return replace(source, signature=signature, original=proto, note=note_of(module))


def with_open_sizes(model: Any) -> tuple[str, Any, Any]:
    """Return an ONNX model's name, its Relax module with symbolic open sizes, and its ModelProto.

    Raises like from_onnx.
    """
    onnx = _onnx()
    name = _name_of(model)
    proto = _checked(onnx, model, name)
    return name, _imported(proto, None, name), proto


def _name_of(model: Any) -> str:
    """Return the model's name: the file's stem or the graph's name."""
    return Path(model).stem if isinstance(model, str | Path) else (model.graph.name or "onnx model")


def _checked(onnx: Any, model: Any, name: str) -> Any:
    """Return the ModelProto, or raise EmptyModel if it computes nothing."""
    proto = _read(onnx, model)
    _refuse_sequences(proto, name)
    if not proto.graph.output or not proto.graph.node:
        raise EmptyModel(
            "the graph computes nothing", where=name, remedy="pass a model with at least one operator and an output"
        )
    return proto


def _onnx() -> Any:
    """Import the onnx package.  Raises MissingDependency."""
    try:
        import onnx
        import onnx.checker
    except ImportError:
        raise MissingDependency(
            "reading ONNX models needs the onnx package", where="onnx", remedy="pip install onnx"
        ) from None
    return onnx


def _read(onnx: Any, model: Any) -> Any:
    """Load and check the ModelProto."""
    if isinstance(model, str | Path):
        try:
            model_proto = onnx.load(str(model))
        except Exception as error:  # protobuf and onnx raise many kinds
            raise InvalidModel(
                f"cannot read the ONNX model: {first_line(error)}",
                where=str(model),
                remedy="export it again",
            ) from None
    else:
        model_proto = model
    try:
        _check(onnx, model_proto, model if isinstance(model, str | Path) else None)
    except Exception as error:
        raise InvalidModel(
            f"onnx.checker rejected the model: {first_line(error)}", where="onnx", remedy="export it again"
        ) from None
    return model_proto


LARGEST_MESSAGE = 2**31
"""Upper limit of a serialised Protocol Buffers message, in bytes. ONNX's checker serialises a ModelProto in memory."""


def _is_serialisable(proto: Any) -> bool:
    """Return whether ONNX can serialise a model in memory, with room for what is not weights."""
    return sum(len(tensor.raw_data) for tensor in proto.graph.initializer) < LARGEST_MESSAGE - 2**24


def _check(onnx: Any, proto: Any, path: str | Path | None) -> None:
    """Run ONNX's checker and raise what it raises.  path: the model's file, whose weights may be in other files.

    A model close to `LARGEST_MESSAGE` or larger is checked on disk. Without a file it is not checked; TVM's importer
    then rejects what it cannot import.
    """
    if _is_serialisable(proto):
        onnx.checker.check_model(proto)
    elif path is not None:
        onnx.checker.check_model(str(path))


def _refuse_sequences(proto: Any, where: str) -> None:
    """Raise InvalidModel for outputs that are not tensors."""
    for value in proto.graph.output:
        if not value.type.HasField("tensor_type"):
            raise InvalidModel(
                f"output {value.name!r} is not a tensor", where=where, remedy="export the model with tensors as outputs"
            )


def _declared_inputs(onnx: Any, proto: Any, where: str) -> list[tuple[str, tuple[int | str, ...], str]]:
    """Return name, sizes (a string where open) and dtype of each input without an initial value."""
    initial = {tensor.name for tensor in proto.graph.initializer}
    inputs = []
    for value in proto.graph.input:
        if value.name in initial:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise InvalidModel(
                f"input {value.name!r} is not a tensor", where=where, remedy="export the model with tensors as inputs"
            )
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
        inputs.append((value.name, tuple(sizes), dtype))
    return inputs


def _match(
    user_inputs: Given | None, inputs: list[tuple[str, tuple[int | str, ...], str]], *, where: str
) -> tuple[Example, ...]:
    """Return one `Example` per input. The user's sizes must match those that the model fixes."""
    names = [name for name, _, _ in inputs]
    if user_inputs is not None and user_inputs.named:
        check_names(dict(user_inputs.named), names, required=[], where=where)
        by_name = {name: value.alone(f"input {name!r}") for name, value in user_inputs.named}
    elif user_inputs is not None:
        check_count(len(user_inputs.positional), names, required=len(names), where=where)
        pairs = zip(names, user_inputs.positional, strict=True)
        by_name = {name: value.alone(f"input {name!r}") for name, value in pairs}
    else:
        by_name = {}
    return tuple(_example_of(name, sizes, dtype, by_name.get(name), where) for name, sizes, dtype in inputs)


def _example_of(name: str, sizes: tuple[int | str, ...], dtype: str, example: Example | None, where: str) -> Example:
    """Return the example of one input, the user's or one of the declared sizes.  Raises InvalidShape for a mismatch."""
    shape = ", ".join(map(str, sizes))
    if example is None:
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            numbers = "x".join(str(size) for size in sizes)
            raise InvalidShape(
                f"input {name!r} has dynamic sizes: ({shape})",
                where=where,
                remedy=advice(
                    f"pass shapes={{{name!r}: (…)}}", f"pass --shape {name}={numbers} with a number for each size"
                ),
            )
        return Example(tuple(int(size) for size in sizes), dtype)
    fixed = all(not isinstance(size, int) or size == have for size, have in zip(sizes, example.shape, strict=False))
    if len(sizes) != len(example.shape) or not fixed:
        raise InvalidShape(
            f"input {name!r} has shape ({shape}), but {example.shape} was given",
            where=where,
            remedy="pass matching sizes, or export the model with other sizes",
        )
    if example.value is not None and example.dtype != dtype:
        raise InvalidShape(
            f"input {name!r} has dtype {dtype}, but {example.dtype} was given",
            where=where,
            remedy=f"convert it: x.to(torch.{dtype})",
        )
    return example if example.value is not None else Example(example.shape, dtype)


def _imported(proto: Any, shapes: dict[str, list[int]] | None, where: str, target: Any = None) -> Any:
    """Import the model with TVM.  shapes: None for the model's own."""
    _refuse_quantised(proto, where)
    importer = _tvm.onnx_importer()
    known = importer._get_convert_map()
    more = converters(known, target, where)
    all_known = {*known, *more, "If", "Constant"}
    whole = with_functions_written_out(proto, all_known) if _is_serialisable(proto) else proto
    for refuse in (_refuse_quantised, _refuse_randomness, _refuse_limits):  # also what functions contain
        refuse(whole, where)
    missing = sorted({*operators_without_converter(whole.graph, all_known)})
    if missing:
        raise UnsupportedOperator(f"TVM cannot import {', '.join(missing)}", where=where, remedy="use other operators")
    if whole is not proto and shapes is not None:
        whole = with_computed_sizes(whole, shapes)
    with quiet(stdout=True), _tvm.builders_end_their_blocks(), _tvm.onnx_converters(more):
        try:
            return importer.from_onnx(whole, shape_dict=shapes)
        except UnsupportedOperator:
            raise
        except Exception as error:
            raise UnsupportedOperator(
                f"TVM's importer cannot convert the model: {first_line(error)}",
                where=where,
                remedy="rewrite that part with other operators",
            ) from None


_QUANTISED = re.compile(r"QLinear\w+|(Dynamic)?QuantizeLinear|DequantizeLinear|(MatMul|Conv)Integer|QGemm|QAttention")


def _refuse_quantised(proto: Any, where: str) -> None:
    """Raise UnsupportedOperator for a quantised model.

    TVM imports some of its operators and computes them in float32, where rounding can choose another neighbouring
    integer than ONNX specifies.
    """
    operators = sorted({node.op_type for node in nodes_of(proto.graph) if _QUANTISED.fullmatch(node.op_type)})
    if operators:
        raise UnsupportedOperator(
            f"the model is quantised ({', '.join(operators)}), and quantised types are not supported",
            where=where,
            remedy="pass the original float model",
        )


def _refuse_randomness(proto: Any, where: str) -> None:
    """Raise RandomOperator for a Dropout that may be in training mode, which TVM's importer ignores.

    TVM's importer does not support ONNX's other random operators.
    """
    import onnx.numpy_helper

    values = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in nodes_of(proto.graph):
        mode = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
        if mode and (mode not in values or onnx.numpy_helper.to_array(values[mode]).any()):
            raise RandomOperator(
                "the model draws random numbers (Dropout in training mode), which compiled code does not support",
                where=where,
                remedy="export the model in eval mode",
            )


def _refuse_limits(proto: Any, where: str) -> None:
    """Raise UnsupportedOperator for what TVM's importer ignores: attributes and outputs of `_LIMITS`."""
    import onnx

    for node in nodes_of(proto.graph):
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        outputs = [name for name in node.output if name]
        for holds, words, remedy in _LIMITS.get(node.op_type, ()):
            if holds(attributes, outputs):
                raise UnsupportedOperator(f"TVM cannot import {words}", where=where, remedy=remedy)


_ELSEWHERE = "compute it in PyTorch or with other operators"

_LIMITS: dict[str, tuple[tuple[Callable[[dict[str, Any], list[str]], bool], str, str], ...]] = {
    "BatchNormalization": (
        (
            lambda given, _: bool(given.get("training_mode", 0)),
            "BatchNormalization in training mode",
            "export the model in eval mode",
        ),
    ),
    "Dropout": ((lambda _, outputs: len(outputs) > 1, "the mask of Dropout", "export the model without it"),),
    "IsInf": (
        (
            lambda given, _: 0 in (given.get("detect_negative", 1), given.get("detect_positive", 1)),
            "IsInf for one of the infinities",
            "compare with the infinity",
        ),
    ),
    "Resize": (
        (lambda given, _: bool(given.get("antialias", 0)), "Resize with antialias", _ELSEWHERE),
        (lambda given, _: "axes" in given, "Resize with axes", "give scales or sizes of all dimensions"),
        (
            lambda given, _: given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch",
            "Resize that keeps the aspect ratio",
            "give the sizes",
        ),
    ),
    "RoiAlign": ((lambda given, _: given.get("mode", b"avg") != b"avg", "RoiAlign of maxima", _ELSEWHERE),),
    "SpaceToDepth": ((lambda given, _: given.get("mode", b"DCR") != b"DCR", "SpaceToDepth in CRD mode", _ELSEWHERE),),
    "SplitToSequence": (
        (lambda given, _: not given.get("keepdims", 1), "SplitToSequence without keepdims", "use Split and Squeeze"),
    ),
}
"""By operator: what holds for (attributes, names of outputs), its words and the remedy."""
