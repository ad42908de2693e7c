"""Decompose PyTorch operators that TVM's importer lacks and PyTorch does not decompose itself.

Input: the operator's arguments. Output: its result in terms of operators that can be imported, or NotImplemented to
fall back to PyTorch's own decomposition.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from felixlike._util.torch_compat import (
    is_contiguous,
    keep_error_checks,
    lstm,
    lstm_has_wrong_states,
    operators_found_once,
    pytree,
)
from felixlike.frontend.importers.attention import ATTENTION
from felixlike.frontend.importers.elementary import elementary
from felixlike.frontend.importers.resizing import BY_TAPS, is_resized_here
from felixlike.frontend.importers.scatters import index_put, masked_scatter, put
from felixlike.frontend.importers.windows import KEPT, is_summed_here


@operators_found_once()
def decomposed(program: Any, kept: Iterable[Any] = (), *, on_cpu: bool = True) -> Any:
    """Run the decompositions of an ExportedProgram for a CPU or GPU, except those of operators in `kept`.

    Raises what PyTorch raises.

    PyTorch's decomposition of attention gives its result other strides than the operator does, so a valid view can
    fail. Such programs are decomposed again with copies before views. The copies have no effect later: Relax tensors
    have no strides.
    """
    entries = table(on_cpu=on_cpu)
    for operator in kept:
        entries.pop(operator, None)
    keep_error_checks()
    try:
        return program.run_decompositions(entries)
    except Exception as error:
        if "Cannot view a tensor" not in str(error):
            raise
    import torch

    return program.run_decompositions({**entries, torch.ops.aten.view.default: _view})


def table(*, on_cpu: bool = True) -> Any:
    """Return PyTorch's decomposition table with the entries of this module, for ExportedProgram.run_decompositions.

    on_cpu: whether the program is compiled for a CPU, which has kernels for scatters.
    """
    import torch

    aten: Any = torch.ops.aten
    decompositions: Any = torch.export.default_decompositions()
    sums = (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
    extremes = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim, aten.min.dim)
    ours: dict[Any, Callable[..., Any]] = {
        **{sum_of: functools.partial(_with_alpha, sum_of) for sum_of in sums},
        **elementary(),
        aten.cat.default: _cat,
        aten.sort.stable: _stable_sort,
        aten.kthvalue.default: _kth_value,
        aten.median.default: _median_of_all,
        aten.median.dim: _median,
        aten.pad.default: _pad,
        aten.erfinv.default: _erfinv,
        aten.fmax.default: functools.partial(_extreme_number, "maximum"),
        aten.fmin.default: functools.partial(_extreme_number, "minimum"),
        aten.logcumsumexp.default: _logcumsumexp,
        aten._cdist_forward.default: _distances,
        aten.leaky_relu.default: _leaky_relu,
        aten.linalg_vector_norm.default: _norm,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.index_put.default: index_put,
        aten.put.default: put,
        aten.masked_scatter.default: masked_scatter,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten.histc.default: _histogram if on_cpu else _compared_histogram,
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
        aten.isnan.default: _is_nan,
        aten.neg.default: _negative,
        aten.sign.default: _sign,
        **{operator: functools.partial(_extreme_truth, operator) for operator in extremes},
    }
    decompositions.update(ours)
    if lstm_has_wrong_states():
        decompositions[aten.lstm.input] = _lstm
    for name in BY_TAPS:
        of_indices = decompositions[overload(f"{name}.vec")]
        decompositions[overload(f"{name}.vec")] = functools.partial(_resized, of_indices)
    of_columns = decompositions[aten.col2im.default]
    decompositions[aten.col2im.default] = functools.partial(_sum_of_windows, of_columns)
    for name in _ALONG_A_DIMENSION:
        operator = overload(name)
        own = functools.partial(_with_a_dimension, operator, ours.get(operator))
        decompositions[operator] = own
    for name in (*KEPT, *ATTENTION):
        decompositions.pop(overload(name), None)
    return decompositions


def overload(name: str) -> Any:
    """Return the operator of PyTorch with a name such as "lstm.input"."""
    import torch

    operator, _, of_operator = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), of_operator)


def _resized(of_indices: Callable[..., Any], x: Any, sizes: Any, aligned: bool, factors: Any) -> Any:
    """Keep an interpolation that a converter takes. Others are decomposed by PyTorch."""
    if is_resized_here(x, sizes or ()):
        return NotImplemented
    return of_indices(x, sizes, aligned, factors)


def _sum_of_windows(of_columns: Callable[..., Any], *arguments: Any) -> Any:
    """Keep aten.col2im if a converter takes it. Others are decomposed by PyTorch."""
    return NotImplemented if is_summed_here(*arguments) else of_columns(*arguments)


def _lstm(x: Any, states: Sequence[Any], *arguments: Any) -> Any:
    """Decompose aten.lstm as PyTorch does, with states of the right shape."""
    outputs, *last = lstm(x, states, *arguments)
    return outputs, *(new.reshape(old.shape) for new, old in zip(last, states, strict=True))


def _extreme_truth(operator: Any, x: Any, *arguments: Any, **named: Any) -> Any:
    """Decompose a maximum or minimum of booleans, of which TVM has none, into one of numbers."""
    import torch

    if x.dtype != torch.bool:
        return NotImplemented
    extreme = operator(x.to(torch.uint8), *arguments, **named)
    if isinstance(extreme, torch.Tensor):
        return extreme.to(torch.bool)
    values, places = extreme
    return values.to(torch.bool), places


def _is_nan(x: Any) -> Any:
    """Decompose aten.isnan of integers and booleans, which are no NaN."""
    import torch

    return NotImplemented if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)


def _negative(x: Any) -> Any:
    """Decompose aten.neg of uint8, which TVM multiplies by -1, into a product that wraps to the same."""
    import torch

    return x * torch.iinfo(x.dtype).max if x.dtype == torch.uint8 else NotImplemented


def _sign(x: Any) -> Any:
    """Decompose aten.sign of booleans and unsigned integers."""
    import torch

    return (x != 0).to(x.dtype) if x.dtype in (torch.bool, torch.uint8) else NotImplemented


def _view(x: Any, size: Sequence[Any]) -> Any:
    """Decompose aten.view of a non-contiguous tensor into a copy and a view."""
    import torch

    if is_contiguous(x):
        return NotImplemented
    return x.clone(memory_format=torch.contiguous_format).view(size)


def _with_alpha(operator: Any, x: Any, other: Any, alpha: Any = 1) -> Any:
    """Decompose x + alpha · other or x − alpha · other, whose factor TVM's importer leaves out."""
    import torch

    if isinstance(alpha, int | float) and alpha == 1:
        return NotImplemented
    if isinstance(other, torch.Tensor):
        dtype = torch.result_type(x, other)
        return operator(x, (other.to(dtype) * alpha).to(dtype))  # the type in which PyTorch multiplies
    return operator(x, other * alpha)


def _stable_sort(x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Decompose aten.sort.stable into aten.sort, whose kernels keep the order of equal elements."""
    import torch

    return torch.sort(x, dim, descending)


def _kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Decompose aten.kthvalue: the last of the k smallest elements."""
    import torch

    values, places = (part.narrow(dim, k - 1, 1) for part in torch.topk(x, k, dim, largest=False))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Decompose aten.median along a dimension: the lower one of the middle elements, or NaN if there is one."""
    import torch

    if not x.dim() or not isinstance(x.shape[dim], int):
        return NotImplemented
    ordered, places = torch.sort(x, dim)
    middle, last = (x.shape[dim] - 1) // 2, x.shape[dim] - 1
    value, place = ordered.narrow(dim, middle, 1), places.narrow(dim, middle, 1)
    if x.is_floating_point():
        largest = ordered.narrow(dim, last, 1)
        is_nan = torch.isnan(largest)
        value = torch.where(is_nan, largest, value)
        place = torch.where(is_nan, places.narrow(dim, last, 1), place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _median_of_all(x: Any) -> Any:
    """Decompose aten.median without a dimension. TVM's importer leaves out NaN."""
    if not all(isinstance(size, int) for size in x.shape) or not x.numel():
        return NotImplemented
    value, _ = _median(x.reshape(-1), 0)
    return value


def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Decompose aten.cat of tensors some of which are empty.

    PyTorch skips those of one dimension. Others, such as the part of a head that rotary embeddings leave out, have no
    element either, and TVM would keep a kernel's stage for each.
    """
    import torch

    kept = [tensor for tensor in tensors if tensor.shape != (0,)]
    filled = [tensor for tensor in kept if not (isinstance(tensor.shape[dim], int) and tensor.shape[dim] == 0)]
    kept = filled or kept
    if len(kept) == len(tensors) or not kept:
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return torch.cat(kept, dim).to(dtype)


def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Decompose aten.pad in circular mode.

    PyTorch's own decomposition writes each side into an empty tensor, one kernel each.
    """
    import torch

    if mode != "circular":
        return NotImplemented
    for dim, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), start=1):
        cut = max(-before, 0)
        x = x.narrow(-dim, cut, x.shape[-dim] - cut - max(-after, 0))  # negative padding crops before wrapping
        before, after, size = max(before, 0), max(after, 0), x.shape[-dim]
        if before > size or after > size:
            return NotImplemented
        parts = [x.narrow(-dim, size - before, before), x, x.narrow(-dim, 0, after)]
        x = torch.cat([part for part in parts if part.shape[-dim]], -dim)
    return x


_CENTRE = (
    (0.886226899, -1.645349621, 0.914624893, -0.140543331),
    (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801),
)
"""Numerator and denominator of erfinv's rational function for |y| ≤ 0.7, from PyTorch's calc_erfinv."""
_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))
"""The same for |y| > 0.7."""


def _erfinv(y: Any) -> Any:
    """Decompose aten.erfinv as PyTorch computes it: two rational functions, then two Newton steps."""
    import torch

    size = y.abs()
    square = y * y
    centre = y * _polynomial(square, _CENTRE[0]) / _polynomial(square, _CENTRE[1])
    root = torch.sqrt(-torch.log((1 - size.clamp(max=1)) / 2))
    tail = _polynomial(root, _TAIL[0]) / _polynomial(root, _TAIL[1])
    x = torch.where(size <= 0.7, centre, torch.where(y < 0, -tail, tail))
    for _ in range(2):
        x = x - (torch.erf(x) - y) / ((2 / math.sqrt(math.pi)) * torch.exp(-x * x))
    ends = torch.where(size == 1, y * math.inf, math.nan)
    return torch.where(size < 1, x, ends)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule. Coefficients are in ascending order."""
    result = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result


def _extreme_number(name: str, a: Any, b: Any) -> Any:
    """Decompose aten.fmax or aten.fmin: the extreme of two numbers, one of which counts alone if the other is NaN."""
    import torch

    extreme = getattr(torch, name)(a, b)
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, extreme))


def _with_a_dimension(operator: Any, decomposed: Any, x: Any, *arguments: Any, **options: Any) -> Any:
    """Decompose an operator along a dimension of a tensor without one: TVM's operators need a dimension.

    decomposed: The decomposition of other tensors, or None.
    """
    import torch

    if x.dim():
        return NotImplemented if decomposed is None else decomposed(x, *arguments, **options)

    def lifted(value: Any) -> Any:
        return value.reshape(1) if isinstance(value, torch.Tensor) and not value.dim() else value

    result = operator(lifted(x), *map(lifted, arguments), **options)
    return pytree().tree_map_only(torch.Tensor, lambda value: value.reshape(()), result)


_ALONG_A_DIMENSION = (
    *("cumsum.default", "cumprod.default", "_softmax.default", "_log_softmax.default"),
    *("topk.default", "max.dim", "min.dim", "argmax.default", "argmin.default", "flip.default", "index_select.default"),
    *("gather.default", "scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"),
)
"""Operators that take a tensor without dimensions as if it had one of size 1."""


def _logcumsumexp(x: Any, dim: int) -> Any:
    """Decompose aten.logcumsumexp into about log₂ n steps.

    Each step doubles the number of summed elements with a logaddexp, which cannot overflow.
    """
    import torch

    size, reach = (x.shape[dim] if x.dim() else 1), 1
    if not isinstance(size, int):  # the number of steps would be that of the example
        return NotImplemented
    while reach < size:
        ahead = [0, 0] * (x.dim() - 1 - dim % x.dim()) + [reach, 0]
        x = torch.logaddexp(x, torch.constant_pad_nd(x.narrow(dim, 0, size - reach), ahead, -math.inf))
        reach *= 2
    return x


def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    """Decompose aten.leaky_relu with the slope 0, where TVM takes the product with it for 0 even if x is NaN."""
    import torch

    return NotImplemented if slope else torch.where(x > 0, x, x * 0.0)


def _norm(x: Any, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Decompose aten.linalg_vector_norm of order 0: the number of elements that are not 0."""
    if order:
        return NotImplemented
    counted = (x != 0).to(dtype or x.dtype)
    return counted.sum(list(range(x.dim())) if dim is None else dim, keepdim)


def _rrelu(
    x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None
) -> Any:
    """Decompose aten.rrelu_with_noise_functional in eval mode: a leaky ReLU with the mean of the slopes."""
    import torch

    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Decompose aten._native_batch_norm_legit_functional, whose statistics TVM's importer leaves out.

    Returns the result, the batch's mean and 1/σ, and the new running mean and variance. The running variance is
    unbiased.
    """
    if not training:
        return NotImplemented
    result, mean_of_batch, of_batch, inverse = _normalized(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = of_batch * (count / (count - 1))
    means, variances = momentum * mean_of_batch + (1 - momentum) * mean, momentum * unbiased + (1 - momentum) * var
    return result, mean_of_batch, inverse, means.to(mean.dtype), variances.to(var.dtype)


def _batch_norm_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    """Decompose aten._native_batch_norm_legit.no_stats of several samples. An instance norm has one.

    TVM's kernel computes the variance from the squares' mean, which loses its digits if the mean is large.
    """
    if x.shape[0] == 1:
        return NotImplemented
    result, mean, _, inverse = _normalized(x, weight, bias, eps)
    return result, mean, inverse


def _normalized(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """Return x with mean 0 and variance 1 in each channel, scaled and shifted, and the mean, variance and 1/σ.

    Narrow types are computed in float32 and rounded once, as in PyTorch.
    """
    import torch

    dims, shape, dtype = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)], x.dtype
    x = x.to(torch.promote_types(dtype, torch.float32))
    variance, mean = torch.var_mean(x, dims, correction=0)
    inverse = torch.rsqrt(variance + eps)
    result = (x - mean.view(shape)) * inverse.view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(dtype), mean, variance, inverse


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    _scale: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    factors: Any = None,
    include_last_offset: bool = False,
    padding: int = -1,
) -> Any:
    """Decompose aten._embedding_bag_forward_only: sums (mode 0), means (1) or maxima (2) of the rows of each bag.

    Returns the result, the bag of each index, the size of each bag, and zeros in place of the maxima's places.
    """
    import torch

    if not all(isinstance(size, int) for t in (weight, indices, offsets) for size in t.shape):
        return NotImplemented
    bags = offsets.shape[0] - include_last_offset
    places = torch.arange(indices.shape[0], dtype=offsets.dtype)
    bag = (offsets[:bags] <= places.unsqueeze(1)).sum(1) - 1
    rows, counted = weight.index_select(0, indices), torch.ones_like(indices, dtype=weight.dtype)
    if padding >= 0:
        counted = (indices != padding).to(weight.dtype)
    sizes = weight.new_zeros(bags).index_put((bag,), counted, accumulate=True)
    empty = weight.new_zeros(bags, weight.shape[1])
    if mode == 2:
        rows = torch.where(counted.unsqueeze(1) > 0, rows, -math.inf)
        largest = empty.scatter_reduce(0, bag.unsqueeze(1).expand_as(rows), rows, "amax", include_self=False)
        result = torch.where(sizes.unsqueeze(1) > 0, largest, 0.0)
    else:
        if factors is not None or padding >= 0:
            rows = rows * (counted if factors is None else counted * factors).unsqueeze(1)
        result = empty.index_put((bag,), rows, accumulate=True)
    if mode == 1:
        result = result / sizes.clamp(min=1).unsqueeze(1)
    return result, bag, sizes.to(offsets.dtype), torch.zeros_like(sizes, dtype=offsets.dtype)


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    weight_in: Any,
    bias_in: Any,
    weight_out: Any,
    bias_out: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Any:
    """Decompose aten._transformer_encoder_layer_fwd, which nn.TransformerEncoderLayer calls in eval mode.

    rest: weight and bias of both norms and of both linear layers, then optionally a mask and its type: pairs of
    positions (0), positions by batch (1) or pairs by batch and head (2). PyTorch converts masks to booleans; a row that
    is masked entirely gives NaN.
    """
    import torch

    functional = torch.nn.functional
    norms, (wide, wide_bias, narrow, narrow_bias) = (rest[:2], rest[2:4]), rest[4:8]
    mask, mask_type = (*rest[8:], None, None)[:2]
    batch, length, _ = x.shape

    def attention(y: Any) -> Any:
        parts = functional.linear(y, weight_in, bias_in).view(batch, length, 3, heads, width // heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (query / math.sqrt(width // heads)) @ key.transpose(-2, -1)
        if mask is not None:
            masked = mask.to(torch.bool)
            masked = masked.view(batch, 1, 1, length) if mask_type == 1 else masked
            scores = scores.masked_fill(masked, -math.inf)
        joined = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
        return functional.linear(joined, weight_out, bias_out)

    def feed_forward(y: Any) -> Any:
        inner = functional.linear(y, wide, wide_bias)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, narrow, narrow_bias)

    for part, (scale, shift) in zip((attention, feed_forward), norms, strict=True):
        if norm_first:
            x = x + part(functional.layer_norm(x, (width,), scale, shift, eps))
        else:
            x = functional.layer_norm(x + part(x), (width,), scale, shift, eps)
    return x


def _histogram(x: Any, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Decompose aten.histc with given ends: add 1 to the bin of each element."""
    import torch

    if low >= high:  # PyTorch takes the ends from the data
        return NotImplemented
    x = x.reshape(-1, 1)
    # Elements outside are counted behind the last bin.
    place = torch.where((x >= low) & (x <= high), _bin_of(x, bins, low, high), bins).to(torch.int64)
    counts, ones = torch.zeros(bins + 1, 1, dtype=torch.int32), torch.ones(x.shape, dtype=torch.int32)
    return counts.scatter_add(0, place.expand(-1, 1), ones)[:bins, 0].to(x.dtype)


def _compared_histogram(x: Any, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Decompose aten.histc with given ends: compare the bin of each element with all bins, and count."""
    import torch

    if low >= high:
        return NotImplemented
    x = x.reshape(-1, 1)
    hits = (_bin_of(x, bins, low, high) == torch.arange(bins, dtype=x.dtype)) & (x <= high)
    return hits.sum(0).to(x.dtype)


def _bin_of(x: Any, bins: int, low: float, high: float) -> Any:
    """Return the number of the bin of each element, as a float. The last bin includes its end."""
    return ((x - low) * bins / (high - low)).floor().clamp(max=bins - 1)


def _distances(a: Any, b: Any, p: float, _: int | None = None) -> Any:
    """Decompose aten._cdist_forward: the p-norm distance of each row of a to each row of b."""
    differences = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (differences != 0).to(a.dtype).sum(-1)
    if p == 1:
        return differences.sum(-1)
    if p == 2:
        return (differences * differences).sum(-1).sqrt()
    if math.isinf(p):
        return differences.amax(-1)
    return differences.pow(p).sum(-1).pow(1 / p)
