"""Compare a compiled model with its original, evaluated in float64 where that is possible.

In: a compiled callable, the original, example inputs. Out: the largest error relative to each output's largest value,
and whether that is an error at all (see `agreement`). Both sides get copies of the inputs. The compiled model must
leave its copies as they are, and write nothing beside its buffers (`guards.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_modes import default_modes
from felixlike.frontend.originals import Original, original_of
from felixlike.hardware.probe import free_memory_bytes
from felixlike.runtime.agreement import Agreement, agreement
from felixlike.runtime.callable import Compiled
from felixlike.runtime.guarded_calls import damage_by_kernels

_SAMPLES = 2
"""Evaluations of the original with inputs and weights that are off by a rounding, where one evaluation does not tell
how noisy it is."""

_ACTIVATIONS = 4
"""Times the memory that the compiled model plans for intermediate tensors: an evaluation in float64 takes twice as much
for each, and lays some out anew for convolutions. Chosen by hand."""


class Verdict(StrEnum):
    """What came of a comparison."""

    RIGHT = "right"
    WRONG = "wrong"
    RANDOM = "random"
    """The original gives something else at every call."""
    UNSURE = "unsure"
    """It differs in what the original's own arithmetic does not decide, or nothing could be compared."""


@dataclass(frozen=True, slots=True)
class Verification:
    """error: max |got − ref| / max |ref|, the worst of all outputs (0 is exact, inf if shapes or NaNs differ).

    reference: what ref was: "float64" or "float32" eager PyTorch, or what else evaluated the original
    (`frontend/originals/`).  words: what is wrong, or may be; empty where all is right."""

    error: float
    reference: str
    verdict: Verdict = Verdict.RIGHT
    words: str = ""


@default_modes()
def max_relative_error(
    compiled: Compiled, model: Any, example_inputs: Sequence[Any], *, products: float = 0.0
) -> Verification:
    """Compare a compiled model with its original on one set of inputs, and on others if its outputs are NaN for those.

    Args:
        compiled: the compiled model.
        model: an `Original`, or what `original_of` makes one of: an nn.Module, ExportedProgram, ModelProto or Relax
            IRModule. It is evaluated in float64, and in its own precision where that fails or takes too much memory.
        example_inputs: flat tensors on the CPU.
        products: see `agreement`.

    Raises what the model raises in its own precision."""
    import torch

    original = original_of(model, compiled.signature)
    inputs = [tensor.detach().cpu() for tensor in example_inputs]
    with torch.random.fork_rng(devices=[]):  # a random model must not change the caller's random numbers
        comparison = _Comparison(compiled, original, products)
        found, blind = comparison.of(inputs)
        if blind and found.verdict is Verdict.RIGHT:
            found, blind = comparison.of([_positive(tensor, seed) for seed, tensor in enumerate(inputs)])
        if blind and found.verdict is Verdict.RIGHT:
            words = f"the original gives NaN nearly everywhere in {', '.join(blind)}, which says nothing"
            return replace(found, verdict=Verdict.UNSURE, words=words)
        return found


class _Comparison:
    """Compares one model with its original.  products: see `agreement`."""

    def __init__(self, compiled: Compiled, original: Original, products: float) -> None:
        self._compiled, self._original, self._products = compiled, original, products
        self._names = [spec.name for spec in compiled.outputs]

    def of(self, inputs: Sequence[Any]) -> tuple[Verification, tuple[str, ...]]:
        """What came of it, and the names of outputs that are NaN nearly everywhere."""
        wide = self._original.exact and self._fits(inputs, wide=True)
        if not wide and not self._fits(inputs, wide=False):
            needed, free = self._needed(inputs, wide=False) / 2**30, (free_memory_bytes() or 0) / 2**30
            words = f"evaluating the original takes about {needed:.1f} GiB of memory, and {free:.1f} are available"
            return Verification(float("nan"), "", Verdict.UNSURE, words), ()
        got, damage = self._called(inputs)
        want, wide = self._evaluated(inputs, wide=wide)
        reference = self._original.name(wide=wide)
        found = self._agreement(got, want, wide=wide)
        verdict, words = Verdict.WRONG, damage
        if not damage:
            found, verdict, words = self._judged(found, got, want, inputs, wide=wide)
        return Verification(found.error, reference, verdict, words), found.blind

    def _judged(
        self, found: Agreement, got: Any, want: Any, inputs: Sequence[Any], *, wide: bool
    ) -> tuple[Agreement, Verdict, str]:
        """Look more closely where outputs do not agree at once: is the original random, how noisy is it?"""
        if not found.right:
            again = self._original.outputs(inputs, wide=wide)
            if not agreement(again, want).right:
                words = "it is random: it gives something else at every call, so nothing can be compared with it"
                return found, Verdict.RANDOM, words
            samples = self._samples(inputs)
            found = self._agreement(got, want, samples, wide=wide and bool(samples))
        verdict = Verdict.WRONG if found.wrong else Verdict.UNSURE if found.unsure else Verdict.RIGHT
        return found, verdict, found.wrong or found.unsure

    def _agreement(self, got: Any, want: Any, samples: Sequence[Any] = (), *, wide: bool) -> Agreement:
        return agreement(got, want, samples, names=self._names, exact=wide, products=self._products)

    def _called(self, inputs: Sequence[Any]) -> tuple[Any, str]:
        """The compiled model's outputs, and what it or one of its kernels did to memory that it must not write."""
        import torch

        device, signature = self._compiled.device, self._compiled.signature
        own = [tensor.to(device).clone(memory_format=torch.contiguous_format) for tensor in inputs]
        got = signature.call(self._compiled, own)
        changed = [
            spec.name
            for spec, tensor, before in zip(self._compiled.inputs, own, inputs, strict=True)
            if not torch.equal(_bits(tensor.cpu()), _bits(before))
        ]
        if changed:
            return got, f"it changes its input {changed[0]}"
        return got, damage_by_kernels(self._compiled, own)

    def _evaluated(self, inputs: Sequence[Any], *, wide: bool) -> tuple[Any, bool]:
        """The original's outputs, and whether they are of float64."""
        if wide:
            try:
                return self._original.outputs(inputs, wide=True), True
            except Exception:  # whatever a model raises when it insists on its own precision
                pass
        return self._original.outputs(inputs), False

    def _samples(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs of the original in its own precision; those that can be had, since CPUs lack some arithmetic."""
        found = []
        for moved in (None, *range(_SAMPLES)):
            try:
                found.append(self._original.outputs(inputs, moved=moved))
            except Exception:  # half precision on older CPUs, weights that share memory
                continue
        return found

    def _fits(self, inputs: Sequence[Any], *, wide: bool) -> bool:
        free = free_memory_bytes()
        return free is None or self._needed(inputs, wide=wide) <= free

    def _needed(self, inputs: Sequence[Any], *, wide: bool) -> int:
        """Bytes that evaluating the original takes, about."""
        activations = _planned_bytes(self._compiled.lowered) + sum(tensor.nbytes for tensor in inputs)
        return self._original.memory(wide=wide) + int(_ACTIVATIONS * activations)


def _planned_bytes(lowered: Any) -> int:
    """Bytes that a lowered Relax module allocates for intermediate tensors and outputs in a call, as far as known."""
    sizes: list[int] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and str(getattr(node.op, "name", "")) == "relax.vm.alloc_storage":
            known = getattr(node.args[0], "values", ())  # none where a call decides
            sizes.extend(int(size) for size in known if isinstance(size, _tvm.tirx.IntImm))

    if lowered is not None:
        _tvm.relax.analysis.post_order_visit(lowered["main"], visit)
    return sum(sizes)


def _positive(tensor: Any, seed: int) -> Any:
    """Random numbers from 0.5 to 1.5, for which logarithms, roots and quotients are defined; integers as they are."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(tensor.shape, generator=generator) + 0.5).to(tensor.dtype)


def _bits(tensor: Any) -> Any:
    """The bytes of a tensor, in which NaN equals itself."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)
