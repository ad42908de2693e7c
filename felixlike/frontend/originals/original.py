"""Define the protocol of a reference model, and perturb inputs and weights by a rounding error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Original(Protocol):
    """Evaluate a model as the user passed it.

    Attributes:
        exact: Whether the model can be evaluated in float64.
    """

    exact: bool

    def name(self, *, wide: bool) -> str:
        """Return the name of the evaluator, for reports.  wide: in float64."""

    def memory(self, *, wide: bool) -> int:
        """Return the bytes that an evaluation needs for weights, in addition to the model's own."""

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate the model on CPU tensors, which stay unchanged.

        Args:
            inputs: One CPU tensor per input.
            wide: Evaluate in float64 instead of the model's own precision.
            moved: Seed for perturbing every input by one rounding error, and every weight if the weights are
                accessible. None for no perturbation.

        Returns:
            The outputs, as the evaluator nests them.
        """


def moved_by_a_rounding(tensors: Sequence[Any], seed: int) -> list[Any]:
    """Multiply every element of float tensors by 1 ± ε, in place, with signs drawn from the seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point():
                signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8).to(tensor.dtype)
                tensor.mul_(1 + torch.finfo(tensor.dtype).eps * (2 * signs - 1))
    return list(tensors)
