"""What a model as the user gave it must do to be compared with.

In: nothing. Out: the protocol `Original`, and inputs and weights that are off by a rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Original(Protocol):
    """A model that can be evaluated.

    exact: whether it can be evaluated in float64."""

    exact: bool

    def name(self, *, wide: bool) -> str:
        """Say what an answer is from, for reports.  wide: of float64."""

    def memory(self, *, wide: bool) -> int:
        """Return the bytes that weights take in an evaluation, beside the model's own."""

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate on CPU tensors, which stay as they are.

        Args:
            wide: evaluate in float64, else in the model's own precision.
            moved: seed for changing every input and weight, as far as weights can be had, by one rounding."""


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
