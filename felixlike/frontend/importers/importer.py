"""Import any supported model: read it, fuse it and split it into tasks.

Input: a model, its shapes and a target. Output: `Imported`, which all later stages use.
"""

import os
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.garbage import collecting_later
from felixlike._util.spent import on
from felixlike._util.torch_modes import default_modes
from felixlike._util.wording import kind_of
from felixlike.errors import CompilationFailed, EmptyModel, InvalidModel, InvalidOption, first_line
from felixlike.frontend.examples import drawn
from felixlike.frontend.extract import computes_nothing, extract
from felixlike.frontend.imported import Imported, InputSpec, Source
from felixlike.frontend.importers.pytorch_regions import check_kernels, check_target
from felixlike.frontend.importers.relax import inputs_of
from felixlike.frontend.rewrites.pipeline import fuse
from felixlike.hardware import resolve_target

_KINDS = (
    "a torch.nn.Module, an ExportedProgram, a .pt2 or .onnx file, an ONNX ModelProto, a Relax IRModule or a PrimFunc"
)


@default_modes()
@collecting_later()
def import_model(
    model: Any,
    shapes: Any = None,
    target: Any = "cpu",
    *,
    example_inputs: Any = None,
    random: bool = False,
    wide_tensors: bool = False,
) -> Imported:
    """Read a model and split it into tasks.

    Args:
        model: torch.nn.Module, torch ExportedProgram, path of a .pt2 or .onnx file, ONNX ModelProto, Relax IRModule
            with "main", or PrimFunc whose last buffer is the output. An `Imported` for this target is returned
            unchanged. The result of `export_module` needs no shapes.
        shapes: Example inputs, sizes, or either by input name (see `input_shapes.read_shapes`). May be None if the
            model knows its shapes.
        target: "cpu" or a TVM target.
        example_inputs: Alias of `shapes`. Pass only one of them.
        random: Whether PyTorch runs the operators of a PyTorch model that draw random numbers, in the model's order
            and with PyTorch's generator. Otherwise they are refused.
        wide_tensors: Whether tensors between kernels stay float32 in any precision.

    Returns:
        The fused module with its inputs, outputs and tasks.

    Raises:
        UnknownTarget: The target is not known.
        InvalidShape: The shapes are malformed, missing or do not match the model.
        InvalidModel: The model cannot be read. Subclasses: EmptyModel, ExportFailed, DynamicControlFlow,
            RandomOperator, UnsupportedOperator.
        InvalidOption: `shapes` and `example_inputs` are both passed, or an `Imported` is for another target.
        MissingDependency: Reading the model needs a package that is not installed.
        CompilationFailed: TVM failed to legalise or fuse the model.

    Example:
        >>> imported = import_model(torch.nn.Linear(4, 8), shapes=((1, 4),))
        >>> imported.inputs[0].shape
        (1, 4)
    """
    from felixlike.frontend.importers.input_shapes import either

    target = resolve_target(target)
    if isinstance(model, Imported):
        if str(model.target) != str(target):
            raise InvalidOption(
                f"the model was imported for {model.target}, not for {target}",
                where="target",
                remedy="pass the target that it was imported for, or import the model again",
            )
        return model
    source = drawn(_read(model, either(shapes, example_inputs), target, random=random))
    check_target(source.module, target, source.name)
    try:
        with on("fusing"):
            module, layers = fuse(source.module, target, wide_tensors=wide_tensors)
    except _tvm.TVM_ERRORS as error:
        if not _tvm.refusal(error):
            raise
        raise CompilationFailed(
            f"TVM could not legalise and fuse the model: {first_line(error)}",
            where=source.name,
            remedy="rewrite that part with other operators",
        ) from error
    if not source.mutations and computes_nothing(module):
        raise EmptyModel(
            "the model computes nothing: it returns its inputs or constants",
            where=source.name,
            remedy="pass a model with at least one operator that depends on an input",
        )
    check_kernels(module, source.name)
    tasks, functions = extract(module, target, layers)
    inputs = _named(source, inputs_of(module["main"], where=source.name))
    return source.imported(module, target, inputs=inputs, tasks=tasks, functions=functions)


@default_modes()
@collecting_later()
def export_model(model: Any, shapes: Any = None, *, example_inputs: Any = None, random: bool = False) -> Any:
    """Return a torch.nn.Module as torch.export captures it, for `import_model`; any other model as it is.

    Args:
        model: As for `import_model`.
        shapes: As for `import_model`.
        example_inputs: As for `import_model`.
        random: As for `import_model`.

    Raises:
        InvalidShape: As for `import_model`.
        InvalidModel: As for `import_model`.
        InvalidOption: As for `import_model`.
    """
    import torch

    from felixlike.frontend.importers.input_shapes import either
    from felixlike.frontend.importers.torch import export_module

    if not isinstance(model, torch.nn.Module):
        return model
    return export_module(model, either(shapes, example_inputs), random=random)


def _named(source: Source, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    """Return the user's inputs of a TVM function under the names that the user knows."""
    users = inputs[: len(inputs) - len(source.mutations.state)]
    return tuple(
        InputSpec(name, spec.shape, spec.dtype) for name, spec in zip(source.signature.names, users, strict=True)
    )


def _read(model: Any, shapes: Any, target: Any = None, *, random: bool = False) -> Source:
    """Read the model as Relax according to its kind.  Raises InvalidModel for other kinds."""
    import torch

    from felixlike.frontend.importers import onnx, primfunc, relax
    from felixlike.frontend.importers import torch as pytorch

    if isinstance(model, str | os.PathLike):
        return _read_file(option_checks.path(model, "model", error=InvalidModel), shapes, target)
    if isinstance(model, pytorch.Exported):
        return pytorch.from_exported(model, target=target)
    if isinstance(model, torch.nn.Module):
        return pytorch.from_module(model, shapes, target=target, random=random)
    if isinstance(model, torch.export.ExportedProgram):
        return pytorch.from_program(model, shapes, target=target, random=random)
    if isinstance(model, _tvm.PrimFunc):
        return primfunc.from_primfunc(model, shapes)
    if isinstance(model, _tvm.IRModule):
        return relax.from_relax(model, shapes)
    if type(model).__name__ == "ModelProto":
        return onnx.from_onnx(model, shapes, target)
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise InvalidModel(
            f"{model.__name__} is a class, not a model",
            where="model",
            remedy=f"create an instance: {model.__name__}(…)",
        )
    raise InvalidModel(f"{kind_of(model)} is not a model", where="model", remedy=f"pass {_KINDS}")


def _read_file(path: Path, shapes: Any, target: Any) -> Source:
    """Read a .pt2 or .onnx file.  Raises InvalidModel for other suffixes and missing files."""
    from felixlike.frontend.importers import onnx, pt2
    from felixlike.frontend.importers import torch as pytorch

    if path.suffix not in (".pt2", ".onnx"):
        raise InvalidModel(
            f"model files with suffix {path.suffix} are not supported" if path.suffix else "the file has no suffix",
            where=str(path),
            remedy="pass a .pt2 file (torch.export.save) or a .onnx file",
        )
    if not path.is_file():
        raise InvalidModel("there is no such file", where=str(path), remedy="check the path")
    if path.suffix == ".onnx":
        return onnx.from_onnx(path, shapes, target)
    return pytorch.from_program(pt2.open_pt2(path), shapes, name=path.stem, target=target)
