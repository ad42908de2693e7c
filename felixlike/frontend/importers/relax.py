"""Import a user's Relax module, and read the inputs and outputs of any Relax module.

Input: an IRModule whose function "main" takes and returns tensors of known shapes. Nested tuples of outputs are kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel
from felixlike.frontend.buffers import check_index_width, sizes_of
from felixlike.frontend.imported import InputSpec, OutputSpec, Source
from felixlike.frontend.importers.input_shapes import made, match_known, read_shapes
from felixlike.frontend.signature.layouts import Order, in_users_order
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import Structure, structure_of


def from_relax(module: Any, shapes: Any, *, name: str = "main") -> Source:
    """Check a Relax module and read the structure of its outputs.  Raises InvalidModel, InvalidShape."""
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
    """Return a module's Relax function "main".  Raises InvalidModel."""
    names = [str(var.name_hint) for var in module.get_global_vars()]
    if "main" not in names or not isinstance(module["main"], _tvm.relax.Function):
        raise InvalidModel(
            f"the IRModule has no Relax function main (its functions: {', '.join(names) or 'none'})",
            where="model",
            remedy='name the entry "main", or pass the PrimFunc itself',
        )
    return module["main"]


def inputs_of(function: Any, *, where: str) -> tuple[InputSpec, ...]:
    """Return the tensors that a Relax function takes.

    Raises InvalidModel for other parameters, InvalidShape for unknown sizes.
    """
    return tuple(_tensor_spec(param.ty, str(param.name), where=where) for param in function.params)


def outputs_of(
    function: Any, structure: Structure, orders: Sequence[Order] = (), *, where: str
) -> tuple[OutputSpec, ...]:
    """Return the output tensors of a Relax function.

    Args:
        function: Relax function.
        structure: Nesting of its outputs. The function returns the tensors in the structure's order.
        orders: Memory order of each output, in which the function returns its dimensions. Empty if all are
            contiguous.
        where: The model's name, for messages.

    Returns:
        One spec per tensor. Its shape has the dimensions in the user's order.

    Raises:
        InvalidModel: An output is not a tensor.
        InvalidShape: A size is not known.
    """
    names = structure.places()
    kinds = list(leaves(function.ret_ty))[: len(names)]  # new values of changed tensors come after them
    specs = [_tensor_spec(kind, name, where=where) for kind, name in zip(kinds, names, strict=True)]
    return tuple(
        OutputSpec(spec.name, in_users_order(spec.shape, order), spec.dtype, order)
        for spec, order in zip(specs, orders or ((),) * len(specs), strict=True)
    )


def _tensor_spec(kind: Any, name: str, *, where: str) -> InputSpec:
    """Return the spec of a Relax tensor type.  Raises InvalidModel for other types, InvalidShape for unknown sizes."""
    if not isinstance(kind, _tvm.relax.TensorType):
        raise InvalidModel(f"{name} is {kind}, not a tensor", where=where, remedy="take and return tensors only")
    known = isinstance(kind.shape, _tvm.relax.ShapeExpr)
    sizes = sizes_of(kind.shape.values if known else [kind.shape], what=name, where=where)
    return InputSpec(name, sizes, str(kind.dtype))


def leaves(kind: Any) -> Iterator[Any]:
    """Yield the non-tuple parts of a Relax type."""
    if not isinstance(kind, _tvm.relax.TupleType):
        yield kind
        return
    for field in kind.fields:
        yield from leaves(field)


def placeholders(kind: Any) -> Any:
    """Return nested tuples like those of a Relax type, with an object for each other part."""
    if isinstance(kind, _tvm.relax.TupleType):
        return tuple(map(placeholders, kind.fields))
    return object()
