"""Make a program that changes inputs and buffers in place one that takes and returns them.

Input: a functional ExportedProgram, whose signature says which outputs are new values. Output: `Mutations`; the
program's changed buffers are inputs after the user's own, the new values outputs after the user's own.
"""

from collections.abc import Sequence
from typing import Any

from felixlike.errors import UnsupportedOperator
from felixlike.frontend.signature.layouts import is_users
from felixlike.frontend.signature.mutations import NONE, Mutations


def lift_mutations(program: Any, names: Sequence[str], inputs: Sequence[str], *, where: str) -> Mutations:
    """Turn changed buffers into inputs, and describe all changed tensors.

    Args:
        program: The program, which is modified.
        names: The user's name of each input tensor.
        inputs: The program's name of each input tensor.
        where: The model's name, for errors.

    Returns:
        The changed tensors.

    Raises:
        UnsupportedOperator: An operator has other effects than changes in place, such as raising an error.
    """
    signature, output = program.graph_signature, program.graph.output_node()
    pairs = list(zip(output.args[0], signature.output_specs, strict=True))
    users = [pair for pair in pairs if is_users(pair[1])]
    if any(pair[1].kind.name == "TOKEN" for pair in pairs):
        operators = [str(n.args[1]) for n in program.graph.nodes if n.name.startswith("with_effects")]
        raise UnsupportedOperator(
            f"TVM cannot import {operators[0] if operators else 'an operator'}, which has effects besides its result",
            where=where,
            remedy="use other operators",
        )
    new = {pair[1].target: pair for pair in pairs if not is_users(pair[1])}
    if not new:
        return NONE
    changed = [name for name in inputs if name in new]
    buffers = sorted(new.keys() - set(changed))
    values = {**program.constants, **program.state_dict}
    for name in buffers:
        _as_last_input(program, name)
    ordered = [new[name] for name in (*changed, *buffers)]
    output.args = (tuple(node for node, _ in (*users, *ordered)),)
    signature.output_specs[:] = [spec for _, spec in (*users, *ordered)]
    return Mutations(
        names=(*(names[inputs.index(name)] for name in changed), *buffers),
        places=(*map(inputs.index, changed), *range(len(inputs), len(inputs) + len(buffers))),
        state=tuple(_contiguous(values[name]) for name in buffers),
    )


def _as_last_input(program: Any, buffer: str) -> None:
    """Turn a buffer of a program into its last input."""
    import torch

    signature = program.graph_signature
    kinds = torch.export.graph_signature.InputKind
    index = next(i for i, spec in enumerate(signature.input_specs) if spec.target == buffer)
    spec = signature.input_specs.pop(index)
    signature.input_specs.append(torch.export.graph_signature.InputSpec(kinds.USER_INPUT, spec.arg, None))
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    if inputs[index] is not inputs[-1]:
        inputs[-1].append(inputs[index])


def _contiguous(buffer: Any) -> Any:
    """Return a copy of a buffer in the order of its dimensions, which compiled code assumes."""
    import torch

    return buffer.detach().clone(memory_format=torch.contiguous_format)
