"""Bind the weights and numbers of a graph, as a module."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from felixlike._util.torch_compat import check, forward_of, run_with_metadata
from felixlike.dynamo.graph_sizes import Place, Span
from felixlike.errors import InvalidModel


class Bound(nn.Module):
    """A module whose inputs are the graph's inputs without weights and numbers.

    Args:
        graph: The graph, called with all inputs.
        inputs: All inputs; weights and numbers are bound.
        places: Indices of the remaining inputs.
        span: The sizes to export for. None for those of the inputs.
    """

    def __init__(
        self, graph: fx.GraphModule, inputs: Sequence[Any], places: Sequence[int], span: Span | None = None
    ) -> None:
        super().__init__()
        self._graph = graph
        self._places = list(places)
        self._span = span
        self._fixed: list[Any] = [None if i in places else x for i, x in enumerate(inputs)]
        for place, value in enumerate(self._fixed):
            if isinstance(value, Tensor):
                self.register_buffer(f"weight_{place}", value.detach())
                self._fixed[place] = f"weight_{place}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        """Return a copy. It shares the graph, which holds nothing that a call changes unless it has attributes."""
        if not any(node.op in ("get_attr", "call_module") for node in self._graph.graph.nodes):
            memo[id(self._graph)] = self._graph
        copied = Bound.__new__(Bound)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    @staticmethod
    def place_of(buffer: str) -> int:
        """Return the index of the input that is bound as this buffer."""
        return int(buffer.removeprefix("weight_"))

    def exported(self, examples: Sequence[Tensor]) -> torch.export.ExportedProgram:
        """Export the module for example inputs, for all sizes in range if sizes may differ.

        Raises:
            InvalidModel: The graph fixes a size that may differ, or its convolutions are faster at fixed sizes.
        """
        from felixlike._util.torch_modes import alone

        with alone(exports=True), torch.no_grad():
            program = torch.export.export(self, tuple(examples), dynamic_shapes=self._dynamic_shapes(), strict=False)
        if self._span is not None:
            _check_dynamic(program, [self._span.sizes.dims.get(place, {}) for place in self._places])
            _check_convolutions(program)
        return program

    def _dynamic_shapes(self) -> Any:
        """Return the dynamic dimensions of the inputs, as torch.export takes them."""
        if self._span is None:
            return None
        dims, least, most = self._span.sizes.dims, self._span.least, self._span.most

        def range_of(place: Place) -> Any:
            return torch.export.Dim.AUTO(min=least[place], max=most[place])

        return (tuple({dim: range_of(p) for dim, p in dims.get(place, {}).items()} for place in self._places),)

    def forward(self, *inputs: Tensor) -> Any:
        """Return the graph's outputs."""
        values = [getattr(self, value) if isinstance(value, str) else value for value in self._fixed]
        for place, value in zip(self._places, inputs, strict=True):
            values[place] = value
        if self._span is not None:
            size = self._span.sizes.of(values)
            for relation in self._span.relations:  # torch.export takes what is not checked for different sizes
                check(size[relation.place] == size[relation.other] + relation.more)
            values = self._span.sizes.with_numbers(values)
        if torch.compiler.is_exporting():
            return run_with_metadata(self._graph, values)
        return forward_of(self._graph)(*values)  # calling the graph would print a traceback for every error


def _check_dynamic(program: torch.export.ExportedProgram, dims: Sequence[Collection[int]]) -> None:
    """Raise InvalidModel if a dimension of an input that may differ has one size in a program."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for name, of_input in zip(program.graph_signature.user_inputs, dims, strict=True):
        shape = nodes[str(name)].meta["val"].shape
        fixed = [dim for dim in of_input if isinstance(shape[dim], int)]
        if fixed:
            raise InvalidModel(f"the graph fixes size {fixed[0]} of {name} to {shape[fixed[0]]}", where="graph")


def _check_convolutions(program: torch.export.ExportedProgram) -> None:
    """Raise InvalidModel for convolutions with dynamic sizes, unless the batch is the only one in the program.

    For these there are no register tiles.
    """
    for node in program.graph.nodes:
        if node.op == "call_function" and "conv" in str(node.target):
            dynamic = [dim for dim, size in enumerate(node.meta["val"].shape) if not isinstance(size, int)]
            if dynamic and (dynamic != [0] or len(program.range_constraints) > 1):
                raise InvalidModel(f"{node.target} has dynamic sizes", where="graph")
