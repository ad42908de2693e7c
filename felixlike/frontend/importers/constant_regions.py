"""Compute once, when a model is imported, what PyTorch would compute in each call from weights alone.

Input: the graph of an ExportedProgram, and the calls that PyTorch must run. Output: the same graph with further
constants in place of those calls that depend on weights only. Calls that draw random numbers stay.
"""

from __future__ import annotations

from typing import Any

from felixlike._util.torch_compat import copy_state, is_operator, pytree
from felixlike.frontend.importers.randomness import is_random

_WEIGHTS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")
"""Kinds of inputs of a program that are the same in each call."""


def fold(program: Any, chosen: set[Any]) -> set[Any]:
    """Replace calls that depend on weights alone by constants. Modifies the program.

    Calls whose evaluation fails stay, so that each call of the model raises the same error as PyTorch.

    Args:
        program: A functional ExportedProgram, in which buffers that it changes are inputs.
        chosen: The calls that PyTorch must run.

    Returns:
        Those of them that are left.
    """
    import torch

    graph, signature = program.graph, program.graph_signature
    constant = _constant(program)
    folded = {node for node in chosen if node in constant}
    results = [
        node
        for node in graph.nodes
        if node in folded
        and isinstance(node.meta.get("val"), torch.Tensor)
        and any(user not in folded for user in node.users)
    ]
    try:
        values = _evaluated(program, [*results, *(node for node in folded if node.meta.get("val") is None)])
    except Exception:  # such as the error for a singular matrix
        return chosen
    if results:
        copy_state(program)  # it is the user's
    for node in results:
        name = f"folded_{node.name}"
        with graph.inserting_before(next(iter(graph.nodes))):
            placeholder = graph.placeholder(name)
        placeholder.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(placeholder)
        program.constants[name] = values[node].resolve_conj().resolve_neg().contiguous()
        kinds = torch.export.graph_signature
        argument = kinds.TensorArgument(name=placeholder.name)
        signature.input_specs.insert(0, kinds.InputSpec(kinds.InputKind.CONSTANT_TENSOR, argument, name))
    for node in reversed([node for node in graph.nodes if node in folded]):
        if not node.users:
            graph.erase_node(node)
            folded.discard(node)
            chosen = chosen - {node}
    return chosen


def _constant(program: Any) -> set[Any]:
    """Return the nodes of a graph whose values are the same in each call."""
    weights = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name in _WEIGHTS}
    constant: set[Any] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            fixed = node.name in weights
        else:
            fixed = node.op == "call_function" and not (is_operator(node.target) and is_random(node))
        if fixed and all(source in constant for source in node.all_input_nodes):
            constant.add(node)
    return constant


def _evaluated(program: Any, nodes: list[Any]) -> dict[Any, Any]:
    """Return the values of constant nodes and of all that they depend on."""
    import torch

    needed, waiting = set[Any](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    values: dict[Any, Any] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node not in needed:
                continue
            if node.op == "placeholder":
                state = program.state_dict if targets[node.name] in program.state_dict else program.constants
                values[node] = state[targets[node.name]].detach()
            else:
                args, kwargs = pytree().tree_map_only(torch.fx.Node, values.__getitem__, (node.args, node.kwargs))
                values[node] = node.target(*args, **kwargs)
    return values
