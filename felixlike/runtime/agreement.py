"""Compare two answers of a model, element by element, as far as its arithmetic allows.

In: the outputs of a compiled model, those of the original (in float64 where that is possible), and samples of the
original's own rounding noise. Out: `Agreement`: the error, and in words what is wrong.

Each output is judged as a whole, and each of its slices along each dimension by the slice's own magnitude: the scores
of a detection head lie beside boxes that are a thousand times larger. An error may be as large as `_DIGITS` of the
largest value of the slice, or 32 times the noise of the original in that slice: sums in other orders and fast
convolutions lose a digit. Where products on tensor cores were asked for and done, the error may be what their rounding
costs a model (`hardware/precision.py`). Integers must be equal, except that a few may differ: two numbers may have been
nearly equal, as for an argmax.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = {"float32": 2.0**-15}
"""Error of a value relative to the largest of its slice; half of the digits for other types. Of nine networks and the
operators of `support.models`, the largest such error was 4.6e-6."""

_TIMES_NOISE = 32.0
"""Of the same models, the largest error of a slice was 10 times the noise of that slice."""

_MOST = 0.1
"""An error beyond this share of the largest value is not called right, however noisy the original is."""

_LAST_DIGITS = 8.0
"""Errors of so many units in the last place of the whole output's largest value are right in every slice."""

_UNMEASURED = 8.0
"""Times the digits, where the noise of the original is not known."""

_FEWEST = 8
"""Elements of a slice that is judged by itself: the noise of fewer may be small by chance."""

_FEW = 0.01
"""The share of an output's integers that may differ since what they were made from was nearly equal."""

_BLIND = 0.9
"""The share of NaN above which comparing an output says nothing."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """error: max |got − ref| / max |ref|, the worst of all outputs (0 is exact, inf if shapes or NaNs differ).
    wrong, unsure: what is wrong, or may be, in words; empty where nothing is.  blind: names of outputs that are NaN
    nearly everywhere, in which hardly anything is compared."""

    error: float
    wrong: str = ""
    unsure: str = ""
    blind: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether nothing differs."""
        return not self.wrong and not self.unsure


def agreement(
    got: Any,
    want: Any,
    samples: Sequence[Any] = (),
    *,
    names: Sequence[str] = (),
    exact: bool = True,
    products: float = 0.0,
) -> Agreement:
    """Compare outputs, nested alike.

    Args:
        got: outputs of the compiled model.
        want: outputs of the original.
        samples: outputs of the original in its own precision, of the same inputs first, then of inputs and weights that
            are off by a rounding. Their distance from `want` is the noise. Without any, every slice must be right to
            `_DIGITS`.
        names: of the outputs.
        exact: whether `want` is more precise than `got`. If it is not and there are no samples, outputs are judged as
            a whole.
        products: the error that rounding the factors of products may cost, relative to an output's largest value."""
    tensors = [_tensors(nested) for nested in (got, want, *samples)]
    if len({len(leaves) for leaves in tensors}) > 1:
        counts = f"{len(tensors[0])} outputs instead of {len(tensors[1])}"
        return Agreement(math.inf, wrong=f"it gives {counts}")
    if len(names) != len(tensors[0]):
        names = [f"output {index}" for index in range(len(tensors[0]))]
    each = [_of_output(a, b, noisy, name, exact, products) for a, b, *noisy, name in zip(*tensors, names, strict=True)]
    return Agreement(
        max((one.error for one in each), default=0.0),
        "; ".join(one.wrong for one in each if one.wrong),
        "; ".join(one.unsure for one in each if one.unsure),
        tuple(name for one in each for name in one.blind),
    )


def _tensors(nested: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf.detach().cpu() for leaf in _pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _of_output(got: Any, want: Any, samples: list[Any], name: str, exact: bool, products: float) -> Agreement:
    if got.shape != want.shape:
        return Agreement(math.inf, wrong=f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if not want.is_floating_point():
        return _of_integers(got, want, samples, name)
    fields = _Fields(got, want, samples)
    blind = (name,) if fields.nan > _BLIND else ()
    if not fields.comparable:
        words = f"{name} has NaN or infinite values where there are none, or none where there are"
        return Agreement(math.inf, wrong=words, blind=blind)
    limits = _Limits.of(got, fields, known=exact or bool(samples), products=products)
    unsure = ""
    for place, difference, scale, noise in fields.slices(limits.digits, along=exact or bool(samples)):
        slice_name = name + place
        if difference <= limits.sure(scale, noise):
            continue
        words = f"{slice_name} is off by {difference / (scale or 1.0):.1e} of its largest value"
        usual = limits.usual(scale, noise)
        if difference > usual:
            words += f", where {usual / (scale or 1.0):.1e} can be expected"
            return Agreement(fields.error, wrong=words, blind=blind)
        unsure = unsure or f"{words}, and so may be what PyTorch gives: the model magnifies rounding errors"
    return Agreement(fields.error, unsure=unsure, blind=blind)


@dataclass(frozen=True, slots=True)
class _Limits:
    """The largest differences let pass in slices of one output.

    digits: relative to a slice's largest value.  absolute: in any slice.  whole: in any slice that noise explains,
    relative to the output's largest value."""

    digits: float
    absolute: float
    whole: float

    @classmethod
    def of(cls, got: Any, fields: "_Fields", *, known: bool, products: float) -> "_Limits":
        import torch

        if not got.is_floating_point():
            return cls(0.0, 0.0, 0.0)
        numbers = torch.finfo(got.dtype)
        digits = _DIGITS.get(str(got.dtype).removeprefix("torch."), math.sqrt(numbers.eps))
        digits *= 1.0 if known else _UNMEASURED
        least = max(_LAST_DIGITS * numbers.eps, products) * fields.scale
        return cls(digits, max(least, min(numbers.tiny, 1e-30)), digits * fields.scale)

    def sure(self, scale: float, noise: float) -> float:
        """A difference that is right."""
        explained = min(_TIMES_NOISE * noise, max(_MOST * scale, self.whole))
        return max(self.digits * scale, self.absolute, explained)

    def usual(self, scale: float, noise: float) -> float:
        """A difference that is not wrong."""
        return max(self.digits * scale, self.absolute, _TIMES_NOISE * noise)


class _Fields:
    """What there is to say of every element of a float output.

    Equal infinities and NaNs agree. Where the original in its own precision overflows, or gives NaN, so may any other;
    where float64 alone does, the own precision counts.

    nan: share of elements that are NaN in the original.  comparable: whether NaNs and infinities agree.  scale: the
    largest finite value.  error: the largest difference relative to it, absolute if it is 0."""

    def __init__(self, got: Any, want: Any, samples: list[Any]) -> None:
        import torch

        got, want, samples = got.double(), want.double(), [sample.double() for sample in samples]
        same = (got == want) | (got.isnan() & want.isnan())
        counted = want.isfinite()
        for sample in samples:
            same |= ~sample.isfinite() & ~got.isfinite()
        if samples:
            counted &= samples[0].isfinite()
            want = torch.where(want.isfinite(), want, samples[0])
        self._difference = torch.where(same, 0.0, (got - want).abs())
        self._scale = torch.where(counted, want.abs(), 0.0)
        self._noise = torch.zeros_like(self._scale)
        for sample in samples:
            distance = (sample - want).abs()
            self._noise = torch.maximum(self._noise, torch.where(distance.isfinite(), distance, 0.0))
        size = want.numel()
        self.nan = float(want.isnan().sum()) / size if size else 0.0
        self.comparable = bool(self._difference.isfinite().all())
        self.scale = float(self._scale.max()) if size else 0.0
        self.error = float(self._difference.max()) / (self.scale or 1.0) if size and self.comparable else math.inf
        if not size:
            self.error = 0.0

    def slices(self, digits: float, *, along: bool) -> Iterator[tuple[str, float, float, float]]:
        """Yield (place, largest difference, largest value, largest noise) of every slice with a larger relative error.

        Args:
            digits: that error.
            along: take the slices along each dimension too, if they have `_FEWEST` elements. Those of one dimension
                come in the order of their errors, the largest first. Those of zeros have no magnitude of their own.

        The place is what Python would write, [:, 3], and empty for the whole."""
        import torch

        fields = (self._difference, self._scale, self._noise)
        size, rank = self._scale.numel(), self._scale.dim()
        if not size:
            return
        yield "", float(self._difference.max()), self.scale, float(self._noise.max())
        for dim, count in enumerate(self._scale.shape):
            if not along or count == 1 or size // count < _FEWEST:
                continue
            others = [other for other in range(rank) if other != dim]
            differences, scales, noises = (field.amax(others) for field in fields)
            # A slice whose noise is small by chance is as noisy, for its size, as half of the others.
            noises = torch.maximum(noises, scales * (noises / scales.clamp_min(1e-300)).median())
            order = (differences / scales.clamp_min(1e-300)).argsort(descending=True)
            order = order[(differences[order] > digits * scales[order]) & (scales[order] > 0)]
            columns = (values[order].tolist() for values in (differences, scales, noises))
            for index, difference, scale, noise in zip(order.tolist(), *columns, strict=True):
                yield f"[{':, ' * dim}{index}]", difference, scale, noise


def _of_integers(got: Any, want: Any, samples: list[Any], name: str) -> Agreement:
    """Equal to either of the original's answers; a few may be neither."""
    differ, usual = got != want, 0
    for sample in samples:
        differ &= got != sample
        usual = max(usual, int((sample != want).sum()))
    number, size = int(differ.sum()), differ.numel()
    if not number:
        return Agreement(0.0)
    words = f"{number} of the {size} values of {name} are not the original's"
    if number <= max(_FEW * size, _TIMES_NOISE * usual):
        return Agreement(
            0.0, unsure=f"{words}, as it happens where numbers that are compared or rounded are nearly equal"
        )
    return Agreement(_Fields(got, want, []).error, wrong=words)
