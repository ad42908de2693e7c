"""PyTorch → Relax: a module is exported by torch.export in eval mode, and an ExportedProgram imported by TVM.

In: an nn.Module with shapes, or an ExportedProgram. Out: a Source. Refusals of torch and TVM become one short error.
"""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from felixlike.errors import EmptyModel, ExportFailed, InvalidModel, InvalidShape, UnsupportedOperator, first_line
from felixlike.frontend.converters import CONVERTERS
from felixlike.frontend.dtypes import check_dtypes, check_tensor, with_right_types
from felixlike.frontend.halves import in_single_precision
from felixlike.frontend.imported import InputSpec, Source
from felixlike.frontend.promotion import promote
from felixlike.frontend.refusals import export_error, quiet
from felixlike.frontend.shapes import Example, Given, check_count, check_names, match_known, read_shapes
from felixlike.frontend.structure import structure_from_leaves


def from_module(model: Any, shapes: Any) -> Source:
    """Export and import an nn.Module.  The model is exported in eval mode and left as it was.

    Raises InvalidShape, ExportFailed, DynamicControlFlow, UnsupportedOperator, EmptyModel, InvalidModel."""
    import torch

    name = type(model).__name__
    given = read_shapes(shapes)
    if given is None:
        raise InvalidShape(
            "the shapes of the model's inputs are not known",
            where=name,
            remedy="give example tensors, or sizes: shapes=((1, 3, 224, 224),)",
        )
    model = _on_cpu(model)
    _check_tensors(model, name)
    args, kwargs = _bind(given, model, name)
    tensors = tuple(example.tensor() for example in args)
    named = {key: example.tensor() for key, example in kwargs.items()}
    with evaluating(model), quiet():
        try:
            program = torch.export.export(model, tensors, named)
        except Exception as error:
            raise export_error(error, name, only_sizes=given.only_sizes) from None
    return _convert(program, name=name, examples=(*tensors, *named.values()))


def from_program(program: Any, shapes: Any, *, name: str = "") -> Source:
    """Import an ExportedProgram, which knows its shapes.  Raises like from_module."""
    name = name or "ExportedProgram"
    specs = _program_inputs(program, name)
    given = read_shapes(shapes)
    examples = match_known(given, specs, where=name)
    own = _own_examples(program) if given is None else ()
    tensors = own if len(own) == len(specs) else tuple(example.tensor() for example in examples)
    return _convert(program, name=name, examples=tensors)


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model in eval mode, without gradients; then put each of its parts back as it was."""
    import torch

    modes = [(part, part.training) for part in model.modules()]
    if any(mode for _, mode in modes):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _bind(given: Given, model: Any, where: str) -> tuple[list[Example], dict[str, Example]]:
    """What was given as arguments and keyword arguments of the model's forward."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if given.named:
        by_name = dict(given.named)
        known = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        names = [p.name for p in known]
        extra = [key for key in by_name if key not in names] if inspect.Parameter.VAR_KEYWORD in kinds else []
        required = [p.name for p in known if p.default is p.empty]
        check_names(by_name, [*names, *extra], required=required, where=where)
        return [], {key: by_name[key] for key in (*names, *extra) if key in by_name}
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        required_count = sum(p.default is p.empty for p in positional)
        check_count(len(given.positional), [p.name for p in positional], required=required_count, where=where)
    return list(given.positional), {}


def _convert(program: Any, *, name: str, examples: Sequence[Any]) -> Source:
    """An ExportedProgram as Relax, with only tensors among the outputs."""
    from felixlike import tvmlib

    importer = tvmlib.torch_importer()
    specs = _program_inputs(program, name)
    with quiet(), tvmlib.builders_end_their_blocks():
        try:
            program = program.run_decompositions()
        except Exception as error:
            raise ExportFailed(first_line(error), where=name) from None
        _check_state(program, name)
        check_dtypes(program, name)
        promote(program)
        in_single_precision(program)
        _check_operators(program, importer, name)
        leaves = _keep_tensor_outputs(program)
        if not any(leaf is _TENSOR for leaf in leaves):
            raise EmptyModel("the model returns no tensor", where=name)
        structure = structure_from_leaves(program.call_spec.out_spec, leaves)
        try:
            module = importer.from_exported_program(
                program,
                keep_params_as_input=False,
                # A reshape that ends the model is only a view of what it reshapes if it is not itself the output.
                unwrap_unit_return_tuple=False,
                run_ep_decomposition=False,
                custom_convert_map=with_right_types(CONVERTERS, _operators(program), name),
            )
        except UnsupportedOperator:
            raise
        except Exception as error:
            raise UnsupportedOperator(
                f"TVM's importer refused the model: {first_line(error)}",
                where=name,
                remedy="write the part it names with other operators",
            ) from None
    if len(module["main"].params) != len(specs):
        raise InvalidModel(
            f"{len(module['main'].params) - len(specs)} of its parameters were not bound by TVM's importer", where=name
        )
    return Source(name, module, structure, tuple(examples))


def _on_cpu(model: Any) -> Any:
    """The model itself, or a copy of one that is on a GPU: constants are read on the CPU."""
    if any(tensor.device.type == "cuda" for tensor in (*model.parameters(), *model.buffers())):
        return copy.deepcopy(model).cpu()
    return model


def _check_tensors(model: Any, where: str) -> None:
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise InvalidModel(f"{key} is on {tensor.device}", where=where, remedy="move the model: model.cpu()")
        check_tensor(tensor, what=key, where=where)


def _check_state(program: Any, where: str) -> None:
    """Refuse models that write to their own buffers: what is compiled keeps nothing between calls."""
    changed = sorted(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise InvalidModel(
            f"the model changes its own state ({', '.join(changed)}) when called",
            where=where,
            remedy="export it in eval mode; or pass the state in and return it as an output",
        )


def _check_operators(program: Any, importer: Any, where: str) -> None:
    """Name all operators that TVM's importer lacks, and those whose output's shape depends on values."""
    known = {*importer.ExportedProgramImporter().convert_map, *CONVERTERS}
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    missing = sorted({str(node.target) for node in nodes if node.target.__name__ not in known})
    if "felixlike.run.default" in missing:
        raise UnsupportedOperator(
            "a part of it is a compiled model already", where=where, remedy="put in the model that part was made from"
        )
    if missing:
        raise UnsupportedOperator(
            f"TVM cannot import {', '.join(missing)}", where=where, remedy="write the model with other operators"
        )
    for node in nodes:
        if _is_dynamic(node.meta.get("val")):
            raise UnsupportedOperator(
                f"the shape of what {node.target} gives depends on the values of tensors",
                where=where,
                remedy="dynamic shapes are not supported yet",
            )


def _operators(program: Any) -> set[str]:
    """The names of the operators that a program calls."""
    return {node.target.__name__ for node in program.graph.nodes if node.op == "call_function"}


def _is_dynamic(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


_TENSOR = object()
"""Stands for a computed leaf of the output."""


def _keep_tensor_outputs(program: Any) -> list[Any]:
    """Drop constants (None, numbers) from the graph's outputs; returns all leaves, _TENSOR for the computed ones.

    TVM's importer knows tensors only; the constants are put back when the output is rebuilt."""
    signature = program.graph_signature
    output = program.graph.output_node()
    pairs = list(zip(output.args[0], signature.output_specs, strict=True))
    leaves = [_leaf(node) for node, spec in pairs if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]
    kept = [(node, spec) for node, spec in pairs if _leaf(node) is _TENSOR]
    output.args = (tuple(node for node, _ in kept),)
    signature.output_specs[:] = [spec for _, spec in kept]
    return leaves


def _leaf(value: Any) -> Any:
    import torch

    return _TENSOR if isinstance(value, torch.fx.Node) else value


def _program_inputs(program: Any, where: str) -> tuple[InputSpec, ...]:
    """The program's tensor inputs.  Raises InvalidShape for dynamic ones, InvalidModel for other kinds."""
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in program.graph_signature.user_inputs:
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            raise InvalidModel(
                f"input {name!r} is not a tensor",
                where=where,
                remedy="export the model with tensors as its only inputs",
            )
        if _is_dynamic(value):
            raise InvalidShape(
                f"input {name!r} has shape {tuple(map(str, value.shape))}: dynamic shapes are not supported yet",
                where=where,
                remedy="export the model without dynamic_shapes",
            )
        specs.append(InputSpec(name, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    return tuple(specs)


def _own_examples(program: Any) -> tuple[Any, ...]:
    """The example tensors that the program was exported with, if it still has them."""
    import torch
    from torch.utils import _pytree

    leaves = _pytree.tree_leaves(program.example_inputs) if program.example_inputs else []
    return tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
