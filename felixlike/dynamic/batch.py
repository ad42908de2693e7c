"""A model whose only dynamic size is its batch, and that has convolutions: compiled for a few batch sizes, which serve
all others (`runtime/batch_buckets.py`).

In: a model as read with its dimension. Out: `Batch`, the models of fixed sizes that are to be optimized; then, of
those, one for every size. Convolutions have no uKernels along the batch; whole networks are what is combined. Samples
must not depend on each other: that is tried on random ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from felixlike import _tvm, runtime
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.timing import in_turns
from felixlike.frontend.imported import Source
from felixlike.frontend.importers.relax import leaves
from felixlike.frontend.originals import original_of
from felixlike.frontend.signature.signature import Signature
from felixlike.runtime import Chunked
from felixlike.runtime.agreement import agreement

_FACTOR = 4
"""Between the sizes of parts: whatever is left is at most three calls of the next smaller one."""

_MOST_PARTS = 3
"""Each has the weights in a layout of its own."""

_GUESS = 0.8
"""The power of its size that a part takes, where nothing is timed."""

_TURN = 4e-3
"""Seconds of a turn, at least, of timing a part."""


@dataclass(frozen=True, slots=True)
class Batch:
    """model: an nn.Module or an ExportedProgram.  source: the same as read.  dim: the batch.  cut: which inputs have
    it.  sizes: of the parts, ascending."""

    model: Any
    source: Source
    dim: Dim
    cut: tuple[bool, ...]
    sizes: tuple[int, ...]

    def fixed(self, size: int) -> tuple[Any, Any]:
        """The model for a batch of this size, and its inputs as it takes them."""
        import torch

        tensors, signature = self.examples(size), self.source.signature
        if isinstance(self.model, torch.export.ExportedProgram):
            args, named = signature.arguments(tensors)
            return torch.export.export(self.model.module(check_guards=False), args, named), None
        return self.model, tensors if signature.by_position else dict(zip(signature.names, tensors, strict=True))

    def examples(self, size: int) -> tuple[Any, ...]:
        """The model's examples, again and again, up to a batch of this size."""
        import torch

        return tuple(
            tensor.index_select(0, torch.arange(size) % tensor.shape[0]).contiguous() if cut else tensor
            for tensor, cut in zip(self.source.examples, self.cut, strict=True)
        )


def batch_of(model: Any, source: Source, dims: Mapping[str, Dim]) -> Batch | None:
    """How to compile a model by batch sizes; None for what is better, or must be, compiled otherwise.

    dims: by the names that symbolic sizes have in the source's module."""
    if len(dims) != 1 or not _convolves(source.module):
        return None
    ((symbol, dim),) = dims.items()
    cut = _places(source.module["main"], symbol)
    if cut is None or dim.most < 2 or dim.most > runtime.MOST_BATCH or not _named(source):
        return None
    found = Batch(model, source, dim, cut, _sizes(dim))
    return found if _independent(found) else None


def in_parts(batch: Batch, parts: Mapping[int, runtime.Compiled], *, measure: bool) -> Chunked:
    """The model for every size of its batch.

    measure: whether parts are timed; if not, the larger ones count as the better ones."""
    seconds = _timed(batch, parts) if measure else {size: float(size) ** _GUESS for size in parts}
    return Chunked(parts, seconds, (batch.dim.name, batch.dim.least, batch.dim.most))


def _sizes(dim: Dim) -> tuple[int, ...]:
    """Of the parts: one, so that everything can be covered, and those that were listed if they are few, else powers."""
    if len(dim.sizes) < _MOST_PARTS:
        return tuple(sorted({1, *dim.sizes}))
    sizes = [1]
    while len(sizes) < _MOST_PARTS and sizes[-1] * _FACTOR <= dim.most:
        sizes.append(sizes[-1] * _FACTOR)
    return tuple(sizes) if len(sizes) > 1 else (1, dim.most)


def _convolves(module: Any) -> bool:
    names: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call):
            names.add(str(getattr(node.op, "name", "")))

    _tvm.relax.analysis.post_order_visit(module["main"], visit)
    return any(name.startswith("relax.nn.conv") for name in names)


def _places(main: Any, symbol: str) -> tuple[bool, ...] | None:
    """Which inputs have the batch for their first size; None unless all outputs have, and no other size is of it."""
    found = [_is_batch(parameter.ty, symbol) for parameter in main.params]
    outputs = [_is_batch(kind, symbol) for kind in leaves(main.ret_ty)]
    if None in found or not outputs or not all(outputs):
        return None
    return tuple(map(bool, found))


def _is_batch(kind: Any, symbol: str) -> bool | None:
    """Whether a tensor's first size is the batch; None if another one depends on it."""
    sizes = list(kind.shape.values)
    fixed = [isinstance(size, _tvm.tirx.IntImm) for size in sizes]
    if all(fixed):
        return False
    first = isinstance(sizes[0], _tvm.tirx.Var) and str(sizes[0].name) == symbol
    return True if first and all(fixed[1:]) else None


def _named(source: Source) -> bool:
    """Whether the inputs can be given by position or by name."""
    return source.signature.by_position or all(name.isidentifier() for name in source.signature.names)


def _independent(batch: Batch) -> bool:
    """Whether a batch of random samples gives what its parts give."""
    import torch

    size = max(2, min(batch.dim.most, 5))
    first = size // 2
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(t.shape, generator=generator, dtype=t.dtype) if t.dtype.is_floating_point else t
        for t in batch.examples(size)
    ]
    pieces = [
        [t[own] if cut else t for t, cut in zip(tensors, batch.cut, strict=True)]
        for own in (slice(0, first), slice(first, size))
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # the caller's random numbers stay as they are
            original = original_of(batch.model, batch.source.signature)
            found = [_flat(original.outputs(given)) for given in (tensors, *pieces)]
        together, *apart = found
        joined = [torch.cat(own) for own in zip(*apart, strict=True)]
    except Exception:  # whatever a model raises at sizes that it was not made for
        return False
    return agreement(joined, together, exact=False).right


def _flat(nested: Any) -> list[Any]:
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(nested) if leaf is not None]


def _whole(signature: Signature, compiled: runtime.Compiled, given: Sequence[Any]) -> None:
    """A call that has ended when it returns, be it on a GPU."""
    import torch

    signature.call(compiled, given)
    if compiled.device.type != "cpu":
        torch.cuda.synchronize(compiled.device)


def _timed(batch: Batch, compiled: Mapping[int, runtime.Compiled]) -> dict[int, float]:
    """Seconds of a call of each part, in turns; the median."""
    signature = batch.source.signature
    calls = [
        partial(_whole, signature, own, [tensor.to(own.device) for tensor in batch.examples(size)])
        for size, own in compiled.items()
    ]
    found = in_turns(calls, seconds=_TURN)
    return {size: statistics.median(own) for size, own in zip(compiled, found, strict=True)}
