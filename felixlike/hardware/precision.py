"""Select the precision of products of float32 numbers: exact, or with factors that are rounded first.

A GPU's tensor cores round both factors, and so do CPUs that multiply pairs of bfloat16 numbers (`instructions.PAIRS`)
or matrices of them (`instructions.TILES`). Other CPUs round constant weights to bfloat16, which halves the bytes to
load.

Input: a TVM target and a precision's name. Output: a target with the precision as an attribute. Keys of tasks, records
and saved models contain the target, so those of different precisions are never mixed up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from felixlike import _tvm
from felixlike._util import option_checks
from felixlike.errors import InvalidOption, UnknownTarget
from felixlike.hardware.instructions import PAIRS, TILES, host_cpu
from felixlike.hardware.kinds import kind_of
from felixlike.hardware.presets import machines
from felixlike.hardware.simulated import simulated


class Form(Enum):
    """How a CPU computes products of factors that may be rounded to bfloat16."""

    WEIGHTS = "constant weights are rounded"
    PAIRS = "both factors are rounded"


_ATTRIBUTE = "feature.precision"
"""The attribute of the target. TVM accepts and keeps attributes that begin with "feature."."""

_LEAST_ARCH = 80
"""Compute capability 8.0, times ten: the first whose tensor cores support all three (PTX ISA, mma)."""

_SIMULATED = "simulated devices were measured in float32 only"


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of products. Sums are always in float32.

    Attributes:
        name: Name for users.
        unit: The largest relative error of a product: half of the distance of two neighbours for each factor that is
            rounded. Both are, 2⁻¹⁰ and 2⁻⁷, except on CPUs without pairs, 2⁻⁸.
        times: Ratio of products per second to float32, rounded (white papers of A100, 19.5 : 156 : 312, and H100, 67 :
            495 : 989 TFLOP/s; 287 : 575 GFLOP/s were measured on a core of Zen 5).
        growth: Ratio of a model's tolerance to that of a contraction.
    """

    name: str
    unit: float
    times: int
    growth: float = 4.0

    @property
    def is_reduced(self) -> bool:
        """Return whether factors may be rounded, as for all but float32."""
        return self.name != FLOAT32.name

    @property
    def tolerance(self) -> float:
        """Return the largest accepted error of a contraction, relative to its largest value.

        It is twice the worst of one product. Errors of products with random sign add up as the products do. Relative to
        the largest sums, a sum's error is therefore about that of its products: up to 0.43 units were found for sums of
        16 to 4096 terms.
        """
        return 2.0 * self.unit if self.is_reduced else 0.0

    @property
    def model_tolerance(self) -> float:
        """Return the largest accepted error of a model, whose layers' errors add up like a random walk of 16 steps.

        On CPUs it is 2 % of the largest output at most. Only some layers round there.
        """
        return self.growth * self.tolerance


FLOAT32 = Precision("float32", 2.0**-24, 1)
"""The exact precision, the default."""

BFLOAT16 = Precision("bfloat16", 2.0**-7, 16)
"""The precision of tensor cores that round both factors to bfloat16."""

PAIRS_PRECISION = Precision(BFLOAT16.name, 2.0**-7, 2, growth=1.25)
"""The same precision on CPUs that multiply pairs."""

TILES_PRECISION = Precision(BFLOAT16.name, 2.0**-7, 8, growth=1.25)
"""The same precision on CPUs that multiply matrices: at 16 times the rate, of which rows and channels that do not fill
matrices leave about half."""

_WEIGHTS = Precision(BFLOAT16.name, 2.0**-8, 1, growth=2.5)
"""The same precision on other CPUs, where only constant weights are rounded."""

PRECISIONS = (
    FLOAT32,
    Precision("tf32", 2.0**-10, 8),
    Precision("float16", 2.0**-10, 16),
    BFLOAT16,
)
"""All precisions. Annotations in stored traces refer to their positions: append new ones at the end."""

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
    precision = check_precision(str(target.attrs.get(_ATTRIBUTE, FLOAT32.name)))
    if precision is not BFLOAT16 or not kind_of(target).on_host:
        return precision
    halves = precision_of_halves(target)
    return halves if halves.is_reduced else _WEIGHTS


def precision_of_halves(target: Any) -> Precision:
    """Return the precision in which a CPU multiplies tensors that are bfloat16: FLOAT32 if it has no instruction.

    Args:
        target: A TVM target of a CPU.
    """
    if has_tiles(target):
        return TILES_PRECISION
    return PAIRS_PRECISION if has_pairs(target) else FLOAT32


def has_pairs(target: Any) -> bool:
    """Return whether schedules for a CPU's target may use products of pairs of bfloat16 numbers.

    A target that imitates a described machine has that machine's instructions. Code for a processor without them
    computes the same with others (`codegen/pair_functions.py`). Pairs are slower than float32 on processors that
    multiply matrices.

    Args:
        target: A TVM target of a CPU.
    """
    return _schedules_have(PAIRS, target) and not has_tiles(target)


def has_tiles(target: Any) -> bool:
    """Return whether schedules for a CPU's target may use products of matrices of bfloat16 numbers.

    A target that imitates a described machine has that machine's instructions. Code for a processor without them
    multiplies pairs.

    Args:
        target: A TVM target of a CPU.
    """
    return _schedules_have(TILES, target)


def _schedules_have(instruction: str, target: Any) -> bool:
    """Return whether schedules for a CPU's target may use an instruction set."""
    imitated = simulated(target)
    name = str(target.attrs.get("model", "")) if imitated is None else imitated.machine
    if name in machines():
        machine = machines()[name]
        target = _tvm.Target({"kind": "llvm", "mtriple": machine.triple, "mcpu": machine.mcpu})
        return instruction in _tvm.cpu_features(target)
    return has_instruction(instruction, target)


def has_instruction(instruction: str, target: Any) -> bool:
    """Return whether code for a CPU's target may use an instruction set.

    Args:
        instruction: LLVM's name of the instruction set.
        target: A TVM target of a CPU.
    """
    is_host = str(target.attrs.get("mcpu", "")) == host_cpu()  # a hypervisor may hide some of its instructions
    return instruction in _tvm.cpu_features(target) and not (is_host and instruction not in _tvm.host_features())


def with_precision(target: Any, name: Any) -> Any:
    """Return a TVM target with a precision. float32 returns the target unchanged.

    Args:
        target: A TVM target.
        name: Name of the precision.

    Raises:
        InvalidOption: If no precision has this name, or the target does not support it.
    """
    precision = check_precision(name)
    if not precision.is_reduced:
        return target
    refusal = _refusal(target, precision)
    if refusal:
        raise InvalidOption(
            refusal,
            where="precision",
            remedy='use precision="float32", on CPUs also "bfloat16", or a target like "cuda" of compute capability '
            "8.0 or later",
        )
    return _tvm.Target({**target.export(), _ATTRIBUTE: precision.name})


def without_precision(target: Any) -> Any:
    """Return a TVM target that computes in float32.

    Args:
        target: A TVM target.
    """
    return _tvm.Target({name: value for name, value in target.export().items() if name != _ATTRIBUTE})


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
    """Check that a GPU's target computes in float32, as kernels for dynamic sizes do there.

    Args:
        target: A TVM target. Those of CPUs may have any precision.

    Raises:
        InvalidOption: If it has another precision.
    """
    precision = precision_of(target)
    if precision.is_reduced and not kind_of(target).on_host:
        raise InvalidOption(
            f"dynamic sizes on GPUs do not support precision {precision.name}",
            where="precision",
            remedy='use precision="float32", or replace every Dim by a size',
        )


def _refusal(target: Any, precision: Precision) -> str:
    """Return why a target does not support a reduced precision, empty if it does."""
    on_host = kind_of(target).on_host
    if on_host and precision is BFLOAT16:
        return "" if simulated(target) is None else f"{precision.name} is not supported: {_SIMULATED}"
    arch = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    if on_host:
        reason = "a CPU has none"
    elif simulated(target) is not None:
        reason = _SIMULATED
    elif arch is None or int(arch[1]) < _LEAST_ARCH:
        reason = f"those of {target.attrs.get('arch')} do not support it"
    else:
        return ""
    return f"{precision.name} needs tensor cores, but {reason}"
