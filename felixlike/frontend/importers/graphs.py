"""Go through the graphs of an ExportedProgram: its own, and those of the branches that it chooses from at each call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def graphs_of(program: Any) -> Iterator[Any]:
    """Yield the graph of a program, and the graphs of its branches, which may be nested."""
    import torch

    pending = [program.graph_module]
    while pending:
        module = pending.pop()
        yield module.graph
        names = dict.fromkeys(node.target for node in module.graph.nodes if node.op == "get_attr")
        parts = [getattr(module, name, None) for name in names]
        pending += [part for part in parts if isinstance(part, torch.fx.GraphModule)]
