"""Read how an ExportedProgram is called, and leave only tensors among its inputs and outputs."""

from typing import Any

from felixlike._util.torch_compat import pytree
from felixlike.errors import InvalidModel, InvalidShape
from felixlike.frontend.imported import InputSpec
from felixlike.frontend.importers.model_checks import is_dynamic
from felixlike.frontend.signature.layouts import as_users, is_users
from felixlike.frontend.signature.nesting import TENSOR
from felixlike.frontend.signature.signature import Parameter, Signature


def keep_tensor_inputs(program: Any) -> None:
    """Remove constants (None, numbers, strings) from the graph's inputs. torch has inlined them at their uses."""
    signature = program.graph_signature
    constants = {spec.arg.name for spec in signature.input_specs if _is_constant(spec)}
    for node in [node for node in program.graph.nodes if node.op == "placeholder" and node.name in constants]:
        program.graph.erase_node(node)
    signature.input_specs[:] = [spec for spec in signature.input_specs if not _is_constant(spec)]


def keep_tensor_outputs(program: Any, where: str) -> list[Any]:
    """Remove constants (None, numbers) from the graph's outputs. New values of changed tensors are at the end and stay.

    Returns all leaves of the user's output, TENSOR for the computed ones. TVM's importer supports tensors only. The
    constants are restored when the output is rebuilt. Raises InvalidModel for numbers that follow from dynamic sizes.
    """
    import torch

    signature = program.graph_signature
    output = program.graph.output_node()
    pairs = list(zip(output.args[0], signature.output_specs, strict=True))
    leaves = [_leaf(node) for node, spec in pairs if is_users(spec)]
    sizes = torch.SymInt, torch.SymFloat, torch.SymBool
    for node, spec in pairs:
        if is_users(spec) and _leaf(node) is TENSOR and isinstance(node.meta.get("val"), sizes):
            raise InvalidModel(
                "the model returns a number that depends on dynamic sizes",
                where=where,
                remedy="return tensors, and compute the number from the sizes of the inputs or outputs",
            )
    kept = [
        (node, spec if is_users(spec) else as_users(spec))
        for node, spec in pairs
        if not is_users(spec) or _leaf(node) is TENSOR
    ]
    output.args = (tuple(node for node, _ in kept),)
    signature.output_specs[:] = [spec for _, spec in kept]
    return leaves


def _leaf(value: Any) -> Any:
    """Return TENSOR for a graph node, or the constant itself."""
    import torch

    return TENSOR if isinstance(value, torch.fx.Node) else value


def input_specs(program: Any, where: str, *, dynamic: bool = False) -> tuple[InputSpec, ...]:
    """Return the program's tensor inputs.

    Raises InvalidShape for symbolic sizes unless `dynamic`, InvalidModel for other kinds of inputs.
    """
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in [spec.arg.name for spec in _user_inputs(program) if not _is_constant(spec)]:
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            raise InvalidModel(
                f"input {name!r} is neither a tensor nor a constant",
                where=where,
                remedy="export the model with only tensors, numbers and strings as inputs",
            )
        if is_dynamic(value) and not dynamic:
            raise InvalidShape(
                f"input {name!r} has dynamic sizes: ({', '.join(map(str, value.shape))})",
                where=where,
                remedy="pass the program to felixlike.optimize, or export the model without dynamic_shapes",
            )
        specs.append(InputSpec(name, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    return tuple(specs)


def signature_of(program: Any) -> Signature:
    """Return how the program is called: each argument by position or by name, as it was exported."""
    leaves = [spec.arg.value if _is_constant(spec) else TENSOR for spec in _user_inputs(program)]
    args, kwargs = pytree().tree_unflatten(leaves, program.call_spec.in_spec)
    called = program.module_call_graph[0].signature
    known = list((called.forward_arg_names if called is not None else None) or ())
    names = [*known[: len(args)], *(f"argument_{index}" for index in range(len(known), len(args)))]
    parameters = [*map(Parameter, names), *(Parameter(name, "KEYWORD_ONLY") for name in kwargs)]
    return Signature.of_call(parameters, args, kwargs)


def _user_inputs(program: Any) -> list[Any]:
    """Return the specifications of the program's inputs, including constants."""
    return [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]


def _is_constant(spec: Any) -> bool:
    """Return whether an input of a program is a constant."""
    import torch

    return isinstance(spec.arg, torch.export.graph_signature.ConstantArgument)


def tensors_of(arguments: Any) -> tuple[Any, ...]:
    """Return the tensors among arguments. A program's missing examples have none."""
    import torch

    tensors = [leaf for leaf in pytree().tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return tuple(tensor.detach() for tensor in tensors)
