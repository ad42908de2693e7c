"""Is a compiled model right?  Its outputs against the model's own, evaluated in float64 where that is possible.

In: a compiled callable, the model, example inputs. Out: the largest error relative to each output's largest value.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike.deploy.callable import Compiled
from felixlike.frontend import Signature
from felixlike.frontend.structure import pytree_warnings_off
from felixlike.modes import callers_dtype, own_modes


@dataclass(frozen=True, slots=True)
class Verification:
    """error: max |got − ref| / max |ref|, the worst of all outputs (0 is exact, inf if shapes or NaNs differ).

    reference: what ref was: "float64" or "float32" eager PyTorch, or "untuned" for models without an eager form."""

    error: float
    reference: str


@own_modes()
def max_relative_error(compiled: Compiled, model: Any, example_inputs: Sequence[Any]) -> Verification:
    """Compare a compiled model with its original on one set of inputs.

    model: an nn.Module or ExportedProgram, or the untuned Compiled for a model that PyTorch cannot run. A module is
    copied to the CPU and to float64 (floating inputs too; integers stay), and evaluated as it is where that fails."""
    signature = compiled.signature
    got = signature.call(compiled, [tensor.to(compiled.device) for tensor in example_inputs])
    if isinstance(model, Compiled):
        there = [tensor.to(model.device) for tensor in example_inputs]
        return Verification(_worst(got, signature.call(model, there)), "untuned")
    want, reference = _eager(model, [tensor.detach() for tensor in example_inputs], signature)
    return Verification(_worst(got, want), reference)


def _eager(model: Any, inputs: list[Any], signature: Signature) -> tuple[Any, str]:
    """The original's output, and the precision it was computed in."""
    inputs = [tensor.cpu() for tensor in inputs]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    try:
        return _run(_copy(model).double(), wide, signature), "float64"
    except Exception:  # whatever a model raises when it insists on its own precision
        return _run(_copy(model), inputs, signature), "float32"


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


def _worst(got: Any, want: Any) -> float:
    import torch
    from torch.utils import _pytree

    pairs = list(zip(_pytree.tree_leaves(got), _pytree.tree_leaves(want), strict=True))
    errors = [_error(a, b) for a, b in pairs if isinstance(b, torch.Tensor)]
    return max(errors, default=0.0)


def _error(got: Any, want: Any) -> float:
    """max |got − want| / max |want|; absolute if want is all zero; equal infinities and NaNs agree."""
    import torch

    if got.shape != want.shape:
        return float("inf")
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    same = (got == want) | (got.isnan() & want.isnan())
    difference = torch.where(same, 0.0, (got - want).abs())
    if not bool(difference.isfinite().all()):
        return float("inf")
    if difference.numel() == 0:
        return 0.0
    finite = want[want.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return float(difference.max()) / (scale or 1.0)
