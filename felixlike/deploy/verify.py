"""Is a compiled model right?  Its outputs against the model's own, evaluated in float64 where that is possible.

In: a compiled callable, the model, example inputs. Out: the largest error relative to each output's largest value, and
whether that is an error at all (see `agreement`).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from felixlike.deploy.agreement import Agreement, agreement
from felixlike.deploy.callable import Compiled
from felixlike.frontend import Signature
from felixlike.frontend.structure import pytree_warnings_off
from felixlike.modes import callers_dtype, own_modes


class Verdict(StrEnum):
    """What came of a comparison."""

    RIGHT = "right"
    WRONG = "wrong"
    RANDOM = "random"
    """The original gives something else at every call."""
    UNSURE = "unsure"
    """It differs in what the original's own arithmetic does not decide."""


@dataclass(frozen=True, slots=True)
class Verification:
    """error: max |got − ref| / max |ref|, the worst of all outputs (0 is exact, inf if shapes or NaNs differ).

    reference: what ref was: "float64" or "float32" eager PyTorch, or "untuned" for models without an eager form.
    words: what is wrong, or may be; empty where all is right."""

    error: float
    reference: str
    verdict: Verdict = Verdict.RIGHT
    words: str = ""


@own_modes()
def max_relative_error(
    compiled: Compiled, model: Any, example_inputs: Sequence[Any], *, products: float = 0.0
) -> Verification:
    """Compare a compiled model with its original on one set of inputs.

    model: an nn.Module or ExportedProgram, or the untuned Compiled for a model that PyTorch cannot run. A module is
    copied to the CPU and to float64 (floating inputs too; integers stay), and evaluated as it is where that fails.
    products: see `agreement`."""
    import torch

    signature = compiled.signature
    got = signature.call(compiled, [tensor.to(compiled.device) for tensor in example_inputs])
    names = [spec.name for spec in compiled.outputs]
    if isinstance(model, Compiled):
        there = [tensor.to(model.device) for tensor in example_inputs]
        return _judged(
            agreement(got, signature.call(model, there), names=names, exact=False, products=products), "untuned"
        )
    inputs = [tensor.detach().cpu() for tensor in example_inputs]
    with torch.random.fork_rng(devices=[]):  # a random model must not change the caller's random numbers
        want, reference = _eager(model, inputs, signature)
        wide = reference == "float64"
        found = agreement(got, want, names=names, exact=wide, products=products)
        if found.right:
            return _judged(found, reference)
        if not agreement(evaluated(model, inputs, signature, wide=wide), want).right:
            words = "it is random: it gives something else at every call, so nothing can be compared with it"
            return Verification(found.error, reference, Verdict.RANDOM, words)
        own = _own(model, inputs, signature) if wide else want
        exact = wide and own is not None
        return _judged(agreement(got, want, own, names=names, exact=exact, products=products), reference)


def _judged(found: Agreement, reference: str) -> Verification:
    verdict = Verdict.WRONG if found.wrong else Verdict.UNSURE if found.unsure else Verdict.RIGHT
    return Verification(found.error, reference, verdict, found.wrong or found.unsure)


def _eager(model: Any, inputs: list[Any], signature: Signature) -> tuple[Any, str]:
    """The original's output, and the precision it was computed in."""
    try:
        return evaluated(model, inputs, signature, wide=True), "float64"
    except Exception:  # whatever a model raises when it insists on its own precision
        return evaluated(model, inputs, signature, wide=False), "float32"


def _own(model: Any, inputs: list[Any], signature: Signature) -> Any:
    """The original's output in its own precision; None where the CPU has no such arithmetic."""
    try:
        return evaluated(model, inputs, signature, wide=False)
    except Exception:  # half precision on older CPUs
        return None


def evaluated(model: Any, inputs: list[Any], signature: Signature, *, wide: bool) -> Any:
    """The original's output in eval mode, of a copy.  wide: in float64."""
    if not wide:
        return _run(_copy(model), inputs, signature)
    inputs = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    return _run(_copy(model).double(), inputs, signature)


def _copy(model: Any) -> Any:
    """A module of one's own to change."""
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        model = model.module(check_guards=False)  # which shares its parameters with the program, and so with the model
    with pytree_warnings_off():
        return copy.deepcopy(model).cpu()


def _run(module: Any, inputs: list[Any], signature: Signature) -> Any:
    """What a module gives when it is called with the arguments that it was exported with."""
    import torch

    if not isinstance(module, torch.fx.GraphModule):  # an exported program is fixed in the mode it was exported in
        module.eval()
    with torch.no_grad(), callers_dtype():
        return signature.call(module, [tensor.clone() for tensor in inputs])
