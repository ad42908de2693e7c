"""Compare a compiled model with the original, and tell the user about everything that went wrong in a run.

Inputs: an imported model and its build. Outputs: `Verification`; warnings, or VerificationFailed.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from felixlike import runtime
from felixlike._util import user_folders
from felixlike._util.interrupts import Interrupts
from felixlike.errors import (
    FelixlikeWarning,
    NondeterministicModelWarning,
    UnverifiedWarning,
    VerificationFailed,
    callers_level,
    first_line,
)
from felixlike.frontend import Imported, Task
from felixlike.frontend.constants import has_half_weights
from felixlike.hardware import precision_of
from felixlike.report import Report
from felixlike.runtime import Compiled, Verdict, Verification
from felixlike.tuning.choice import Choice
from felixlike.tuning.compiling import Build

UNVERIFIED = Verification(math.nan, "", Verdict.UNSURE, "the run was interrupted before that")
"""The verification of a model that has not been compared with the original."""

before_comparing: ContextVar[Callable[[Compiled, Report], None] | None] = ContextVar("before_comparing", default=None)
"""Context variable with a callback that gets a compiled model and its report before the comparison with the original,
which may run out of memory. The command-line tool sets it to save the model."""


def hand_over(compiled: Compiled, report: Callable[[], Report]) -> None:
    """Call `before_comparing`, if it is set, with a model and its report.

    Exceptions of the callback are ignored, since the final save raises them again.
    """
    callback = before_comparing.get()
    if callback is not None:
        note = "The whole model was not verified: it was saved before it was compared."
        with contextlib.suppress(Exception):
            callback(compiled, replace(report(), note=note))


def verify(imported: Imported, build: Build, interrupts: Interrupts) -> Verification:
    """Compare the model with the original, if possible and not interrupted."""
    products = product_error(imported.target, build.choices, imported.tasks)
    return verified(imported, build.compiled, products, interrupts)


def verified(imported: Imported, compiled: Compiled, products: float, interrupts: Interrupts) -> Verification:
    """Compare a compiled model with the original. products: error allowed for products of reduced precision."""
    try:
        return interrupts.attempt(
            lambda: runtime.max_relative_error(compiled, imported.original, imported.examples, products=products),
            lambda: UNVERIFIED,
        )
    except (Exception, SystemExit) as error:  # the user's model may raise anything
        return replace(UNVERIFIED, words=f"comparing failed: {first_line(error)}")


def product_error(target: Any, choices: Sequence[Choice], tasks: Sequence[Task] = ()) -> float:
    """Return the error allowed for reduced-precision products; 0 if no schedule and no rewrite of the model uses them.

    Tasks whose factors a rewrite has rounded may have a schedule in float32, or none.
    """
    used = {choice.candidate.sketch.precision for choice in choices if choice.candidate is not None}
    if any(has_half_weights(task.module["main"]) for task in tasks):
        used.add(precision_of(target).name)
    return error_of_precisions(target, used)


def error_of_precisions(target: Any, used: Collection[str]) -> float:
    """Return the error allowed for products of these precisions."""
    precision = precision_of(target)
    return precision.model_tolerance if precision.name in used else 0.0


def verification_warnings(verification: Verification, name: str) -> list[FelixlikeWarning]:
    """Return the warnings about a comparison that did not decide whether the model is right."""
    match verification.verdict:
        case Verdict.RANDOM:
            return [NondeterministicModelWarning(f"{name}: {verification.words}.")]
        case Verdict.UNSURE:
            return [UnverifiedWarning(f"{name} was not verified as a whole: {verification.words}.")]
        case _:
            return []


def tell(
    verification: Verification,
    name: str,
    optimized: Any,
    others: Sequence[FelixlikeWarning] = (),
    *,
    reduced: bool = False,
) -> None:
    """Issue the warnings of a run.

    Args:
        verification: Result of the comparison with the original.
        name: The model's name.
        optimized: The tuned model, attached to errors and warnings.
        others: Further warnings.
        reduced: Whether products of the tuned model have a reduced precision.

    Raises:
        VerificationFailed: The tuned model computes something else.
    """
    if verification.verdict is Verdict.WRONG:
        failed = VerificationFailed(
            f"the outputs of the tuned model differ from those of the original ({verification.reference}):"
            f" {verification.words}",
            where=name,
            remedy="; ".join(
                filter(
                    None,
                    (
                        'use precision="float32"' if reduced else "",
                        verification.remedy,
                        "the tuned model is this error's attribute `optimized`",
                        "" if verification.remedy else "please report this with the model",
                    ),
                )
            ),
        )
        failed.optimized = optimized
        raise failed
    pending = [*others, *verification_warnings(verification, name)]
    if (unusable := user_folders.pending()) is not None:
        pending.append(unusable)
    for warning in pending:
        warning.optimized = optimized
    for warning in pending:
        warnings.warn(warning, stacklevel=callers_level())
