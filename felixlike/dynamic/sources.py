"""Import a model of any kind with dynamic sizes as Relax with symbolic sizes.

Input: an nn.Module, ExportedProgram, ONNX model, Relax IRModule or PrimFunc, and shapes with dimensions. Output: a
Source, and its dimensions by the names of its symbolic sizes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.garbage import collecting_later
from felixlike._util.wording import counted, kind_of
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.inputs import dynamic_inputs, resized, sizes_of_examples
from felixlike.dynamic.memory import size_shown
from felixlike.dynamic.shapes import LEAST_EXPORTED, DynamicShapes, dims_of_program, read_dynamic_shapes
from felixlike.errors import EmptyModel, InvalidDim, InvalidModel, InvalidOption, InvalidShape
from felixlike.frontend.examples import drawn
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.input_shapes import Example, Given, check_count, check_names, made
from felixlike.frontend.importers.primfunc import called, name_of
from felixlike.frontend.importers.relax import leaves, main_of, placeholders
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import structure_of


@collecting_later()
def read_network(model: Any, shapes: Any, dynamic_shapes: Any = None) -> tuple[Source, dict[str, Dim]]:
    """Import a model; return it with the Dim of each symbolic size, by its name in the module.

    Raise InvalidDim, InvalidShape, InvalidModel or a subclass.
    """
    source, dims = _read(model, shapes, dynamic_shapes)
    _check_outputs(source, dims)
    source = drawn(source)
    if any(dim.most < LEAST_EXPORTED for dim in dims.values()):  # the examples have more
        _, sizes = dynamic_inputs(source.module["main"], source, dims)
        source = replace(source, examples=resized(source, sizes, sizes_of_examples(source, sizes)))
    return source, dims


def _read(model: Any, shapes: Any, dynamic_shapes: Any) -> tuple[Source, dict[str, Dim]]:
    """Import a model as its type requires."""
    import torch

    from felixlike.frontend.importers import onnx
    from felixlike.frontend.importers import torch as pytorch

    if isinstance(model, torch.export.ExportedProgram):
        if dynamic_shapes is not None:
            raise InvalidOption(
                "an ExportedProgram has its own dynamic sizes",
                where="dynamic_shapes",
                remedy="pass them to torch.export.export, or pass the module itself to optimize",
            )
        dims, unbounded = dims_of_program(model)
        source = replace(pytorch.from_dynamic_program(model), unbounded=unbounded)
        return source, {dim.name: dim for dim in dims}
    read = partial(read_dynamic_shapes, shapes, dynamic_shapes)
    if isinstance(model, torch.nn.Module):
        return _of_module(model, read)
    if isinstance(model, str | os.PathLike):
        model = option_checks.path(model, "model", error=InvalidModel)
    if type(model).__name__ == "ModelProto" or (isinstance(model, Path) and model.suffix == ".onnx"):
        return _of_relax(onnx.with_open_sizes(model), read)
    if isinstance(model, _tvm.PrimFunc):
        module = _symbolic(model)
        return _of_relax((name_of(model), module, module), read)
    if isinstance(model, _tvm.IRModule):
        return _of_relax(("main", model, model), read)
    raise InvalidModel(
        f"dynamic sizes are not supported for {kind_of(model)}",
        where="model",
        remedy="give an nn.Module, an ExportedProgram, an ONNX model, a Relax IRModule or a PrimFunc",
    )


def _of_module(model: Any, reader: Callable[..., DynamicShapes]) -> tuple[Source, dict[str, Dim]]:
    """Export a PyTorch module; return it with its dimensions."""
    import torch

    from felixlike.frontend.importers import torch as pytorch

    parameters = inspect.signature(model.forward).parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    read = reader([p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)], rest)
    # A range of torch.export's has two sizes or more.
    named = {name: torch.export.Dim(name, min=d.least, max=max(d.most, d.least + 1)) for name, d in read.dims.items()}
    source = pytorch.from_module(model, read.given, named)
    dims: dict[str, Dim] = {}
    users = source.module["main"].params[: len(source.signature.names)]  # changed buffers come after them
    for parameter, example in zip(users, pytorch.bound_examples(model, read.given), strict=True):
        for place, name in example.dims:
            symbol = parameter.ty.shape.values[place]
            if not isinstance(symbol, _tvm.tirx.Var):
                raise InvalidModel(
                    f"the model fixes the size of {name} to {symbol}",
                    where=source.name,
                    remedy=f"find the operation that fixes it, or give {symbol} instead of a Dim",
                )
            dims[str(symbol.name)] = read.dims[name]
    return replace(source, unbounded=read.unbounded), dims


def _of_relax(named: tuple[str, Any, Any], reader: Callable[..., DynamicShapes]) -> tuple[Source, dict[str, Dim]]:
    """Return a Relax module with symbolic sizes as a Source, and its dimensions.

    named: Its name, the module, and the original model.
    """
    name, module, original = named
    main = main_of(module)
    inputs = [str(parameter.name) for parameter in main.params]
    read = reader(inputs)
    given = _in_order(read.given, inputs, name)
    dims: dict[str, Dim] = {}
    examples = [
        _example(parameter, example, read, dims, name) for parameter, example in zip(main.params, given, strict=True)
    ]
    bound = _with_equal_sizes(module, dims)
    module, original = bound, bound if original is module else original
    structure = structure_of(placeholders(module["main"].ret_ty))
    source = Source(name, module, Signature.plain(inputs), structure, tuple(examples), original, made(given))
    return replace(source, unbounded=read.unbounded), dims


def _with_equal_sizes(module: Any, dims: dict[str, Dim]) -> Any:
    """Return a module in which symbols of one Dim are one symbol, so that TVM knows that they are equal."""
    main = module["main"]
    symbols = {str(s.name): s for p in main.params for s in p.ty.shape.values if isinstance(s, _tvm.tirx.Var)}
    first: dict[str, str] = {}
    equal = {name: symbols[first[dim.name]] for name, dim in dims.items() if first.setdefault(dim.name, name) != name}
    if not equal:
        return module
    changed = _tvm.IRModule(dict(module.functions), attrs=module.attrs)
    bound = main.bind_symbolic_vars({symbols[name]: symbol for name, symbol in equal.items()})
    changed.update_func(changed.get_global_var("main"), bound)
    return changed


def _check_outputs(source: Source, dims: dict[str, Dim]) -> None:
    """Raise InvalidModel if the sizes of an output do not follow from those of the inputs."""
    for number, kind in enumerate(leaves(source.module["main"].ret_ty)):
        if not isinstance(kind, _tvm.relax.TensorType):
            continue
        sizes = kind.shape.values if isinstance(kind.shape, _tvm.relax.ShapeExpr) else None
        if sizes is None or any(str(v.name) not in dims for size in sizes for v in _tvm.found(size, _tvm.tirx.Var)):
            raise InvalidModel(
                f"the sizes of output {number} do not follow from those of the inputs",
                where=source.name,
                remedy="give one Dim for sizes that are always equal, or fixed sizes",
            )


def _in_order(given: Given, names: Sequence[str], where: str) -> list[Example]:
    """Return the examples, by name or by position, in the order of the inputs."""
    if given.named:
        by_name = dict(given.named)
        check_names(by_name, names, required=names, where=where)
        values = [by_name[name] for name in names]
    else:
        check_count(len(given.positional), names, required=len(names), where=where)
        values = list(given.positional)
    return [value.alone(f"input {name!r}") for name, value in zip(names, values, strict=True)]


def _example(parameter: Any, example: Example, read: DynamicShapes, dims: dict[str, Dim], where: str) -> Any:
    """Return an example tensor of an input; add the dimensions of its symbolic sizes to `dims`."""
    name, kind = str(parameter.name), parameter.ty
    if not isinstance(kind, _tvm.relax.TensorType) or not isinstance(kind.shape, _tvm.relax.ShapeExpr):
        raise InvalidModel(
            f"expected a tensor of known rank as input {name!r}, got {kind}",
            where=where,
            remedy="use a model whose inputs are tensors",
        )
    sizes, dynamic, shape = list(kind.shape.values), dict(example.dims), example.shape
    _check_plain(sizes, name, where)
    expected = f"({', '.join(str(s.name) if isinstance(s, _tvm.tirx.Var) else str(int(s)) for s in sizes)})"
    if len(shape) != len(sizes):
        raise InvalidShape(f"input {name!r} has shape {expected}, but got {counted(len(shape), 'size')}", where=where)
    if example.value is not None and example.dtype != str(kind.dtype):
        raise InvalidShape(f"input {name!r} has dtype {kind.dtype}, but {example.dtype} was given", where=where)
    for place, (size, actual) in enumerate(zip(sizes, shape, strict=True)):
        if isinstance(size, _tvm.tirx.Var):
            if place not in dynamic:
                raise InvalidShape(
                    f"size {size} of input {name!r} is dynamic, but {actual} was given",
                    where=where,
                    remedy=f'give fx.Dim("{size}", …) with the sizes to support',
                )
            dim = dims.setdefault(str(size.name), read.dims[dynamic[place]])
            if dim.name != dynamic[place]:
                raise InvalidDim(
                    f"size {size} is given as both {dim.name} and {dynamic[place]}",
                    where=where,
                    remedy="use one Dim for it",
                )
        elif place in dynamic or int(size) != actual:
            raise InvalidShape(
                f"input {name!r} has shape {expected}, but size {place} was given as {dynamic.get(place, actual)}",
                where=where,
                remedy="give sizes that match",
            )
    return example.tensor() if example.value is not None else Example(shape, str(kind.dtype)).tensor()


def _check_plain(sizes: Sequence[Any], name: str, where: str) -> None:
    """Raise InvalidModel for sizes of an input that are neither numbers nor symbols."""
    for size in sizes:
        if not isinstance(size, _tvm.tirx.IntImm | _tvm.tirx.Var):
            raise InvalidModel(
                f"input {name!r} has the size {size_shown(size)}, but only numbers and symbols are supported",
                where=where,
                remedy="make a model in which that size has a symbol of its own",
            )


def _symbolic(func: Any) -> Any:
    """Return a Relax module that calls a PrimFunc with symbolic sizes, whose last buffer is the output."""
    relax, name = _tvm.relax, name_of(func)
    buffers = list(func.params)
    if not buffers or any(getattr(buffer, "shape", None) is None for buffer in buffers):
        raise EmptyModel(
            "the PrimFunc has no buffers, or it has scalar parameters",
            where=name,
            remedy="give a PrimFunc whose parameters are all buffers",
        )
    fresh = {v: _tvm.tirx.Var(str(v.name), str(v.ty.dtype)) for b in buffers for v in _symbols(b)}
    kinds = [relax.TensorType([_tvm.substituted(s, fresh) for s in b.shape], str(b.dtype)) for b in buffers]
    return called(func, name, [str(b.name) for b in buffers[:-1]], kinds)


def _symbols(buffer: Any) -> list[Any]:
    return [v for size in buffer.shape for v in _tvm.found(size, _tvm.tirx.Var)]
