"""Describe what a model changes in place: inputs, and buffers of its own.

A compiled module changes nothing. It takes the buffers as further inputs and returns the new values as further outputs;
`runtime/writing.py` writes these back at each call.
"""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutations:
    """The tensors that a model changes in place. Empty for most models.

    Attributes:
        names: Name of each changed tensor: of an input as the user reaches it, of a buffer as the module names it.
            Inputs come first.
        places: Index of each among the inputs of the compiled module, which are the user's inputs and then `state`.
            The module returns the new values in this order, after the model's outputs.
        state: Values of the changed buffers, in the order of the module's inputs.
    """

    names: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    state: tuple[Any, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the changed tensors among the user's inputs."""
        return self.places[: len(self.places) - len(self.state)]

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the changed buffers."""
        return self.names[len(self.places) - len(self.state) :]

    def copied(self) -> "Mutations":
        """Return the same with copies of the buffers."""
        return replace(self, state=tuple(tensor.clone() for tensor in self.state))


NONE = Mutations()
"""The mutations of a model that changes nothing."""
