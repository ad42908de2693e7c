"""Select the precision of products of float32 numbers: exact, or a GPU's tensor cores, which round the factors first.

Input: a TVM target and a precision's name. Output: a target with the precision as an attribute. Keys of tasks, records
and saved models contain the target, so those of different precisions are never mixed up.
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
"""The attribute of the target. TVM accepts and keeps attributes that begin with "feature."."""

_LEAST_ARCH = 80
"""Compute capability 8.0, times ten: the first whose tensor cores support all three (PTX ISA, mma)."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of products. Sums are always in float32.

    Attributes:
        name: Name for users.
        unit: The largest relative error of a product whose factors were both rounded: twice half of the distance of two
            neighbours, 2⁻¹⁰ and 2⁻⁷.
        times: Ratio of products per second to float32, rounded (white papers of A100, 19.5 : 156 : 312, and H100, 67 :
            495 : 989 TFLOP/s).
    """

    name: str
    unit: float
    times: int

    @property
    def on_tensor_cores(self) -> bool:
        """Return whether products are computed on tensor cores, as for all but float32."""
        return self.times > 1

    @property
    def tolerance(self) -> float:
        """Return the largest accepted error of a contraction, relative to its largest value.

        It is twice the worst of one product. Errors of products with random sign add up as the products do. Relative to
        the largest sums, a sum's error is therefore about that of its products: up to 0.43 units were found for sums of
        16 to 4096 terms.
        """
        return 2.0 * self.unit if self.on_tensor_cores else 0.0

    @property
    def model_tolerance(self) -> float:
        """Return the largest accepted error of a model, whose layers' errors add up like a random walk of 16 steps."""
        return 4.0 * self.tolerance


FLOAT32 = Precision("float32", 2.0**-24, 1)
"""The exact precision, the default."""

PRECISIONS = (
    FLOAT32,
    Precision("tf32", 2.0**-10, 8),
    Precision("float16", 2.0**-10, 16),
    Precision("bfloat16", 2.0**-7, 16),
)
"""All precisions. Loop annotations in stored traces refer to their positions: append new ones at the end."""

NAMES = tuple(precision.name for precision in PRECISIONS)
"""Names of all precisions."""


def check_precision(name: Any) -> Precision:
    """Return the precision of a name.

    Args:
        name: "float32", "tf32", "float16" or "bfloat16".

    Raises:
        InvalidOption: If no precision has this name.
    """
    known = option_checks.one_of(name, "precision", NAMES, what="a precision")
    return next(precision for precision in PRECISIONS if precision.name == known)


def precision_of(target: Any) -> Precision:
    """Return the precision of a TVM target.

    Args:
        target: A TVM target.

    Raises:
        InvalidOption: If the target's attribute is not a precision.
    """
    return check_precision(str(target.attrs.get(_ATTRIBUTE, FLOAT32.name)))


def with_precision(target: Any, name: Any) -> Any:
    """Return a TVM target with a precision. float32 returns the target unchanged.

    Args:
        target: A TVM target.
        name: Name of the precision.

    Raises:
        InvalidOption: If no precision has this name, or the target has no tensor cores that support it.
    """
    precision = check_precision(name)
    if not precision.on_tensor_cores:
        return target
    reason = _without_tensor_cores(target)
    if reason:
        raise InvalidOption(
            f"{precision.name} needs tensor cores, but {reason}",
            where="precision",
            remedy='use precision="float32", or a target like "cuda" of compute capability 8.0 or later',
        )
    return _tvm.Target({**target.export(), _ATTRIBUTE: precision.name})


def checked_precision(target: Any) -> Any:
    """Return a TVM target after checking its precision. Raises UnknownTarget if the target cannot compute in it."""
    try:
        with_precision(target, precision_of(target).name)
    except InvalidOption as error:
        raise UnknownTarget(
            f"its {_ATTRIBUTE} is not supported: {error.what}", where="target", remedy="leave that attribute out"
        ) from None
    return target


def require_float32(target: Any) -> None:
    """Check that a target computes in float32, as dynamic sizes require.

    Args:
        target: A TVM target.

    Raises:
        InvalidOption: If it has another precision.
    """
    precision = precision_of(target)
    if precision.on_tensor_cores:
        raise InvalidOption(
            f"dynamic sizes do not support precision {precision.name}",
            where="precision",
            remedy='use precision="float32", or replace every Dim by a size',
        )


def _without_tensor_cores(target: Any) -> str:
    """Return why a target has no suitable tensor cores, empty if it has them."""
    if kind_of(target).on_host:
        return "a CPU has none"
    if simulated(target) is not None:
        return "simulated devices were measured in float32 only"
    arch = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    if arch is None or int(arch[1]) < _LEAST_ARCH:
        return f"those of {target.attrs.get('arch')} do not support it"
    return ""
