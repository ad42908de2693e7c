"""Import a model of any kind with dynamic sizes as Relax with symbolic sizes.

Input: an nn.Module, ExportedProgram, ONNX model, Relax IRModule or PrimFunc, and shapes with dimensions. Output: a
Source, and its dimensions by the names of its symbolic sizes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike._util.wording import counted, kind_of
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.shapes import DynamicShapes, dims_of_program, read_dynamic_shapes
from felixlike.errors import EmptyModel, InvalidDim, InvalidModel, InvalidShape
from felixlike.frontend.examples import drawn
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.primfunc import called, name_of
from felixlike.frontend.importers.relax import main_of, placeholders
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import structure_of


def read_network(model: Any, shapes: Any) -> tuple[Source, dict[str, Dim]]:
    """Import a model; return it with the Dim of each symbolic size, by its name in the module.

    Raise InvalidDim, InvalidShape, InvalidModel or a subclass.
    """
    source, dims = _read(model, shapes)
    return drawn(source), dims


def _read(model: Any, shapes: Any) -> tuple[Source, dict[str, Dim]]:
    """Import a model as its type requires."""
    import torch

    from felixlike.frontend.importers import onnx
    from felixlike.frontend.importers import torch as pytorch

    if isinstance(model, torch.export.ExportedProgram):
        dims = dims_of_program(model)  # first, so that a missing bound is reported at once
        return pytorch.from_dynamic_program(model), {dim.name: dim for dim in dims}
    read = read_dynamic_shapes(shapes)
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


def _of_module(model: Any, read: DynamicShapes) -> tuple[Source, dict[str, Dim]]:
    """Export a PyTorch module; return it with its dimensions."""
    import torch

    from felixlike.frontend.importers import torch as pytorch

    named = {dim.name: torch.export.Dim(dim.name, min=dim.least, max=max(dim.most, 2)) for dim in read.dims}

    def places(positions: dict[int, str]) -> dict[int, Any]:
        return {place: named[name] for place, name in positions.items()}

    if isinstance(read.places, dict):
        dynamic: Any = {name: places(positions) for name, positions in read.places.items()}
    else:
        dynamic = _by_parameter(model, [places(positions) for positions in read.places])
    source = pytorch.from_module(model, read.given, dynamic)
    order = read.places.values() if isinstance(read.places, dict) else read.places
    dims: dict[str, Dim] = {}
    users = source.module["main"].params[: len(source.signature.names)]  # changed buffers come after them
    for parameter, positions in zip(users, order, strict=True):
        for place, name in positions.items():
            symbol = parameter.ty.shape.values[place]
            if not isinstance(symbol, _tvm.tirx.Var):
                raise InvalidModel(
                    f"the model fixes the size of {name} to {symbol}",
                    where=source.name,
                    remedy=f"find the operation that fixes it, or give {symbol} instead of a Dim",
                )
            dims[str(symbol.name)] = _named(read, name)
    return source, dims


def _by_parameter(model: Any, places: list[dict[int, Any]]) -> Any:
    """Return dynamic dimensions of positional inputs by parameter name, as torch.export expects them.

    A parameter that takes any number of arguments gets a tuple.
    """
    parameters = inspect.signature(model.forward).parameters.items()
    names = [name for name, p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = [name for name, p in parameters if p.kind is p.VAR_POSITIONAL]
    by_name: dict[str, Any] = dict(zip(names, places, strict=False))
    if len(places) > len(names) and variadic:
        by_name[variadic[0]] = tuple(places[len(names) :])
    return by_name


def _of_relax(named: tuple[str, Any, Any], read: DynamicShapes) -> tuple[Source, dict[str, Dim]]:
    """Return a Relax module with symbolic sizes as a Source, and its dimensions.

    named: Its name, the module, and the original model.
    """
    import torch

    name, module, original = named
    main = main_of(module)
    inputs = [str(parameter.name) for parameter in main.params]
    shapes = _in_order(read.given, inputs, name)
    places = _in_order(read.places, inputs, name)
    dims: dict[str, Dim] = {}
    examples = []
    for parameter, shape, dynamic in zip(main.params, shapes, places, strict=True):
        examples.append(_example(parameter, shape, dynamic, read, dims, name))
    structure = structure_of(placeholders(main.ret_ty))
    drawn_inputs = frozenset(index for index, shape in enumerate(shapes) if not isinstance(shape, torch.Tensor))
    return Source(name, module, Signature.plain(inputs), structure, tuple(examples), original, drawn_inputs), dims


def _in_order(values: Any, names: Sequence[str], where: str) -> list[Any]:
    """Return what was given, by name or by position, in the order of the inputs."""
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise InvalidShape(
                f"shapes are given for {', '.join(values)}", where=where, remedy=f"the inputs are {', '.join(names)}"
            )
        return [values[name] for name in names]
    if len(values) != len(names):
        raise InvalidShape(
            f"expected {counted(len(names), 'shape')}, got {len(values)}",
            where=where,
            remedy=f"the inputs are {', '.join(names) or 'none'}",
        )
    return list(values)


def _example(
    parameter: Any,
    shape_or_tensor: Any,
    dynamic: Mapping[int, str],
    read: DynamicShapes,
    dims: dict[str, Dim],
    where: str,
) -> Any:
    """Return an example tensor of an input; add the dimensions of its symbolic sizes to `dims`."""
    import torch

    from felixlike.frontend.importers.input_shapes import Example

    name, kind = str(parameter.name), parameter.ty
    if not isinstance(kind, _tvm.relax.TensorType) or not isinstance(kind.shape, _tvm.relax.ShapeExpr):
        raise InvalidModel(
            f"expected a tensor of known rank as input {name!r}, got {kind}",
            where=where,
            remedy="use a model whose inputs are tensors",
        )
    sizes = list(kind.shape.values)
    shape = tuple(shape_or_tensor.shape) if isinstance(shape_or_tensor, torch.Tensor) else tuple(shape_or_tensor)
    expected = f"({', '.join(str(s.name) if isinstance(s, _tvm.tirx.Var) else str(int(s)) for s in sizes)})"
    if len(shape) != len(sizes):
        raise InvalidShape(f"input {name!r} has shape {expected}, but got {counted(len(shape), 'size')}", where=where)
    for place, (size, actual) in enumerate(zip(sizes, shape, strict=True)):
        if isinstance(size, _tvm.tirx.Var):
            if place not in dynamic:
                raise InvalidShape(
                    f"size {size} of input {name!r} is dynamic, but {actual} was given",
                    where=where,
                    remedy=f'give fx.Dim("{size}", …) with the sizes to support',
                )
            dim = dims.setdefault(str(size.name), _named(read, dynamic[place]))
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
    return shape_or_tensor if isinstance(shape_or_tensor, torch.Tensor) else Example(shape, str(kind.dtype)).tensor()


def _named(read: DynamicShapes, name: str) -> Dim:
    return next(dim for dim in read.dims if dim.name == name)


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
