"""Verify a compiled model against its original, evaluated in float64 if possible.

Inputs: a compiled callable, the original and example inputs. Output: the largest error relative to each output's
largest value, and a verdict (see `agreement`). Both models get copies of the inputs. The compiled model must not change
its inputs or write outside its buffers (`guarded_calls.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_modes import default_modes
from felixlike.frontend.importers.pytorch_regions import draws_random_numbers
from felixlike.frontend.originals import Original, original_of
from felixlike.hardware.probe import free_memory_bytes
from felixlike.runtime.agreement import Agreement, agreement, changed_classes
from felixlike.runtime.callable import Compiled
from felixlike.runtime.guarded_calls import damage_by_kernels

_SAMPLES = 2
"""Number of evaluations of the original with inputs and weights changed by a rounding error, to estimate its noise if
one evaluation is not enough. Chosen by hand."""

_ACTIVATIONS = 4
"""Estimated memory of an evaluation in float64, relative to the compiled model's intermediate tensors: each takes twice
the memory, and convolutions copy some to another layout. Chosen by hand."""


class Verdict(StrEnum):
    """The result of a comparison."""

    RIGHT = "right"
    WRONG = "wrong"
    RANDOM = "random"
    """The original returns different outputs at every call."""
    UNSURE = "unsure"
    """The difference may be a rounding error of the original, or nothing could be compared."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A comparison of a compiled model with its original.

    Attributes:
        error: max |got − ref| / max |ref|, the maximum over outputs; 0 if exact, inf if shapes or NaNs differ.
        reference: What evaluated ref: "float64" or "float32" eager PyTorch, or another evaluation of the original
            (`frontend/originals/`).
        verdict: The result.
        words: What is wrong or may be wrong; empty if the verdict is right.
        changed: Rows of 2-D outputs whose largest element has another place than in ref: changed classes.
        rows: All such rows.
        remedy: What to do about a wrong model whose cause is known; empty if it is not.
    """

    error: float
    reference: str
    verdict: Verdict = Verdict.RIGHT
    words: str = ""
    changed: int = 0
    rows: int = 0
    remedy: str = ""


@default_modes()
def max_relative_error(
    compiled: Compiled, model: Any, example_inputs: Sequence[Any], *, products: float = 0.0
) -> Verification:
    """Compare a compiled model with its original.

    If an output is NaN nearly everywhere for the example inputs, positive random inputs are compared too. Exceptions
    that the original raises in its own precision are passed on.

    Args:
        compiled: The compiled model.
        model: An `Original`, or an nn.Module, ExportedProgram, ModelProto or Relax IRModule. It is evaluated in
            float64, or in its own precision if that fails or takes too much memory.
        example_inputs: Flat tensors; they are copied to the CPU.
        products: As for `agreement`.

    Returns:
        The largest error and the verdict.
    """
    import torch

    original = original_of(model, compiled.signature, compiled.mutations)
    inputs = [tensor.detach().cpu() for tensor in example_inputs]
    with torch.random.fork_rng(devices=[]):  # a random model must not change the caller's random numbers
        comparison = _Comparison(compiled, original, products)
        result, blind = comparison.of(inputs)
        if blind and result.verdict is Verdict.RIGHT:
            result, blind = comparison.of([_positive(tensor, seed) for seed, tensor in enumerate(inputs)])
        if blind and result.verdict is Verdict.RIGHT:
            words = f"nearly all values of {', '.join(blind)} are NaN in the original, so they cannot be compared"
            return replace(result, verdict=Verdict.UNSURE, words=words)
        return result


class _Comparison:
    """The comparison of one model with its original."""

    def __init__(self, compiled: Compiled, original: Original, products: float) -> None:
        import torch

        self._compiled, self._original, self._products = compiled, original, products
        self._random = torch.get_rng_state() if draws_random_numbers(compiled.pytorch) else None
        self._names = [*(spec.name for spec in compiled.outputs), *compiled.mutations.names]

    def of(self, inputs: Sequence[Any]) -> tuple[Verification, tuple[str, ...]]:
        """Return the comparison for these inputs, and the names of outputs that are NaN nearly everywhere."""
        import torch

        # An operator draws other numbers for another precision.
        wide = self._original.exact and self._random is None and self._fits(inputs, wide=True)
        if not wide and not self._fits(inputs, wide=False):
            needed, free = self._needed(inputs, wide=False) / 2**30, (free_memory_bytes() or 0) / 2**30
            words = f"evaluating the original needs about {needed:.1f} GiB of memory, but {free:.1f} GiB are available"
            return Verification(float("nan"), "", Verdict.UNSURE, words), ()
        copies = self._copies(inputs)
        # A kernel that writes outside its buffers could damage this process, so the guarded run comes first.
        if damage := damage_by_kernels(self._compiled, copies):
            return Verification(float("nan"), self._original.name(wide=wide), Verdict.WRONG, damage), ()
        got, changed = self._called(copies, inputs)
        state = torch.get_rng_state()
        want, wide = self._evaluated(inputs, wide=wide)
        reference = self._original.name(wide=wide)
        if self._random is not None and not torch.equal(state, torch.get_rng_state()):
            words = "it draws other random numbers than the original"
            return Verification(float("nan"), reference, Verdict.WRONG, words), ()
        result = self._agreement(got, want, wide=wide)
        verdict, words = Verdict.WRONG, changed
        if not changed:
            result, verdict, words = self._judged(result, got, want, inputs, wide=wide)
        return Verification(result.error, reference, verdict, words, *changed_classes(got, want)), result.blind

    def _judged(
        self, result: Agreement, got: Any, want: Any, inputs: Sequence[Any], *, wide: bool
    ) -> tuple[Agreement, Verdict, str]:
        """Return the verdict. If outputs differ, check whether the original is random, and estimate its noise."""
        if not result.right:
            self._from_the_start()
            again = self._original.outputs(inputs, wide=wide)
            if not agreement(again, want).right:
                words = "the original returns different outputs at every call, so they cannot be compared"
                return result, Verdict.RANDOM, words
            samples = noise_samples(self._original, inputs, before=self._from_the_start)
            result = self._agreement(got, want, samples, wide=wide and bool(samples))
        verdict = Verdict.WRONG if result.wrong else Verdict.UNSURE if result.unsure else Verdict.RIGHT
        return result, verdict, result.wrong or result.unsure

    def _agreement(self, got: Any, want: Any, samples: Sequence[Any] = (), *, wide: bool) -> Agreement:
        """Compare outputs; see `agreement`."""
        return agreement(got, want, samples, names=self._names, exact=wide, products=self._products)

    def _copies(self, inputs: Sequence[Any]) -> list[Any]:
        """Return copies of the inputs on the model's device."""
        import torch

        device = self._compiled.device
        return [tensor.to(device).clone(memory_format=torch.contiguous_format) for tensor in inputs]

    def _called(self, copies: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, str]:
        """Return the compiled model's outputs for copies of the inputs, and which of these it changes by mistake.

        New values of tensors that the original changes too come after the outputs. Its buffers are restored."""
        import torch

        mutations = self._compiled.mutations
        state = mutations.copied().state
        self._from_the_start()
        got = self._compiled.signature.call(self._compiled, copies)
        changed = [
            spec.name
            for place, (spec, tensor, before) in enumerate(zip(self._compiled.inputs, copies, inputs, strict=True))
            if place not in mutations.inputs and not torch.equal(_bits(tensor.cpu()), _bits(before))
        ]
        if mutations:
            got = [got, *(copies[place] for place in mutations.inputs), *mutations.copied().state]
            for buffer, before in zip(mutations.state, state, strict=True):
                buffer.copy_(before)
        return got, f"it changes its input {changed[0]}" if changed else ""

    def _from_the_start(self) -> None:
        """Reset PyTorch's generator, so that each evaluation of a random model draws the same numbers."""
        import torch

        if self._random is not None:
            torch.set_rng_state(self._random)

    def _evaluated(self, inputs: Sequence[Any], *, wide: bool) -> tuple[Any, bool]:
        """Return the original's outputs, and whether they were computed in float64."""
        if wide:
            try:
                return self._original.outputs(inputs, wide=True), True
            except Exception:  # a model with a fixed precision may raise anything
                pass
        self._from_the_start()
        return self._original.outputs(inputs), False

    def _fits(self, inputs: Sequence[Any], *, wide: bool) -> bool:
        """Return whether the free memory suffices to evaluate the original."""
        free = free_memory_bytes()
        return free is None or self._needed(inputs, wide=wide) <= free

    def _needed(self, inputs: Sequence[Any], *, wide: bool) -> int:
        """Return the approximate number of bytes needed to evaluate the original."""
        activations = _planned_bytes(self._compiled.lowered) + sum(tensor.nbytes for tensor in inputs)
        return self._original.memory(wide=wide) + int(_ACTIVATIONS * activations)


def noise_samples(original: Original, inputs: Sequence[Any], *, before: Callable[[], None] = lambda: None) -> list[Any]:
    """Return outputs of the original in its own precision, without evaluations that this CPU does not support.

    The first are those of the inputs, the others those of inputs and weights that were changed by a rounding error.
    `before` is called before each.
    """
    samples = []
    for moved in (None, *range(_SAMPLES)):
        try:
            before()
            samples.append(original.outputs(inputs, moved=moved))
        except Exception:  # float16 and bfloat16 on older CPUs, weights that share memory
            continue
    return samples


def _planned_bytes(lowered: Any) -> int:
    """Return the bytes that a lowered Relax module allocates in a call, except those of dynamic sizes."""
    sizes: list[int] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and str(getattr(node.op, "name", "")) == "relax.vm.alloc_storage":
            known = getattr(node.args[0], "values", ())  # empty for dynamic sizes
            sizes.extend(int(size) for size in known if isinstance(size, _tvm.tirx.IntImm))

    if lowered is not None:
        _tvm.relax.analysis.post_order_visit(lowered["main"], visit)
    return sum(sizes)


def _positive(tensor: Any, seed: int) -> Any:
    """Return random numbers from 0.5 to 1.5, for which logarithms and roots are defined; integers are unchanged."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(tensor.shape, generator=generator) + 0.5).to(tensor.dtype)


def _bits(tensor: Any) -> Any:
    """Return the bytes of a tensor, so that NaN compares equal to itself."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)
