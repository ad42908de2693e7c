"""What the products of float32 numbers may be computed in: exactly, or on a GPU's tensor cores, which round them first.

In: a TVM target, a name. Out: the target that asks for it, in an attribute of its own: keys of tasks, records and saved
models name the target, so none of one precision passes for another's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike.errors import InvalidOption, UnknownTarget
from felixlike.hardware.kinds import kind_of
from felixlike.hardware.simulated import simulated

_ATTRIBUTE = "feature.precision"
"""Of TVM's targets: what begins with "feature." they take and keep."""

_LEAST_ARCH = 80
"""Compute capability 8.0, ten times: the first whose tensor cores know all three (PTX ISA, mma)."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What products are computed in; sums are of float32 always.

    name: for users.  unit: the largest relative error of a product both of whose factors were rounded: twice half of
    the distance of two neighbours, 2⁻¹⁰ and 2⁻⁷.  times: how many times as many products a second there are of it as of
    float32, about (white papers of A100, 19.5 : 156 : 312, and H100, 67 : 495 : 989 TFLOP/s)."""

    name: str
    unit: float
    times: int

    @property
    def on_tensor_cores(self) -> bool:
        """Whether it is another one than float32 itself."""
        return self.times > 1

    @property
    def tolerance(self) -> float:
        """The largest error of a contraction let pass, relative to its largest value: twice the worst of one product.

        Errors of products of random sign add up as the products themselves do, so a sum's is that of its products
        about, relative to the largest sums: up to 0.43 units were found for sums of 16 to 4096 terms."""
        return 2.0 * self.unit if self.on_tensor_cores else 0.0

    @property
    def model_tolerance(self) -> float:
        """The same for a whole model, whose layers' errors add up as a random walk of 16 steps does."""
        return 4.0 * self.tolerance


FLOAT32 = Precision("float32", 2.0**-24, 1)

PRECISIONS = (
    FLOAT32,
    Precision("tf32", 2.0**-10, 8),
    Precision("float16", 2.0**-10, 16),
    Precision("bfloat16", 2.0**-7, 16),
)
"""In an order that marks in stored traces count on: add at the end."""

NAMES = tuple(precision.name for precision in PRECISIONS)


def check_precision(name: Any) -> Precision:
    """The precision of a name. Raises InvalidOption."""
    known = option_checks.one_of(name, "precision", NAMES, what="a precision")
    return next(precision for precision in PRECISIONS if precision.name == known)


def precision_of(target: Any) -> Precision:
    """What a TVM target asks for. Raises InvalidOption for what is none."""
    return check_precision(str(target.attrs.get(_ATTRIBUTE, FLOAT32.name)))


def with_precision(target: Any, name: Any) -> Any:
    """A TVM target that asks for a precision; float32 leaves it as it is.

    Raises InvalidOption for names that are none, and for targets without tensor cores."""
    wanted = check_precision(name)
    if not wanted.on_tensor_cores:
        return target
    why = _without_tensor_cores(target)
    if why:
        raise InvalidOption(
            f"{wanted.name} is computed on tensor cores, and {why}",
            where="precision",
            remedy='use precision="float32", or a target like "cuda" of compute capability 8.0 or later',
        )
    return _tvm.Target({**target.export(), _ATTRIBUTE: wanted.name})


def checked_precision(target: Any) -> Any:
    """A TVM target whose attribute, if it has it, is one that it can keep to. Raises UnknownTarget."""
    try:
        with_precision(target, precision_of(target).name)
    except InvalidOption as error:
        raise UnknownTarget(
            f"its {_ATTRIBUTE} cannot be had: {error.what}", where="target", remedy="leave that attribute out"
        ) from None
    return target


def require_float32(target: Any) -> None:
    """Raise InvalidOption for a target that asks for another precision, where calls decide sizes."""
    asked = precision_of(target)
    if asked.on_tensor_cores:
        raise InvalidOption(
            f"products of {asked.name} are for models whose sizes are known",
            where="precision",
            remedy='use precision="float32", or give sizes in place of every Dim',
        )


def _without_tensor_cores(target: Any) -> str:
    """Why a target has none; empty where it has."""
    if kind_of(target).on_host:
        return "a CPU has none"
    if simulated(target) is not None:
        return "simulated devices were measured in float32 only"
    arch = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    if arch is None or int(arch[1]) < _LEAST_ARCH:
        return f"those of {target.attrs.get('arch')} do not know it"
    return ""
