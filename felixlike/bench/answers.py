"""Compare the answers of a comparison's sides with the original in float64.

Inputs: the module, its inputs, and what each side returned at which precision. Output: errors, and what is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from felixlike.frontend.originals.kinds import original_of
from felixlike.frontend.signature.signature import Signature
from felixlike.hardware.precision import PRECISIONS
from felixlike.runtime.agreement import agreement
from felixlike.runtime.verification import noise_samples

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Judged:
    """The difference of a side's answer from the reference.

    Attributes:
        error: max |got − ref| / max |ref|, the maximum over outputs; inf if shapes or NaNs differ.
        wrong: What is wrong, as words; empty if nothing is.
    """

    error: float
    wrong: str = ""


class Reference:
    """The outputs of a module, in float64 or in its own precision.

    Args:
        model: The module in eval mode.
        inputs: Its inputs.
        wide: Whether to evaluate in float64. Models that are too large for it are evaluated in their own precision.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor], *, wide: bool) -> None:
        self._original = original_of(model, Signature.plain([f"input {i}" for i in range(len(inputs))]))
        self._inputs, self._wide = inputs, wide
        self._outputs = self._original.outputs(inputs, wide=wide)
        self._samples: list[Any] | None = None

    def judge(self, outputs: Sequence[Tensor], precision: str) -> Judged:
        """Compare a side's outputs. Products of other precisions than float32 may differ by their rounding errors."""
        products = max((known.model_tolerance for known in PRECISIONS if known.name in precision), default=0.0)
        result = agreement(outputs, self._outputs, exact=self._wide, products=products)
        if not result.right:
            if self._samples is None:
                self._samples = noise_samples(self._original, self._inputs)
            samples = self._samples
            result = agreement(outputs, self._outputs, samples, exact=self._wide and bool(samples), products=products)
        return Judged(result.error, result.wrong)


def packed(answer: Any) -> bytes:
    """Return the tensors and NumPy arrays of a call's result as bytes, in their order."""
    import numpy as np
    import torch

    from felixlike._util.torch_compat import pytree

    leaves = pytree().tree_leaves(answer)
    tensors = [torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    file = io.BytesIO()
    torch.save([tensor.detach().clone() for tensor in tensors if isinstance(tensor, torch.Tensor)], file)
    return file.getvalue()


def unpacked(content: bytes) -> list[Tensor]:
    """Return the tensors of `packed`."""
    import torch

    tensors: list[Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    return tensors
