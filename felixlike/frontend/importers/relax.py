"""A user's Relax module → a Source, and the readings of any Relax module that the frontend needs.

In: an IRModule whose function "main" takes and gives tensors of known shapes. Nested tuples of outputs are kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel
from felixlike.frontend.buffers import check_index_width, sizes_of
from felixlike.frontend.imported import InputSpec, OutputSpec, Source
from felixlike.frontend.importers.input_shapes import made, match_known, read_shapes
from felixlike.frontend.signature.layouts import Order, inverse
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import Structure, structure_of


def from_relax(module: Any, shapes: Any, *, name: str = "main") -> Source:
    """Check a Relax module and read its outputs' structure.  Raises InvalidModel, InvalidShape."""
    main = main_of(module)
    for variable in module.get_global_vars():
        if isinstance(module[variable], _tvm.PrimFunc):
            check_index_width(module[variable], where=str(variable.name_hint))
    inputs = inputs_of(main, where=name)
    examples = match_known(read_shapes(shapes), inputs, where=name)
    signature = Signature.plain([spec.name for spec in inputs])
    for kind in leaves(main.ret_ty):
        _tensor_spec(kind, "the output", where=name)
    structure = structure_of(placeholders(main.ret_ty))
    tensors = tuple(example.tensor() for example in examples)
    return Source(name, module, signature, structure, tensors, original=module, made=made(examples))


def main_of(module: Any) -> Any:
    """A module's Relax function "main".  Raises InvalidModel."""
    names = [str(var.name_hint) for var in module.get_global_vars()]
    if "main" not in names or not isinstance(module["main"], _tvm.relax.Function):
        raise InvalidModel(
            f"the IRModule has no Relax function main, only {', '.join(names) or 'nothing'}",
            where="model",
            remedy='name the entry "main", or give the PrimFunc itself',
        )
    return module["main"]


def inputs_of(function: Any, *, where: str) -> tuple[InputSpec, ...]:
    """The tensors a Relax function takes.  Raises InvalidModel for other kinds, InvalidShape for unknown sizes."""
    return tuple(_tensor_spec(param.ty, str(param.name), where=where) for param in function.params)


def outputs_of(
    function: Any, structure: Structure, orders: Sequence[Order] = (), *, where: str
) -> tuple[OutputSpec, ...]:
    """The tensors a Relax function gives, which stand in the structure in this order.  Raises like `inputs_of`.

    orders: the memory order of each, in which the function returns its dimensions; empty where all lie row by row."""
    kinds = list(leaves(function.ret_ty))
    specs = [_tensor_spec(kind, name, where=where) for kind, name in zip(kinds, structure.places(), strict=True)]
    return tuple(
        OutputSpec(spec.name, tuple(spec.shape[dim] for dim in inverse(order)) or spec.shape, spec.dtype, order)
        for spec, order in zip(specs, orders or ((),) * len(specs), strict=True)
    )


def _tensor_spec(kind: Any, name: str, *, where: str) -> InputSpec:
    if not isinstance(kind, _tvm.relax.TensorType):
        raise InvalidModel(f"{name} is {kind}, not a tensor", where=where, remedy="take and return tensors only")
    known = isinstance(kind.shape, _tvm.relax.ShapeExpr)
    sizes = sizes_of(kind.shape.values if known else [kind.shape], what=name, where=where)
    return InputSpec(name, sizes, str(kind.dtype))


def leaves(kind: Any) -> Iterator[Any]:
    """The types of a Relax type's parts that are no tuples."""
    if not isinstance(kind, _tvm.relax.TupleType):
        yield kind
        return
    for field in kind.fields:
        yield from leaves(field)


def placeholders(kind: Any) -> Any:
    """The nesting of a Relax type in tuples, with an object for each part that is none."""
    if isinstance(kind, _tvm.relax.TupleType):
        return tuple(map(placeholders, kind.fields))
    return object()
