"""Bind the weights and numbers of a graph, as a module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from felixlike._util.torch_compat import check
from felixlike.dynamo.graph_sizes import GraphSizes, Place
from felixlike.errors import InvalidModel
from felixlike.frontend.examples import repeated


class Bound(nn.Module):
    """A module whose inputs are the graph's inputs without weights and numbers.

    Args:
        graph: The graph, called with all inputs.
        inputs: All inputs; weights and numbers are bound.
        places: Indices of the remaining inputs.
        sizes: The sizes that may differ between calls. None to bind them too.
    """

    def __init__(
        self, graph: fx.GraphModule, inputs: Sequence[Any], places: Sequence[int], sizes: GraphSizes | None = None
    ) -> None:
        super().__init__()
        self._graph = graph
        self._places = list(places)
        self._sizes = sizes
        self._fixed: list[Any] = [None if i in places else x for i, x in enumerate(inputs)]
        for place, value in enumerate(self._fixed):
            if isinstance(value, Tensor):
                self.register_buffer(f"weight_{place}", value.detach())
                self._fixed[place] = f"weight_{place}"
        if sizes is not None:
            self._relations = sizes.relations(inputs)
            self._most = self._largest(inputs, sizes)

    @staticmethod
    def place_of(buffer: str) -> int:
        """Return the index of the input that is bound as this buffer."""
        return int(buffer.removeprefix("weight_"))

    def exported(self, examples: Sequence[Tensor]) -> torch.export.ExportedProgram:
        """Export the module for example inputs, for all sizes in range if sizes may differ.

        Raises:
            InvalidModel: The graph fixes a size that may differ.
        """
        from felixlike._util.torch_modes import alone

        with alone(exports=True), torch.no_grad():
            program = torch.export.export(self, tuple(examples), dynamic_shapes=self._dynamic_shapes(), strict=False)
        if self._sizes is not None:
            _check_dynamic(program, [self._sizes.dims.get(place, {}) for place in self._places])
        return program

    def _largest(self, inputs: Sequence[Any], sizes: GraphSizes) -> dict[Place, int]:
        """Return the largest sizes at which the graph runs: a table of positions may end before those to compile for.

        Raises:
            InvalidModel: It runs at no larger sizes than those of the inputs.
        """
        now, most = sizes.of(inputs), sizes.most(inputs)
        while any(most[place] > now[place] for place in most):
            for relation in self._relations:
                most[relation.place] = most[relation.other] + relation.more
            resized = [
                inputs[i]
                if i not in sizes.dims
                else repeated(inputs[i], {d: most[p] for d, p in sizes.dims[i].items()})
                for i in self._places
            ]
            try:
                self(*resized)
            except Exception:  # whatever the user's model raises
                most = {place: max(now[place], size // 2) for place, size in most.items()}
            else:
                return most
        raise InvalidModel("it does not run at larger sizes", where="graph")

    def _dynamic_shapes(self) -> Any:
        """Return the dynamic dimensions of the inputs, as torch.export takes them."""
        if self._sizes is None:
            return None
        dims = [self._sizes.dims.get(place, {}) for place in self._places]
        most = self._most
        return (tuple({d: torch.export.Dim.AUTO(max=most[p]) for d, p in of_input.items()} for of_input in dims),)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the graph's outputs."""
        values = [getattr(self, value) if isinstance(value, str) else value for value in self._fixed]
        for place, value in zip(self._places, inputs, strict=True):
            values[place] = value
        if self._sizes is not None:
            size = self._sizes.of(values)
            for relation in self._relations:  # what is not checked here, torch.export takes for different sizes
                check(size[relation.place] == size[relation.other] + relation.more)
            for index, source in self._sizes.sources.items():
                values[index] = size[source]
        return self._graph.forward(*values)  # calling it would print a traceback for every error


def _check_dynamic(program: torch.export.ExportedProgram, dims: Sequence[Collection[int]]) -> None:
    """Raise InvalidModel if a dimension of an input that may differ has one size in a program."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for name, of_input in zip(program.graph_signature.user_inputs, dims, strict=True):
        shape = nodes[str(name)].meta["val"].shape
        fixed = [dim for dim in of_input if isinstance(shape[dim], int)]
        if fixed:
            raise InvalidModel(f"the graph fixes size {fixed[0]} of {name} to {shape[fixed[0]]}", where="graph")
