"""Example inputs for a model of which only sizes are known.

In: a Source. Out: the same with an example for each input: floats from a normal distribution, integers over the whole
range that the model's tables allow, truth values mixed. The same model gets the same examples in every process.

Which values make sense is tried on the model: indices out of range raise, and a mask that hides everything gives NaN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike.frontend.imported import Source
from felixlike.frontend.index_ranges import UNKNOWN, index_limits
from felixlike.frontend.originals import Original, original_of
from felixlike.hardware.probe import free_memory_bytes

_SMALL = 8
"""Integers that index nothing are drawn from 0 … 7, bytes from all that there are."""

_SEED = 20


@dataclass(frozen=True, slots=True)
class _Way:
    """How integers and truth values are drawn.

    low, high: of integers that index nothing.  first: what truth values begin with along their last dimension, where
    queries of an attention look first; the last one is the other value, the rest is drawn.  below: of indices, however
    large the table is."""

    low: int
    high: int
    first: bool
    below: int = 2**63 - 1


_WAYS = (
    _Way(0, _SMALL, True),
    _Way(0, _SMALL, False),
    _Way(0, 2, True),  # masks are often integers
    _Way(0, 2, False),
    _Way(1, _SMALL, True),  # divisors
    _Way(0, 2, True, below=2),
)
"""In the order in which they are tried."""


def drawn(source: Source) -> Source:
    """Return the source with examples drawn for the inputs in `made`, and a note on those that had to be zeros."""
    if not source.made:
        return source
    integers = [index for index in sorted(source.made) if not source.examples[index].dtype.is_floating_point]
    if not integers:
        return replace(source, examples=_examples(source, {}, _WAYS[0]))
    limits = index_limits(source.module)
    found = _tried(source, limits)
    if found is None:
        names = ", ".join(source.signature.names[index] for index in integers)
        note = f"The model refuses what was drawn for {names}, so it was compared on zeros there."
        return replace(source, examples=_examples(source, {}, None), note=note)
    unknown = [source.signature.names[index] for index in integers if limits.get(index) == UNKNOWN]
    note = f"Only zeros are known to be valid for {', '.join(unknown)}, so it was compared on those." if unknown else ""
    return replace(source, examples=found, note=note)


def _tried(source: Source, limits: Mapping[int, int]) -> tuple[Any, ...] | None:
    """The first examples for which the model gives finite numbers, else the first that it takes.

    The first of all where they cannot be tried: nothing but TVM runs the model, which does not say when it reads beyond
    a table; memory is short; or the model cannot even be evaluated on zeros."""
    original = original_of(source.original, source.signature)
    taken: tuple[Any, ...] | None = None
    free = free_memory_bytes()
    if not original.exact or (free is not None and original.memory(wide=False) > free):
        return _examples(source, limits, _WAYS[0])
    for way in _WAYS:
        examples = _examples(source, limits, way)
        finite = _evaluated(original, examples)
        if finite:
            return examples
        if finite is not None:
            taken = taken or examples
    if taken is None and _evaluated(original, _examples(source, {}, None)) is None:
        return _examples(source, limits, _WAYS[0])
    return taken


def _evaluated(original: Original, examples: Sequence[Any]) -> bool | None:
    """Whether a model gives finite numbers for examples; None where it raises."""
    try:
        with _random_numbers_kept():
            return _finite(original.outputs(examples))
    except Exception:  # whatever a model raises for indices out of range, divisors of zero
        return None


def _examples(source: Source, limits: Mapping[int, int], way: _Way | None) -> tuple[Any, ...]:
    """way: None for zeros where integers and truth values are drawn else."""
    return tuple(
        _drawn(example, index, limits.get(index), way) if index in source.made else example
        for index, example in enumerate(source.examples)
    )


def _drawn(example: Any, index: int, limit: int | None, way: _Way | None) -> Any:
    import torch

    shape, dtype = example.shape, example.dtype
    generator = torch.Generator().manual_seed(_SEED + index)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if way is None:
        return torch.zeros(shape, dtype=dtype)
    if dtype is torch.bool:
        values = torch.randint(0, 2, shape, generator=generator).bool()
        if values.dim() and values.shape[-1] > 1:
            values[..., 0], values[..., -1] = way.first, not way.first
        return values
    low, high = (
        (0, min(limit, way.below)) if limit is not None else (way.low, 256 if dtype is torch.uint8 else way.high)
    )
    return torch.randint(low, min(high, torch.iinfo(dtype).max + 1), shape, generator=generator).to(dtype)


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """A random model must not change the caller's random numbers."""
    import torch

    with torch.random.fork_rng(devices=[]):
        yield


def _finite(outputs: Any) -> bool:
    import torch
    from torch.utils import _pytree

    tensors = [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
