"""Preserve views: outputs of a graph that share memory with its inputs or with each other, as in PyTorch.

Input: a graph captured by TorchDynamo. Outputs: a graph that only computes new tensors, and a graph that PyTorch runs
after it to create the views: `return h, h[0]` becomes `return h` and `return h[0]`. Writing to an output then changes
the same tensors as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from felixlike.dynamo.writes import reshapes, storage, writes, written
from felixlike.errors import InvalidModel


class SplitGraph:
    """A graph split into the compiled part and the views of its results.

    Args:
        graph: The graph.

    Attributes:
        computing: The graph without its views, with the same inputs.

    Raises:
        InvalidModel: A view cannot be separated.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        outputs = _outputs(graph)
        bases = _bases(graph, outputs)
        computed = [node for node in outputs if isinstance(node, fx.Node) and node not in bases]
        roots = [base for base in bases.values() if base.op != "placeholder"]
        self.computing = graph
        self._views: Callable[..., Any] | None = None
        if bases:
            returned = list(dict.fromkeys([*computed, *roots]))
            self.computing = _returning(graph, returned)
            self._views = _views(graph, list(bases), list(dict.fromkeys(roots)))
            self._roots = [returned.index(root) for root in dict.fromkeys(roots)]
            self._sources = [_source(node, returned, list(bases)) for node in outputs]

    def outputs(self, inputs: Sequence[Any], results: Sequence[Any]) -> Any:
        """Return the outputs of the whole graph.

        Args:
            inputs: The inputs of the call.
            results: The results of the compiled part.
        """
        if self._views is None:
            return results
        views = self._views(*inputs, *[results[place] for place in self._roots])
        return tuple(
            value if kind == "constant" else views[value] if kind == "view" else results[value]
            for kind, value in self._sources
        )


def _outputs(graph: fx.GraphModule) -> list[Any]:
    """Return the nodes and constants that a graph returns."""
    returned: Any = graph.graph.output_node().args[0]
    return list(returned)


def _bases(graph: fx.GraphModule, outputs: Sequence[Any]) -> dict[fx.Node, fx.Node]:
    """Map each output that is a view to its base: the input, or the first node, with the same memory.

    An output that shares memory with no other value is a view only if its elements overlap."""
    first: dict[int, fx.Node] = {}
    for node in graph.graph.nodes:
        memory = storage(node)
        if memory is not None:
            first.setdefault(memory, node)
    sharing: dict[int, set[fx.Node]] = {}
    for node in outputs:
        memory = storage(node)
        if memory is not None:
            sharing.setdefault(memory, set()).add(node)
    return {
        node: first[memory]
        for memory, nodes in sharing.items()
        if len(nodes) > 1 or first[memory].op == "placeholder" or any(map(_overlaps, nodes))
        for node in nodes
    }


def _overlaps(node: fx.Node) -> bool:
    """Return whether elements of a value share memory, like those of an expanded tensor."""
    value = node.meta["example_value"]
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _returning(graph: fx.GraphModule, outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """Return the same graph with other outputs."""
    copied = fx.Graph()
    values: dict[fx.Node, Any] = {}
    copied.graph_copy(graph.graph, values)
    copied.output(tuple(values[node] for node in outputs))
    return fx.GraphModule(graph, copied)


def _views(graph: fx.GraphModule, views: Sequence[fx.Node], roots: Sequence[fx.Node]) -> fx.GraphModule:
    """Return a graph that computes the views from the inputs and the roots, after everything was written to them."""
    for node in graph.graph.nodes:
        if reshapes(node) and storage(node) in {storage(root) for root in roots}:
            raise InvalidModel(
                f"the shape of {written(node)}, of which views are returned, changes in place",
                where="graph",
                remedy="return clones of the views",
            )
    needed = _between(views, roots)
    known = {storage(node) for node in graph.graph.nodes if node.op == "placeholder" or node in roots}
    cut = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = cut.placeholder(node.name)
    for node in roots:
        values[node] = cut.placeholder(f"root_{node.name}")
    for node in graph.graph.nodes:
        if node not in needed or node in values:
            continue
        if writes(node):
            values[node] = values[written(node)]
            continue
        memory = storage(node)
        if (memory is not None and memory not in known) or node.op == "get_attr":
            raise InvalidModel(
                f"the view {views[0].name} depends on values that the graph computes",
                where="graph",
                remedy="return a clone of the view",
            )
        values[node] = cut.node_copy(node, values.__getitem__)
    cut.output(tuple(values[node] for node in views))
    return fx.GraphModule(graph, cut)


def _between(views: Sequence[fx.Node], roots: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes between the inputs or roots and the views."""
    needed: set[fx.Node] = set()
    waiting = [node for node in views if node not in roots]
    while waiting:
        node = waiting.pop()
        if node in needed or node in roots:
            continue
        needed.add(node)
        waiting.extend([written(node)] if writes(node) else node.all_input_nodes)
    return needed


def _source(node: Any, computed: Sequence[fx.Node], views: Sequence[fx.Node]) -> tuple[str, Any]:
    """Return the source of an output of the whole graph: a kind, and an index or the constant."""
    if not isinstance(node, fx.Node):
        return "constant", node
    return ("view", views.index(node)) if node in views else ("computed", computed.index(node))
