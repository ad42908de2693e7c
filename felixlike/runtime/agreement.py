"""Compare the outputs of a compiled model with those of the original, within the limits of rounding errors.

Inputs: the outputs of a compiled model, those of the original (in float64 if possible), and samples of the original's
rounding noise. Output: `Agreement`, the error and a description of what is wrong.

Each output is compared as a whole, and each of its slices along each dimension relative to the slice's magnitude:
scores of a detection head share an output with boxes that are a thousand times larger. The error may be
`Tolerances.digits` of the slice's largest value, or 32 times the noise of the original in that slice, since other
orders of summation and fast convolutions lose a digit. If factors of products were rounded to a reduced precision, the
error may also be the tolerance of that precision (`hardware/precision.py`). Integers must be equal, except for a few
that depend on nearly equal numbers, as in an argmax.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike._util.torch_compat import pytree
from felixlike._util.wording import counted


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far outputs may differ. All but `digits` and `times_noise` are chosen by hand.

    Attributes:
        digits: Allowed error relative to the largest value of a slice, for float32; the square root of machine epsilon
            for other dtypes. The largest such error of nine networks and the operators of `support.models` was 4.6e-6.
        times_noise: Allowed error relative to the noise of a slice. The largest in the same models was 10 times the
            noise.
        most: Maximum error relative to the largest value that noise can justify.
        last_digits: Error allowed in every slice, in units of machine epsilon times the whole output's largest value.
        unmeasured: Factor of the allowed error if the noise of the original is unknown.
        fewest: Minimum number of elements of a slice that is compared separately. The noise of fewer may be small by
            chance.
        few: Share of an output's integers that may differ because they depend on nearly equal numbers.
        blind: Share of NaN above which the comparison of an output is meaningless.
    """

    digits: float = 2.0**-15
    times_noise: float = 32.0
    most: float = 0.1
    last_digits: float = 8.0
    unmeasured: float = 8.0
    fewest: int = 8
    few: float = 0.01
    blind: float = 0.9


_TOLERANCES = Tolerances()


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing outputs.

    Attributes:
        error: max |got − ref| / max |ref|, the maximum over outputs; 0 if exact, inf if shapes or NaNs differ.
        wrong: What is wrong; empty if nothing is.
        unsure: What may be wrong; empty if nothing may be.
        blind: Names of outputs that are NaN nearly everywhere, so that few elements are compared.
    """

    error: float
    wrong: str = ""
    unsure: str = ""
    blind: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Return whether nothing is wrong or may be wrong."""
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
    """Compare outputs with the same nesting.

    Args:
        got: Outputs of the compiled model.
        want: Outputs of the original.
        samples: Outputs of the original in its own precision: first for the same inputs, then for inputs and weights
            changed by a rounding error. Their distance from `want` is the noise. Without samples, every slice must
            agree to `Tolerances.digits`.
        names: Names of the outputs.
        exact: Whether `want` is more precise than `got`. If not, and without samples, outputs are compared as a whole.
        products: Error allowed for reduced-precision products, relative to an output's largest value.

    Returns:
        The error and what is wrong.
    """
    tensors = [_tensors(nested) for nested in (got, want, *samples)]
    if len({len(leaves) for leaves in tensors}) > 1:
        counts = f"expected {counted(len(tensors[1]), 'output')}, got {len(tensors[0])}"
        return Agreement(math.inf, wrong=counts)
    if len(names) != len(tensors[0]):
        names = [f"output {index}" for index in range(len(tensors[0]))]
    each = [_of_output(a, b, noisy, name, exact, products) for a, b, *noisy, name in zip(*tensors, names, strict=True)]
    return Agreement(
        max((one.error for one in each), default=0.0),
        "; ".join(one.wrong for one in each if one.wrong),
        "; ".join(one.unsure for one in each if one.unsure),
        tuple(name for one in each for name in one.blind),
    )


def changed_classes(got: Any, want: Any) -> tuple[int, int]:
    """Return in how many rows of 2-D floating-point outputs the largest element has another place, and their number.

    Args:
        got: Outputs of the compiled model.
        want: Outputs of the original, with the same nesting.

    Returns:
        Rows that differ, and all rows. Both are 0 without such an output.
    """
    changed = rows = 0
    for ours, theirs in zip(_tensors(got), _tensors(want), strict=False):
        if ours.ndim == 2 and ours.shape == theirs.shape and ours.is_floating_point() and ours.shape[1] > 1:
            changed += int((ours.argmax(1) != theirs.argmax(1)).sum())
            rows += ours.shape[0]
    return changed, rows


def _tensors(nested: Any) -> list[Any]:
    """Return the tensors of nested outputs, on the CPU."""
    import torch

    return [leaf.detach().cpu() for leaf in pytree().tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _of_output(got: Any, want: Any, samples: list[Any], name: str, exact: bool, products: float) -> Agreement:
    """Compare one output."""
    if got.shape != want.shape:
        return Agreement(math.inf, wrong=f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    if not want.is_floating_point():
        return _of_integers(got, want, samples, name)
    fields = _Fields(got, want, samples)
    blind = (name,) if fields.nan > _TOLERANCES.blind else ()
    if not fields.comparable:
        words = f"{name} has NaN or infinite values at other positions than the original"
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
            words += f", expected at most {usual / (scale or 1.0):.1e}"
            return Agreement(fields.error, wrong=words, blind=blind)
        unsure = unsure or f"{words}; the model magnifies rounding errors, so PyTorch may be off as much"
    return Agreement(fields.error, unsure=unsure, blind=blind)


@dataclass(frozen=True, slots=True)
class _Limits:
    """The largest allowed differences in slices of one output.

    Attributes:
        digits: Relative to a slice's largest value.
        absolute: Absolute difference, in any slice.
        whole: Absolute difference in slices whose noise explains it.
    """

    digits: float
    absolute: float
    whole: float

    @classmethod
    def of(cls, got: Any, fields: "_Fields", *, known: bool, products: float) -> "_Limits":
        """Return the limits for an output. `known` tells whether its noise is known."""
        import torch

        if not got.is_floating_point():
            return cls(0.0, 0.0, 0.0)
        numbers = torch.finfo(got.dtype)
        digits = _TOLERANCES.digits if got.dtype == torch.float32 else math.sqrt(numbers.eps)
        digits *= 1.0 if known else _TOLERANCES.unmeasured
        least = max(_TOLERANCES.last_digits * numbers.eps, products) * fields.scale
        return cls(digits, max(least, min(numbers.tiny, 1e-30)), digits * fields.scale)

    def sure(self, scale: float, noise: float) -> float:
        """Return the largest difference that counts as right."""
        explained = min(_TOLERANCES.times_noise * noise, max(_TOLERANCES.most * scale, self.whole))
        return max(self.digits * scale, self.absolute, explained)

    def usual(self, scale: float, noise: float) -> float:
        """Return the largest difference that does not count as wrong."""
        return max(self.digits * scale, self.absolute, _TOLERANCES.times_noise * noise)


class _Fields:
    """Differences, magnitudes and noise of the elements of a float output.

    Equal infinities and NaNs agree. Where the original in its own precision is infinite or NaN, the compiled model may
    be so too. Where only float64 is, the own precision is the reference.

    Attributes:
        nan: Share of elements that are NaN in the original.
        comparable: Whether NaNs and infinities agree.
        scale: The largest finite value.
        error: The largest difference relative to `scale`; absolute if that is 0.
    """

    def __init__(self, got: Any, want: Any, samples: list[Any]) -> None:
        import torch

        got, want, samples = got.double(), want.double(), [sample.double() for sample in samples]
        same = (got == want) | (got.isnan() & want.isnan())
        counted = want.isfinite()
        for sample in samples:
            alike = want.isfinite() | (got == sample) | (got.isnan() & sample.isnan())
            same |= ~sample.isfinite() & ~got.isfinite() & alike
        if samples:
            counted = samples[0].isfinite()
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
        """Yield the whole output, and every slice whose relative error exceeds `digits`.

        Args:
            digits: Minimum relative error of a slice.
            along: Whether to yield slices along each dimension, if they have at least `Tolerances.fewest` elements.
                Slices of one dimension are in descending order of their errors. Slices of zeros have no magnitude and
                are skipped.

        Yields:
            (place, largest difference, largest value, largest noise). The place is in Python's notation, such as
            [:, 3], and empty for the whole output.
        """
        import torch

        fields = (self._difference, self._scale, self._noise)
        size, rank = self._scale.numel(), self._scale.dim()
        if not size:
            return
        yield "", float(self._difference.max()), self.scale, float(self._noise.max())
        for dim, count in enumerate(self._scale.shape):
            if not along or count == 1 or size // count < _TOLERANCES.fewest:
                continue
            others = [other for other in range(rank) if other != dim]
            differences, scales, noises = (field.amax(others) for field in fields)
            # The noise of a slice may be small by chance, so use at least the median of the relative noise.
            noises = torch.maximum(noises, scales * (noises / scales.clamp_min(1e-300)).median())
            order = (differences / scales.clamp_min(1e-300)).argsort(descending=True)
            order = order[(differences[order] > digits * scales[order]) & (scales[order] > 0)]
            columns = (values[order].tolist() for values in (differences, scales, noises))
            for index, difference, scale, noise in zip(order.tolist(), *columns, strict=True):
                yield f"[{':, ' * dim}{index}]", difference, scale, noise


def _of_integers(got: Any, want: Any, samples: list[Any], name: str) -> Agreement:
    """Compare integers, which must equal one of the original's outputs except for a few."""
    differ, usual = got != want, 0
    for sample in samples:
        differ &= got != sample
        usual = max(usual, int((sample != want).sum()))
    number, size = int(differ.sum()), differ.numel()
    if not number:
        return Agreement(0.0)
    words = f"{number} of the {size} values of {name} differ from the original"
    if number <= max(_TOLERANCES.few * size, _TOLERANCES.times_noise * usual):
        return Agreement(
            0.0, unsure=f"{words}; this can happen where the model compares or rounds nearly equal numbers"
        )
    return Agreement(_Fields(got, want, []).error, wrong=words)
