"""Import PyTorch models: export a module with torch.export in eval mode, and import the ExportedProgram with TVM.

Input: an nn.Module with shapes, or an ExportedProgram. Output: a `Source`. Errors of torch and TVM become one short
error.
"""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike import _tvm
from felixlike._util.spent import on
from felixlike._util.torch_compat import (
    assumed_of_sizes,
    conversions_without_effect,
    pytree,
    recurrent_shapes,
    unchecked_distributions,
    without_left_hooks,
)
from felixlike._util.torch_modes import alone, callers_autocast, callers_dtype
from felixlike._util.wording import advice
from felixlike.errors import (
    EmptyModel,
    InputMismatch,
    InvalidModel,
    InvalidShape,
    UnsupportedOperator,
    first_line,
)
from felixlike.frontend.imported import InputSpec, Source
from felixlike.frontend.importers import decompositions
from felixlike.frontend.importers.autocast import restore_casts, under_autocast
from felixlike.frontend.importers.converters import CONVERTERS
from felixlike.frontend.importers.dtypes import check_dtypes, with_right_types
from felixlike.frontend.importers.embedding_bags import bag_converters
from felixlike.frontend.importers.graphs import graphs_of
from felixlike.frontend.importers.input_shapes import (
    Example,
    Given,
    Input,
    check_count,
    check_names,
    input_names,
    made,
    match_known,
    read_shapes,
)
from felixlike.frontend.importers.known_sizes import with_known_sizes
from felixlike.frontend.importers.low_precision import in_single_precision
from felixlike.frontend.importers.model_checks import (
    check_assigned,
    check_kind,
    check_operators,
    check_state,
    check_tensors,
)
from felixlike.frontend.importers.mutations import lift_mutations
from felixlike.frontend.importers.program_signature import (
    input_specs,
    keep_tensor_inputs,
    keep_tensor_outputs,
    signature_of,
    tensors_of,
)
from felixlike.frontend.importers.promotion import promote
from felixlike.frontend.importers.pytorch_regions import note_of, outline, without_effects
from felixlike.frontend.importers.randomness import random_operators
from felixlike.frontend.importers.recurrent import recurrent_converters
from felixlike.frontend.importers.refusals import assigned, check_indices, decomposition_error, export_error, quiet
from felixlike.frontend.importers.training_mode import differing_parts
from felixlike.frontend.rewrites.layers import Recorder
from felixlike.frontend.rewrites.zero_factors import with_zero_factors
from felixlike.frontend.signature.layouts import output_orders, output_roots, with_outputs_in_memory_order
from felixlike.frontend.signature.nesting import TENSOR
from felixlike.frontend.signature.signature import Parameter, Signature, parameters_of
from felixlike.frontend.signature.structure import structure_from_leaves
from felixlike.hardware import kind_of


@dataclass(frozen=True, slots=True)
class Exported:
    """Hold an nn.Module as torch.export has captured it.

    Attributes:
        program: The ExportedProgram, before decompositions.
        model: The module.
        name: Display name.
        signature: How the model is called.
        examples: One torch tensor per input.
        made: Indices of the examples that were made from sizes alone.
        training: See `Source`.
        dynamic: Whether sizes may be symbolic.
        random: Whether PyTorch may run operators that draw random numbers.
    """

    program: Any
    model: Any
    name: str
    signature: Signature
    examples: tuple[Any, ...]
    made: frozenset[int]
    training: tuple[str, ...] = ()
    dynamic: bool = False
    random: bool = False


@alone(exports=True)
def from_module(
    model: Any, shapes: Any, dynamic: Mapping[str, Any] | None = None, *, target: Any = None, random: bool = False
) -> Source:
    """Export and import an nn.Module. The export runs in eval mode, and the model is left unchanged.

    target: what the model will be compiled for. None for kernels that are for no target.  The others: as in
    `export_module`.

    Raises InvalidShape, ExportFailed, DynamicControlFlow, RandomOperator, UnsupportedOperator, EmptyModel,
    InvalidModel.
    """
    return from_exported(export_module(model, shapes, dynamic, random=random), target=target)


@alone(exports=True)
def from_exported(exported: Exported, *, target: Any = None) -> Source:
    """Import a module that was exported.  target: as in `from_module`.  Raises UnsupportedOperator and others."""
    source = _convert(
        exported.program,
        exported.model,
        exported.name,
        exported.signature,
        exported.examples,
        dynamic=exported.dynamic,
        target=target,
        random=exported.random,
    )
    return replace(source, training=exported.training, made=exported.made)


@alone(exports=True)
def export_module(
    model: Any, shapes: Any, dynamic: Mapping[str, Any] | None = None, *, random: bool = False
) -> Exported:
    """Export an nn.Module in eval mode. The model is left unchanged.

    dynamic: torch.export's dimension for each name in the examples' `dims`, None if all sizes are fixed.  random:
    whether PyTorch runs operators that draw random numbers, which are refused otherwise.

    Raises InvalidShape, ExportFailed, DynamicControlFlow, InvalidModel.
    """
    import torch

    name = type(model).__name__
    user_inputs = read_shapes(shapes)
    if user_inputs is None:
        raise InvalidShape(
            "the shapes of the model's inputs are not known",
            where=name,
            remedy=advice(
                "pass example tensors, or sizes: shapes=((1, 3, 224, 224),)",
                "pass sizes: --shape 1x3x224x224 (--shape NAME=… for each of several inputs), or return examples from"
                " the function: return model, (x,)",
            ),
        )
    check_kind(model, name)
    training = differing_parts(model)
    model = _on_cpu(model)
    check_tensors(model, name)
    if (dtype := callers_autocast()) is not None:
        model = under_autocast(model, dtype)
    parameters = parameters_of(model.forward)
    args, kwargs = _bind(user_inputs, parameters, name)
    tensors = tuple(value.value() for value in args)
    named = {key: value.value() for key, value in kwargs.items()}
    signature = Signature.of_call(parameters, tensors, named)
    with (
        evaluating(model),
        callers_dtype(),
        quiet(),
        recurrent_shapes(),
        unchecked_distributions(),
        conversions_without_effect(),
        without_left_hooks(),
        assigned() as names,
    ):
        try:
            sizes = None if dynamic is None else _dynamic_sizes(model, args, kwargs, dynamic)
            with on("exporting"):
                program = torch.export.export(model, tensors, named, dynamic_shapes=sizes)
            check_indices(program)
        except Exception as error:
            raise export_error(error, name, only_sizes=user_inputs.only_sizes, dims=dynamic is not None) from None
    check_assigned(program, names, name)
    indices_made = made(example for value in (*args, *kwargs.values()) for example in value.examples)
    examples = tuple(tensors_of((tensors, named)))
    return Exported(
        program, model, name, signature, examples, indices_made, training, dynamic=dynamic is not None, random=random
    )


@alone(exports=True)
def from_dynamic_program(program: Any, *, name: str = "") -> Source:
    """Import an ExportedProgram with symbolic sizes.  Raises like from_module."""
    name = name or "ExportedProgram"
    examples = tensors_of(program.example_inputs)
    return _convert(program, program, name, signature_of(program), examples, dynamic=True)


@alone(exports=True)
def from_program(program: Any, shapes: Any, *, name: str = "", target: Any = None, random: bool = False) -> Source:
    """Import an ExportedProgram, which knows its shapes.  target, random: as in from_module.  Raises like it."""
    name = name or "ExportedProgram"
    specs = input_specs(program, name)
    signature = signature_of(program)
    specs = tuple(InputSpec(place, s.shape, s.dtype) for place, s in zip(signature.names, specs, strict=True))
    user_inputs = read_shapes(shapes)
    sizes_alone = user_inputs is None or user_inputs.only_sizes
    if user_inputs is not None and not signature.by_position:
        user_inputs = _flat(user_inputs, signature, name)
    examples = match_known(user_inputs, specs, where=name)
    program_examples = tensors_of(program.example_inputs) if user_inputs is None else ()
    if len(program_examples) == len(specs):
        return _convert(program, program, name, signature, program_examples, target=target, random=random)
    tensors = tuple(example.tensor() for example in examples)
    source = _convert(program, program, name, signature, tensors, target=target, random=random)
    return replace(source, made=frozenset(range(len(specs))) if sizes_alone else made(examples))


def _flat(user_inputs: Given, signature: Signature, where: str) -> Given:
    """Return the inputs, nested as the program expects them, as a flat list of tensors.  Raises InvalidShape."""
    args = [value.value() for value in user_inputs.positional]
    kwargs = {name: value.value() for name, value in user_inputs.named}
    try:
        tensors = signature.flatten(args, kwargs, where=where, takes=input_names(signature.names))
    except InputMismatch as error:
        raise InvalidShape(error.what, where=where, remedy=error.remedy) from None
    return read_shapes(tensors) or Given()


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model in eval mode without gradients, and restore the mode of each part on exit."""
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


def _bind(
    user_inputs: Given, parameters: Sequence[Parameter], where: str
) -> tuple[tuple[Input, ...], dict[str, Input]]:
    """Return the positional and keyword arguments of the model's forward.  Raises InvalidShape."""
    kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    if user_inputs.named:
        by_name = dict(user_inputs.named)
        known = [p for p in parameters if p.kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")]
        names = [p.name for p in known]
        extra = [key for key in by_name if key not in names] if "VAR_KEYWORD" in kinds else []
        required = [p.name for p in known if p.default is None]
        hint = f"; if {names[0]} is itself a dictionary, pass it in a tuple: ({{…}},)" if len(names) == 1 else ""
        check_names(by_name, [*names, *extra], required=required, where=where, hint=hint)
        return (), {key: by_name[key] for key in (*names, *extra) if key in by_name}
    if "VAR_POSITIONAL" not in kinds:
        required_count = sum(p.default is None for p in positional)
        check_count(len(user_inputs.positional), [p.name for p in positional], required=required_count, where=where)
    return user_inputs.positional, {}


def bound_examples(model: Any, user_inputs: Given) -> tuple[Example, ...]:
    """Return the examples of a module's input tensors, in the order of the imported module's parameters."""
    args, kwargs = _bind(user_inputs, parameters_of(model.forward), type(model).__name__)
    return tuple(example for value in (*args, *kwargs.values()) for example in value.examples)


def _dynamic_sizes(
    model: Any, args: Sequence[Input], kwargs: Mapping[str, Input], dims: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the dynamic dimensions of a module's arguments, as torch.export expects them.

    dims: torch.export's dimension for each name.
    """

    def nested(value: Input) -> Any:
        leaves: list[Any] = [{place: dims[name] for place, name in example.dims} for example in value.examples]
        for index, _ in value.structure.constants:
            leaves.insert(index, None)
        return leaves[0] if value.structure.spec is None else _as_builtin(value.structure.spec, iter(leaves))

    bound = inspect.signature(model.forward).bind(*map(nested, args), **{k: nested(v) for k, v in kwargs.items()})
    return dict(bound.arguments)


def _as_builtin(tree: Any, leaves: Iterator[Any]) -> Any:
    """Nest leaves like a TreeSpec, with lists in place of registered classes, as torch.export expects them."""
    if tree.is_leaf():
        return next(leaves)
    parts = [_as_builtin(child, leaves) for child in tree.children()]
    if tree.type not in pytree().BUILTIN_TYPES:
        return parts
    return pytree().SUPPORTED_NODES[tree.type].unflatten_fn(parts, tree.context)


def _convert(
    program: Any,
    original: Any,
    name: str,
    signature: Signature,
    examples: Sequence[Any],
    *,
    dynamic: bool = False,
    target: Any = None,
    random: bool = False,
) -> Source:
    """Convert an ExportedProgram to Relax, with only tensors among the outputs.

    original: the model that the program was exported from, or the program itself.  dynamic: whether sizes may be
    symbolic.  target, random: as in from_module.
    """
    importer = _tvm.torch_importer()
    exported = program
    needed = tuple(assumed_of_sizes(program)) if original is program and dynamic else ()
    specs = input_specs(program, name, dynamic=dynamic)
    drawing = random_operators(program, name, allowed=random)
    with quiet(), callers_dtype(), _tvm.builders_end_their_blocks():
        try:
            orders = output_orders(program)
            roots = output_roots(program, [spec.name for spec in specs])
            restore_casts(program)
            kernels = {**recurrent_converters(program, target), **bag_converters(program, target)}
            with recurrent_shapes():
                kept = (*drawing, *map(decompositions.overload, kernels))
                with on("decomposing"):
                    on_cpu = target is None or kind_of(target).on_host
                    program = decompositions.decomposed(program, kept, on_cpu=on_cpu)
        except Exception as error:
            raise decomposition_error(error, name) from None
        check_state(program, name)
        without_effects(program)
        mutations = lift_mutations(program, signature.names, [spec.name for spec in specs], where=name)
        known = {*importer.ExportedProgramImporter().convert_map, *CONVERTERS, *kernels}
        outline(program, known, name)
        check_dtypes(program, name)
        promote(program)
        attributes = in_single_precision(program)
        check_operators(program, known, name, dynamic=dynamic)
        keep_tensor_inputs(program)
        _keep_own_state(program)
        leaves = keep_tensor_outputs(program, name)
        if not mutations and not any(leaf is TENSOR for leaf in leaves):
            raise EmptyModel(
                "the model returns no tensor", where=name, remedy="return a tensor that depends on an input"
            )
        structure = structure_from_leaves(program.call_spec.out_spec, leaves)
        if any(orders):
            with_outputs_in_memory_order(program, (*orders, *((),) * len(mutations.places)))
        recorder = Recorder(program)
        converters = recorder.recording(with_right_types({**CONVERTERS, **kernels}, _operators(program), name))
        try:
            module = importer.from_exported_program(
                program,
                keep_params_as_input=False,
                # A reshape at the end of the model is a view only if it is not the output itself.
                unwrap_unit_return_tuple=False,
                run_ep_decomposition=False,
                custom_convert_map=with_known_sizes(converters) if dynamic else converters,
            )
        except UnsupportedOperator:
            raise
        except Exception as error:
            raise UnsupportedOperator(
                f"TVM's importer cannot convert the model: {first_line(error)}",
                where=name,
                remedy="rewrite that part with other operators",
            ) from None
    module = with_zero_factors(module)
    for attribute in attributes:
        module["main"] = module["main"].with_attr(attribute, True)
    count = len(specs) + len(mutations.state)
    if len(module["main"].params) != count:
        raise InvalidModel(
            f"TVM's importer left {len(module['main'].params) - count} of the model's parameters unbound",
            where=name,
        )
    return Source(
        name,
        recorder.labelled(module),
        signature,
        structure,
        tuple(examples),
        original,
        note=note_of(module),
        orders=orders if any(orders) else (),
        roots=roots,
        mutations=mutations,
        assumed=tuple(assumed_of_sizes(exported)[len(needed) :]) if dynamic else (),
        needed=needed,
    )


def _on_cpu(model: Any) -> Any:
    """Return the model, or a CPU copy if it has CUDA tensors (constants are read on the CPU) or inference tensors."""
    tensors = (*model.parameters(), *model.buffers())
    if any(tensor.device.type == "cuda" or tensor.is_inference() for tensor in tensors):
        return copy.deepcopy(model).cpu()
    return model


def _keep_own_state(program: Any) -> None:
    """Copy weights and constants: TVM reads some in place, so further training would change the compiled model."""
    import torch

    copies: dict[int, Any] = {}
    for state in (program.state_dict, program.constants):
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                if id(value) not in copies:  # tied weights stay one
                    copies[id(value)] = _copy(value.detach())
                state[name] = copies[id(value)]


def _copy(tensor: Any) -> Any:
    """Return a copy of a tensor in the order of its dimensions. TVM converts others only in dtypes that NumPy has."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format) if tensor.layout == torch.strided else tensor.clone()


def _operators(program: Any) -> set[str]:
    """Return the names of the operators that a program calls."""
    nodes = [node for graph in graphs_of(program) for node in graph.nodes]
    return {node.target.__name__ for node in nodes if node.op == "call_function"}
