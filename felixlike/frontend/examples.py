"""Draw example inputs for a model whose input sizes are known but values are not.

Input: a `Source`. Output: the same with an example for each input: floats from a normal distribution, integers over
the whole range that the model's tables allow, booleans mixed. A model gets the same examples in every process.

The values are tried on the model: indices out of range raise, and a mask that hides everything gives NaN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike._util.torch_compat import pytree
from felixlike.frontend.imported import Source
from felixlike.frontend.index_ranges import UNKNOWN, index_limits
from felixlike.frontend.originals import Original, original_of
from felixlike.hardware.probe import free_memory_bytes

_SMALL = 8
"""Upper limit (exclusive) of integers that index nothing. uint8 values are drawn from their whole range."""

_SEED = 20
"""Seed of the first input's values. Each input adds its index."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Describe how integers and booleans are drawn.

    Attributes:
        low: Lower limit of integers that index nothing.
        high: Upper limit (exclusive) of integers that index nothing.
        first: Value of booleans at the start of the last dimension, where attention's first queries look. The last
            element has the other value, those between are random.
        below: Upper limit (exclusive) of indices, however large the table is.
    """

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
"""Ways to draw values, in the order in which they are tried."""


def repeated(tensor: Any, sizes: Mapping[int, int]) -> Any:
    """Return a contiguous tensor with other sizes of some dimensions, along which it is repeated or cut."""
    import torch

    for dim, size in sizes.items():
        tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return tensor.contiguous()


def drawn(source: Source) -> Source:
    """Return the source with examples drawn for the inputs in `made`, and a note on inputs that had to be zeros."""
    if not source.made:
        return source
    integers = [index for index in sorted(source.made) if not source.examples[index].dtype.is_floating_point]
    if not integers:
        return replace(source, examples=_examples(source, {}, _WAYS[0]))
    limits = index_limits(source.module)
    examples = _tried(source, limits)
    if examples is None:
        names = ", ".join(source.signature.names[index] for index in integers)
        note = f"The model rejects random values of {names}, so it was compared on zeros for them."
        return _noted(source, _examples(source, {}, None), note)
    unknown = [source.signature.names[index] for index in integers if limits.get(index) == UNKNOWN]
    if not unknown:
        return replace(source, examples=examples)
    note = f"Only zeros are known to be valid for {', '.join(unknown)}, so the model was compared on zeros."
    return _noted(source, examples, note)


def _noted(source: Source, examples: tuple[Any, ...], note: str) -> Source:
    """Return the source with examples and a further note."""
    return replace(source, examples=examples, note=" ".join(filter(None, (source.note, note))))


def _tried(source: Source, limits: Mapping[int, int]) -> tuple[Any, ...] | None:
    """Return the first examples for which the model returns finite numbers, or else the first that it accepts.

    The first way is used without a trial if only TVM can run the model, which does not detect reads beyond a table,
    if memory is too small, or if the model fails even on zeros.
    """
    original = original_of(source.original, source.signature)
    accepted: tuple[Any, ...] | None = None
    free = free_memory_bytes()
    if not original.exact or (free is not None and original.memory(wide=False) > free):
        return _examples(source, limits, _WAYS[0])
    for way in _WAYS:
        examples = _examples(source, limits, way)
        finite = _evaluated(original, examples)
        if finite:
            return examples
        if finite is not None:
            accepted = accepted or examples
    if accepted is None and _evaluated(original, _examples(source, {}, None)) is None:
        return _examples(source, limits, _WAYS[0])
    return accepted


def _evaluated(original: Original, examples: Sequence[Any]) -> bool | None:
    """Return whether a model returns finite numbers for examples, or None if it raises."""
    try:
        with _random_numbers_kept():
            return _finite(original.outputs(examples))
    except Exception:  # a model may raise anything for indices out of range or zero divisors
        return None


def _examples(source: Source, limits: Mapping[int, int], way: _Way | None) -> tuple[Any, ...]:
    """Return an example per input.  way: None draws zeros for integers and booleans."""
    return tuple(
        _drawn(example, index, limits.get(index), way) if index in source.made else example
        for index, example in enumerate(source.examples)
    )


def _drawn(example: Any, index: int, limit: int | None, way: _Way | None) -> Any:
    """Draw values of an example's shape and dtype.  limit: exclusive upper limit of indices."""
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
    """Restore torch's random state on exit, so that a random model does not change the caller's random numbers."""
    import torch

    with torch.random.fork_rng(devices=[]):
        yield


def _finite(outputs: Any) -> bool:
    """Return whether all output tensors are finite."""
    import torch

    tensors = [leaf for leaf in pytree().tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
