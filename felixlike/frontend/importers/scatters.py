"""Decompose assignments to indexed elements, such as x[:, i] = y, index_copy, put and masked_scatter.

Input: the arguments of the operator. Output: its result in terms of operators that can be imported, or NotImplemented.

One element of a dimension, as in a cache that gets one token, becomes a choice between old and new values, which fuses
with what uses them. All others scatter into the indexed dimensions, flattened to one. As PyTorch would raise for
indices out of range, and a kernel cannot, such values go to an additional row that is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from felixlike.frontend.signature.layouts import inverse


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Decompose aten.index_put: x[indices] = values, or += if `accumulate`. Sizes must be fixed."""
    import torch

    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if not given or not all(isinstance(size, int) for t in (x, values, *(i for _, i in given)) for size in t.shape):
        return NotImplemented
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in given):
        return _masked(x, given, values, accumulate=accumulate)
    dims = [dim for dim, _ in given]
    chosen = torch.broadcast_tensors(*(index for _, index in given))  # type: ignore[no-untyped-call]
    rest = [dim for dim in range(x.dim()) if dim not in dims]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if adjacent else 0  # dimension of x[indices] that begins those of the indices
    sizes = [x.shape[dim] for dim in rest]
    values = values.expand([*sizes[:first], *chosen[0].shape, *sizes[first:]])
    if len(given) == 1 and chosen[0].numel() == 1:
        return _one(x, dims[0], chosen[0], values, accumulate=accumulate)
    of_indices = range(first, first + chosen[0].dim())
    values = _permuted(values, [*of_indices, *(dim for dim in range(values.dim()) if dim not in of_indices)])
    front = _permuted(x, [*dims, *rest])
    count, width = math.prod(front.shape[: len(dims)]), math.prod(front.shape[len(dims) :])
    rows = _rows(chosen, front.shape[: len(dims)], count)
    table = torch.cat([front.reshape(count, width), x.new_zeros(1, width)])
    places = rows.reshape(-1, 1).expand(-1, width)
    source = values.reshape(-1, width)
    written = table.scatter_add(0, places, source) if accumulate else table.scatter(0, places, source)
    return _permuted(written[:count].reshape(front.shape), inverse((*dims, *rest)))


def _permuted(x: Any, order: Sequence[int]) -> Any:
    """Return x with its dimensions in an order; x itself if that is theirs, since TVM would copy it."""
    return x if list(order) == sorted(order) else x.permute(*order)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Decompose aten.put: an assignment to elements of the flat tensor."""
    return x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Decompose aten.masked_scatter: the n-th chosen element gets the n-th of the source."""
    import torch

    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    places = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(0, max(source.numel() - 1, 0))
    return torch.where(mask, source.reshape(-1).index_select(0, places).reshape(x.shape), x)


def _one(x: Any, dim: int, index: Any, values: Any, *, accumulate: bool) -> Any:
    """Return x with one element of a dimension replaced."""
    import torch

    size = x.shape[dim]
    place = index.reshape([1] * x.dim())
    place = torch.where(place < 0, place + size, place)
    along = torch.arange(size, dtype=index.dtype).reshape([-1 if at == dim else 1 for at in range(x.dim())])
    new = values.reshape([1 if at == dim else extent for at, extent in enumerate(x.shape)])
    return torch.where(along == place, x + new if accumulate else new, x)


def _masked(x: Any, given: Sequence[tuple[int, Any]], values: Any, *, accumulate: bool) -> Any:
    """Return x with the same values at every place of one mask; NotImplemented if each place gets its own."""
    import torch

    (dim, mask), *others = given
    rest = x.dim() - dim - mask.dim()
    if others or mask.dtype is torch.uint8 or (dim and values.numel() != 1):
        return NotImplemented
    if values.dim() > rest and math.prod(values.shape[: values.dim() - rest]) != 1:
        return NotImplemented
    new = values.reshape([] if values.numel() == 1 else values.shape[values.dim() - rest :])
    mask = mask.reshape(*[1] * dim, *mask.shape, *[1] * rest)
    return torch.where(mask, x + new if accumulate else new, x)


def _rows(indices: Sequence[Any], sizes: Sequence[int], outside: int) -> Any:
    """Return the row of each index in the flattened dimensions; `outside` for those out of range."""
    import torch

    row, valid = None, None
    for index, size in zip(indices, sizes, strict=True):
        index = torch.where(index < 0, index + size, index).to(torch.int64)
        inside = (index >= 0) & (index < size)
        row = index if row is None else row * size + index
        valid = inside if valid is None else valid & inside
    return torch.where(valid, row, outside)  # type: ignore[arg-type]
