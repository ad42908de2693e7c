"""Bind the weights and sizes of a graph, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx, nn

from felixlike._util.torch_compat import forward_of


class Bound(nn.Module):
    """A module whose inputs are the graph's inputs without weights and sizes.

    Args:
        graph: The graph, called with all inputs.
        inputs: All inputs; weights and sizes are bound.
        places: Indices of the remaining inputs.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__()
        self._graph = graph
        self._places = list(places)
        self._fixed: list[Any] = [None if i in places else x for i, x in enumerate(inputs)]
        for place, value in enumerate(self._fixed):
            if isinstance(value, Tensor):
                self.register_buffer(f"weight_{place}", value.detach())
                self._fixed[place] = f"weight_{place}"

    @staticmethod
    def place_of(buffer: str) -> int:
        """Return the index of the input that is bound as this buffer."""
        return int(buffer.removeprefix("weight_"))

    def forward(self, *inputs: Tensor) -> Any:
        """Return the graph's outputs."""
        values = [getattr(self, value) if isinstance(value, str) else value for value in self._fixed]
        for place, value in zip(self._places, inputs, strict=True):
            values[place] = value
        return forward_of(self._graph)(*values)  # calling the graph would print a traceback for every error
