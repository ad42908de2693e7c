"""Do two answers of a model agree, as far as its arithmetic allows?

In: the outputs of a compiled model, those of the original (in float64 where that is possible), and those in the model's
own precision. Out: `Agreement`: how far off, how far off anybody would be, and in words what is wrong.

An output may be off, relative to its largest value, by half of its type's digits, or by 32 times what PyTorch's own
arithmetic is off: sums in other orders and fast convolutions lose a digit. Where products on tensor cores were asked
for and done, it may be off by what their rounding costs a model (`hardware/precision.py`). Integers must be equal, but
where a few differ two numbers may have been nearly equal, as for an argmax.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_TIMES_OWN = 32.0
_MOST = 0.1
"""However inexact PyTorch is: an error beyond this is not called right."""

_UNMEASURED = 8.0
"""Times half of the digits, where nobody knows how inexact the model is in its own precision."""

_FEW = 0.01
"""The share of an output's integers that may differ since what they were made from was nearly equal."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """error: max |got − ref| / max |ref|, the worst of all outputs (0 is exact, inf if shapes or NaNs differ).
    wrong, unsure: what is wrong, or may be, in words; empty where nothing is."""

    error: float
    wrong: str = ""
    unsure: str = ""

    @property
    def right(self) -> bool:
        return not self.wrong and not self.unsure


def agreement(
    got: Any, want: Any, own: Any = None, *, names: Sequence[str] = (), exact: bool = True, products: float = 0.0
) -> Agreement:
    """Compare outputs, nested alike.

    own: the original's in its own precision, None where not known.  names: of the outputs.  exact: whether `want` is
    more precise than what is asked.  products: what rounding the factors of products may cost, where that was asked
    for."""
    tensors = [_tensors(nested) for nested in (got, want, want if own is None else own)]
    if len({len(leaves) for leaves in tensors}) > 1:
        counts = f"{len(tensors[0])} outputs instead of {len(tensors[1])}"
        return Agreement(math.inf, wrong=f"it gives {counts}")
    if len(names) != len(tensors[0]):
        names = [f"output {index}" for index in range(len(tensors[0]))]
    each = [
        _of_output(a, b, None if own is None else c, name, exact, products)
        for a, b, c, name in zip(*tensors, names, strict=True)
    ]
    return Agreement(
        max((one.error for one in each), default=0.0),
        "; ".join(one.wrong for one in each if one.wrong),
        "; ".join(one.unsure for one in each if one.unsure),
    )


def _tensors(nested: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf.detach().cpu() for leaf in _pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _of_output(got: Any, want: Any, own: Any, name: str, exact: bool, products: float) -> Agreement:
    if got.shape != want.shape:
        return Agreement(math.inf, wrong=f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if not want.is_floating_point():
        return _of_integers(got, want, own, name)
    error = _error(got, want, own)
    digits = _half_of_the_digits(got) * (1.0 if exact else _UNMEASURED)
    usual = 0.0 if own is None else _TIMES_OWN * _error(own, want, own)
    allowed = max(digits, min(usual, _MOST), products if got.is_floating_point() else 0.0)
    if error <= allowed:
        return Agreement(error)
    if math.isinf(error):
        return Agreement(
            error, wrong=f"{name} has NaN or infinite values where there are none, or none where there are"
        )
    words = f"{name} is off by {error:.1e} of its largest value"
    if error <= usual:
        return Agreement(
            error, unsure=f"{words}, and so may be what PyTorch gives: the model magnifies rounding errors"
        )
    return Agreement(error, wrong=f"{words}, where {allowed:.1e} can be expected")


def _of_integers(got: Any, want: Any, own: Any, name: str) -> Agreement:
    """Equal to either of the original's answers; a few may be neither."""
    differ, usual = got != want, 0
    if own is not None:
        differ &= got != own
        usual = int((own != want).sum())
    number, size = int(differ.sum()), differ.numel()
    if not number:
        return Agreement(0.0)
    words = f"{number} of the {size} values of {name} are not the original's"
    if number <= max(_FEW * size, _TIMES_OWN * usual):
        return Agreement(
            0.0, unsure=f"{words}, as it happens where numbers that are compared or rounded are nearly equal"
        )
    return Agreement(_error(got, want, None), wrong=words)


def _half_of_the_digits(got: Any) -> float:
    import torch

    return math.sqrt(torch.finfo(got.dtype).eps) if got.is_floating_point() else 0.0


def _error(got: Any, want: Any, own: Any) -> float:
    """max |got − want| / max |want|; absolute if want is all zero; equal infinities and NaNs agree.

    Where the model in its own precision overflows, or gives NaN, so may any other; where float64 alone does, the own
    precision counts."""
    import torch

    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    counted = want.isfinite()
    if own is not None:
        own = own.double()
        same |= ~own.isfinite() & ~got.isfinite()
        counted &= own.isfinite()
        want = torch.where(want.isfinite(), want, own)
    difference = torch.where(same, 0.0, (got - want).abs())
    if not bool(difference.isfinite().all()):
        return math.inf
    if difference.numel() == 0:
        return 0.0
    finite = want[counted]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return float(difference.max()) / (scale or 1.0)
