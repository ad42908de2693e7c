"""Compile a model with convolutions for a few batch sizes, which together serve all batch sizes.

Used if the batch is the only dynamic size. Input: an imported model with its dimension. Output: `Batch`, which provides
models of fixed sizes to optimize; then one model for every batch size (`runtime/batch_buckets.py`). Convolutions have
no uKernels along the batch, so whole networks are combined instead. Samples must be independent of each other, which is
tested on random samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm, runtime
from felixlike._util.torch_compat import pytree
from felixlike.dynamic.dims import Dim
from felixlike.frontend.examples import repeated
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.relax import leaves
from felixlike.frontend.originals import original_of
from felixlike.frontend.signature.signature import Signature
from felixlike.measure import Timing
from felixlike.measure.local.in_turns import in_turns
from felixlike.runtime import Chunked
from felixlike.runtime.agreement import agreement


@dataclass(frozen=True, slots=True)
class _Division:
    """How batches are divided into parts. All values are chosen by hand.

    Attributes:
        factor: Ratio of successive part sizes: a remainder takes at most three calls of the next smaller part.
        parts: Upper limit on parts; each stores the weights in its own layout.
        power: Exponent p in time ∝ size**p of a part, where nothing is timed.
    """

    factor: int = 4
    parts: int = 3
    power: float = 0.8


_DIVISION = _Division()

_TIMING = Timing(batch_seconds=4e-3, turns=7)
"""How parts are timed. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A model to compile for several batch sizes.

    Attributes:
        model: An nn.Module or an ExportedProgram.
        source: The imported model.
        dim: The batch dimension.
        cut: For each input, whether its first dimension is the batch.
        sizes: Batch sizes of the parts, ascending.
    """

    model: Any
    source: Source
    dim: Dim
    cut: tuple[bool, ...]
    sizes: tuple[int, ...]

    def fixed(self, size: int) -> tuple[Any, Any]:
        """Return the model for a batch of this size and its inputs, None in place of inputs for an ExportedProgram."""
        import torch

        args, named = self.source.signature.arguments(self.examples(size))
        if isinstance(self.model, torch.export.ExportedProgram):
            return torch.export.export(self.model.module(check_guards=False), args, named), None
        return self.model, named or args

    def examples(self, size: int) -> tuple[Any, ...]:
        """Return the model's examples, repeated up to a batch of this size."""
        return tuple(
            repeated(tensor, {0: size}) if cut else tensor
            for tensor, cut in zip(self.source.examples, self.cut, strict=True)
        )


def batch_of(model: Any, source: Source, dims: Mapping[str, Dim]) -> Batch | None:
    """Return how to compile a model by batch sizes, or None if this does not apply.

    dims: The Dim of each symbolic size of the source's module, by its name there.
    """
    if len(dims) != 1 or source.mutations or not _convolves(source.module):
        return None
    ((symbol, dim),) = dims.items()
    cut = _places(source.module["main"], symbol)
    if cut is None or dim.most < 2 or dim.most > runtime.MOST_BATCH:
        return None
    batch = Batch(model, source, dim, cut, _sizes(dim))
    return batch if is_independent(batch) else None


def in_parts(batch: Batch, parts: Mapping[int, runtime.Compiled], *, measure: bool) -> Chunked:
    """Combine compiled parts into a model for every batch size.

    measure: Whether parts are timed. If False, time is assumed to grow with size**0.8.
    """
    seconds = _timed(batch, parts) if measure else {size: float(size) ** _DIVISION.power for size in parts}
    return Chunked(parts, seconds, (batch.dim.name, batch.dim.least, batch.dim.most))


def _sizes(dim: Dim) -> tuple[int, ...]:
    """Return the part sizes: 1, and the listed sizes if there are one or two, else powers of 4."""
    if len(dim.sizes) < _DIVISION.parts:
        return tuple(sorted({1, *dim.sizes}))
    sizes = [1]
    while len(sizes) < _DIVISION.parts and sizes[-1] * _DIVISION.factor <= dim.most:
        sizes.append(sizes[-1] * _DIVISION.factor)
    return tuple(sizes) if len(sizes) > 1 else (1, dim.most)


def _convolves(module: Any) -> bool:
    """Return whether a module has convolutions."""
    names: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call):
            names.add(str(getattr(node.op, "name", "")))

    _tvm.relax.analysis.post_order_visit(module["main"], visit)
    return any(name.startswith("relax.nn.conv") for name in names)


def _places(main: Any, symbol: str) -> tuple[bool, ...] | None:
    """Return which inputs have the batch as first size; None unless all outputs have it and no other size depends on
    it.
    """
    is_cut = [_is_batch(parameter.ty, symbol) for parameter in main.params]
    outputs = [_is_batch(kind, symbol) for kind in leaves(main.ret_ty)]
    if None in is_cut or not outputs or not all(outputs):
        return None
    return tuple(map(bool, is_cut))


def _is_batch(kind: Any, symbol: str) -> bool | None:
    """Return whether the first size of a tensor is the batch; None if another size depends on it."""
    sizes = list(kind.shape.values)
    fixed = [isinstance(size, _tvm.tirx.IntImm) for size in sizes]
    if all(fixed):
        return False
    first = isinstance(sizes[0], _tvm.tirx.Var) and str(sizes[0].name) == symbol
    return True if first and all(fixed[1:]) else None


def is_independent(batch: Batch) -> bool:
    """Return whether a batch of random samples gives the same outputs as the first of them alone and the others."""
    import torch

    size = max(2, min(batch.dim.most, 5))
    generator = torch.Generator().manual_seed(0)
    tensors = [
        _drawn(tensor, generator) if cut or tensor.is_floating_point() else tensor
        for tensor, cut in zip(batch.examples(size), batch.cut, strict=True)
    ]
    pieces = [
        [t[part] if cut else t for t, cut in zip(tensors, batch.cut, strict=True)]
        for part in (slice(0, 1), slice(1, size))
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # keep the caller's random state
            original = original_of(batch.model, batch.source.signature)
            outputs = [_flat(original.outputs(given)) for given in (tensors, *pieces)]
        together, *alone = outputs
        joined = [torch.cat(part) for part in zip(*alone, strict=True)]
    except Exception:  # models may raise anything at sizes they were not made for
        return False
    return agreement(joined, together, exact=False).right


def _drawn(example: Any, generator: Any) -> Any:
    """Return a random tensor like an example. Integers are drawn from those of the example, or from 0 and 1 if all are
    equal: examples may be one sample that is repeated.
    """
    import torch

    if example.is_floating_point():
        return torch.randn(example.shape, generator=generator, dtype=example.dtype)
    values = example.reshape(-1)
    if bool((values == values[0]).all()):
        values = torch.arange(2).to(example.dtype)
    return values[torch.randint(len(values), example.shape, generator=generator)]


def _flat(nested: Any) -> list[Any]:
    """Return the tensors of nested outputs as a list."""
    return [leaf for leaf in pytree().tree_leaves(nested) if leaf is not None]


def _whole(signature: Signature, compiled: runtime.Compiled, given: Sequence[Any]) -> None:
    """Run a call and wait until it has finished, on GPUs too."""
    import torch

    signature.call(compiled, given)
    if compiled.device.type != "cpu":
        torch.cuda.synchronize(compiled.device)


def _timed(batch: Batch, compiled: Mapping[int, runtime.Compiled]) -> dict[int, float]:
    """Return the median seconds of a call of each part; the parts are timed in turns."""
    signature = batch.source.signature
    calls = [
        partial(_whole, signature, part, [tensor.to(part.device) for tensor in batch.examples(size)])
        for size, part in compiled.items()
    ]
    times = in_turns(calls, _TIMING)
    return {size: statistics.median(seconds) for size, seconds in zip(compiled, times, strict=True)}
