"""Find the operators of an exported program that draw random numbers.

Input: an ExportedProgram before decomposition. After it, TVM's importer turns a dropout or `randn_like` into a
constant or nothing. Output: a RandomOperator error that names them; or, where PyTorch may run them at each call
(`pytorch_regions.py`), the operators.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from felixlike._util.torch_compat import is_operator, schema_of
from felixlike.errors import RandomOperator

_SWITCHES = ("train", "training")
"""Arguments that disable drawing if they are False, as of dropout."""

_PROBABILITIES = ("p", "dropout", "dropout_p")
"""Arguments that disable drawing if they are 0."""


def random_operators(program: Any, where: str, *, allowed: bool) -> frozenset[Any]:
    """Return the operators that draw random numbers in a program.

    Raises RandomOperator for them unless they are allowed, since compiled code would return the same numbers in each
    call, and always for those in inner graphs, which are compiled as a whole.
    """
    nodes = list(filter(is_random, _calls(program)))
    refused = [node for node in nodes if not allowed or node.graph is not program.graph]
    if refused:
        _refuse(refused, where)
    return frozenset(node.target for node in nodes)


def is_random(node: Any) -> bool:
    """Return whether a node of a graph calls an operator that draws random numbers."""
    return is_operator(node.target) and draws_random_numbers(node.target, _arguments(node))


def may_be_random(name: str) -> bool:
    """Return whether an overload of an operator of PyTorch's, such as "rand_like", may draw random numbers."""
    import torch

    packet: Any = getattr(torch.ops.aten, name)
    return any(draws_random_numbers(getattr(packet, overload), {}) for overload in packet.overloads())


def _refuse(nodes: Iterable[Any], where: str) -> NoReturn:
    """Raise RandomOperator for nodes that draw random numbers."""
    raise RandomOperator(
        f"the model draws random numbers ({', '.join(sorted(set(map(_name, nodes))))}), which compiled code does not"
        " support",
        where=where,
        remedy="draw them outside of the model and pass them as an input; export dropout in eval mode",
    )


def draws_random_numbers(operator: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call of an operator draws random numbers.

    Args:
        operator: An OpOverload. PyTorch tags most random operators. The others take a generator or drop elements.
        arguments: The call's arguments by name. Symbolic values count as enabled.
    """
    import torch

    schema = schema_of(operator)
    takes_generator = any("Generator" in str(argument.type) for argument in schema.arguments)
    drops = "dropout" in schema.name
    if torch.Tag.nondeterministic_seeded not in operator.tags and not takes_generator and not drops:
        return False
    if any(arguments.get(name) is False for name in _SWITCHES):
        return False
    if arguments.get("num_layers") == 1:  # recurrent layers drop between layers only
        return False
    names = _PROBABILITIES if drops else _PROBABILITIES[1:]  # a Bernoulli variable with the probability 0 is 0
    return not any(arguments.get(name) == 0 for name in names)


def _calls(program: Any) -> Iterator[Any]:
    """Yield the nodes of a program that call operators, including those in its inner graphs."""
    import torch

    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if is_operator(node.target):
                    yield node


def _arguments(node: Any) -> dict[str, Any]:
    """Return a call's arguments by name, defaults included."""
    parameters = schema_of(node.target).arguments
    arguments = {p.name: p.default_value for p in parameters if p.has_default_value()}
    arguments.update(zip([p.name for p in parameters if not p.kwarg_only], node.args, strict=False))
    arguments.update(node.kwargs)
    return arguments


def _name(node: Any) -> str:
    """Return the name of a node's operator without its namespace."""
    return str(schema_of(node.target).name.rpartition("::")[2])
