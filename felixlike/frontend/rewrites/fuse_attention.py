"""Compute attention in one PrimFunc: scores, softmax and the product with the values.

    softmax(mask(Q · Kᵀ)) · V    →    attention(Q, K, V, mask)

Views of queries, keys, values and of the result are read and written in place: transpositions, heads that several
queries share, other batch dimensions and constant factors of queries and keys. `attention_kernel.py` has the PrimFunc.
Rows without a finite score give 0 or NaN, as the softmax of the model does.

Constant masks that depend on the distance of a key from its query alone, such as causal masks, become comparisons of
positions. Where they hide a key with -inf, the score is the constant -inf, so schedules need not compute it. As in
PyTorch's own kernel, NaN and infinities in keys and values that a mask hides may or may not reach the result.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from felixlike import _tvm
from felixlike.codegen.masking import masked_sum, selected
from felixlike.frontend.constants import HALF_FACTORS, has_half_factors
from felixlike.frontend.rewrites.attention_kernel import (
    MOST_PADDED,
    Operands,
    Sizes,
    attention,
    mask_shape,
    padded_mask,
)
from felixlike.frontend.rewrites.mask_band import Band, ConstantMasks
from felixlike.frontend.rewrites.rewriting import (
    OPAQUE,
    Bindings,
    Rewriter,
    kernel_of,
    operator,
    rewritten,
    shape,
)
from felixlike.frontend.rewrites.views import (
    Indices,
    Place,
    View,
    broadcast,
    is_number,
    number,
    operand,
    regrouped,
    simplified,
    view,
)
from felixlike.hardware import Device

SAFE_SOFTMAX = "felixlike.safe_softmax"
"""Attribute of PrimFuncs that compute the softmax along the last axis, and 0 for rows of only -inf."""

_VECTORS = 2
"""Vectors of queries whose scores, before and after the softmax, must fit into half of the L2 cache."""

_LEAST = 32
"""Queries and keys from which on attention is one kernel. Chosen by hand: with fewer, transposing the queries and the
output takes as long as the rest."""

_SCATTERED = 256
"""Keys up to which keys and values are read in any layout. More rows that are far apart fall on the same few lines of
the caches. Measured at 1,024 keys of 12 heads: reading the rows of all heads in place took twice the time."""

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": masked_sum,
    "subtract": operators.sub,
    "multiply": operators.mul,
    "divide": operators.truediv,
}
"""Operators between the scores and the softmax, beside `where`."""

_BOTH = ("bitwise_and", "logical_and")
"""Operators of the conjunction of boolean masks."""


def with_fused_attention(module: Any, device: Device) -> Any:
    """Compute attention in float32 in one PrimFunc where the scores of a few vectors of queries fit into the L2 cache.

    Args:
        module: Relax IRModule with operators, of static sizes.
        device: Device of the target.

    Returns:
        The rewritten module.
    """
    halves = has_half_factors(module["main"])
    return rewritten(module, partial(_fused, device, ConstantMasks(module), halves))


@dataclass(frozen=True, slots=True)
class _Attention:
    """Describe a product with the softmax of scores.

    Attributes:
        product: The matmul with the values.
        powers: View of the softmax that the matmul reads.
        logits: Expression that the softmax is computed from.
        scores: The matmul of queries and keys.
        masks: Tensors that the scores are combined with, without those of `bands`.
        bands: Constant tensors that they are combined with, and the bands that equal these.
        safe: Whether rows of only -inf give 0 instead of NaN.
    """

    product: Any
    powers: View
    logits: Any
    scores: Any
    masks: tuple[Any, ...]
    bands: tuple[tuple[Any, Band], ...]
    safe: bool


def _fused(
    device: Device, constants: ConstantMasks, halves: bool, expression: Any, known: Bindings, rewriter: Rewriter
) -> Any:
    """Replace the last permutation of an attention's result by a call that computes it, or return None.

    halves: whether factors are bfloat16 in the model.
    """
    if operator(expression) not in ("matmul", "permute_dims"):
        return None
    product = known.value(view(expression, known).source)
    if operator(product) != "matmul" or not _last_permutation(product, known).same_as(expression):
        return None
    attention = _attention(rewriter.module, constants, product, known)
    pairs = device.rounds_factors(given=halves)
    kernel = None if attention is None else _kernel(attention, expression, known, device, pairs=pairs)
    if attention is None or kernel is None:
        return None
    query, key, value = kernel.views()
    views = [
        replace(query, source=rewriter.new(query.source)),
        kernel.contiguous(attention.scores.args[1], key, (-1, -2), rewriter),
        kernel.contiguous(product.args[1], value, (-2, -1), rewriter),
    ]
    masks = [
        rewriter.builder.emit_te(lambda t: padded_mask(t, kernel.sizes), rewriter.new(mask), primfunc_name_hint="mask")
        if kernel.moves(mask)
        else rewriter.new(mask)
        for mask in attention.masks
    ]
    return rewriter.builder.call_te(
        lambda *tensors: kernel.compute(views, tensors[:3], tensors[3:]),
        *(part.source for part in views),
        *masks,
        primfunc_name_hint="attention",
        # No schedule rule knows attention that is fused with what reads it.
        primfunc_attrs={"op_pattern": OPAQUE, **({HALF_FACTORS: True} if halves else {})},
    )


def _last_permutation(product: Any, known: Bindings) -> Any:
    """Return the last permutation of a product, or the product.

    Every value before it is a view that is read once, and the permutation has a dimension for each of the product's
    last two.
    """
    last = value = product
    while (variable := known.variable(value)) is not None and known.once(variable):
        (value,) = known.readers(variable)
        if operator(value) not in ("permute_dims", "reshape"):
            break
        plain = operator(value) == "permute_dims" and None not in _last_places(view(value, known), len(shape(value)))
        last = value if plain else last
    return last


def _last_places(one: View, rank: int) -> list[int | None]:
    """Return the dimensions of a view that alone index the last two dimensions of its source, None for others."""
    variables = [_tvm.tirx.Var(f"i{place}", "int64") for place in range(rank)]
    indices = one.place([*variables])
    return [next((p for p, v in enumerate(variables) if v.same_as(indices[place])), None) for place in (-2, -1)]


def _attention(module: Any, constants: ConstantMasks, product: Any, known: Bindings) -> _Attention | None:
    """Return the attention that ends with a matmul, or None for other products."""
    powers = view(product.args[0], known)
    softmax = known.value(powers.source)
    kernel = kernel_of(module, softmax)
    safe = kernel is not None and bool(kernel.attrs and kernel.attrs.get(SAFE_SOFTMAX))
    if not safe and not (operator(softmax) == "nn.softmax" and softmax.attrs.axis in (-1, len(shape(softmax)) - 1)):
        return None
    logits = softmax.args[1].fields[0] if safe else softmax.args[0]
    found = _scores(logits, known)
    if found is None or not _read_once(product.args[0], powers.source, known):
        return None
    scores, masks = found
    tensors = (product, *product.args, softmax, scores, *scores.args)
    if {str(tensor.ty.dtype) for tensor in tensors} != {"float32"} or min(len(shape(t)) for t in tensors) < 2:
        return None
    parts = {_tvm.identity(part): part for mask in masks for part in _parts(mask, constants, known)}
    bands = [(part, constants.band(part, known)) for part in parts.values()]
    others = tuple(mask for mask, band in bands if band is None)
    return _Attention(product, powers, logits, scores, others, tuple((m, b) for m, b in bands if b), safe)


def _parts(mask: Any, constants: ConstantMasks, known: Bindings) -> list[Any]:
    """Return the tensors that a mask is computed from if some are bands, else the mask."""
    value = known.value(mask)
    names = ("where", *_BOTH) if str(mask.ty.dtype) == "bool" else ("where", *_BINARY)
    if constants.band(mask, known) is not None or operator(value) not in names:
        return [mask]
    parts = [part for a in value.args if not is_number(a) for part in _parts(a, constants, known)]
    return parts if any(constants.band(part, known) is not None for part in parts) else [mask]


def _read_once(expression: Any, source: Any, known: Bindings) -> bool:
    """Return whether an expression, its source and the views between them have one reader each."""
    while known.once(expression) and not expression.same_as(source):
        expression = known.value(expression).args[0]
    return known.once(expression)


def _scores(expression: Any, known: Bindings) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the matmul that an expression is computed from, and the tensors that it is combined with, or None.

    Nothing else may read the matmul or what is computed from it.
    """
    value = known.value(expression)
    if not known.once(expression):
        return None
    if operator(value) == "matmul":
        return value, ()
    if operator(value) == "reshape":
        return _scores(value.args[0], known)
    if operator(value) not in (*_BINARY, "where"):
        return None
    parts = [_scores(argument, known) for argument in value.args]
    if sum(part is not None for part in parts) != 1:
        return None
    scores, masks = next(part for part in parts if part is not None)
    others = [a for a, part in zip(value.args, parts, strict=True) if part is None and not is_number(a)]
    return scores, (*masks, *(a for a in others if not any(a.same_as(mask) for mask in masks)))


def _kernel(attention: _Attention, last: Any, known: Bindings, device: Device, *, pairs: bool) -> _Kernel | None:
    """Return the kernel of attention, or None where it is not worth it or views mix queries or keys with the batch.

    last: the expression that it computes, a view of the product.  pairs: whether schedules may round its factors.
    """
    queries, keys = shape(attention.scores)[-2:]
    extents, result = shape(last), view(last, known)
    row, element = _last_places(result, len(extents))
    if row is None or element is None:
        return None
    batch = tuple(extent for place, extent in enumerate(extents) if place not in (row, element))
    depth, width = shape(attention.scores.args[0])[-1], shape(attention.product)[-1]
    sizes = Sizes(batch, queries, keys, depth, width, device.unit, pairs, pairs and device.has_tiles)
    kernel = _Kernel(attention, result, extents, (row, element), sizes, known)
    scratch = 2 * _VECTORS * device.unit.bits // 8 * sizes.rows
    small = min(queries, keys) < _LEAST or sizes.columns > MOST_PADDED * queries or scratch > device.tile_bytes
    return None if small or not kernel.keeps_rows() else kernel


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Compute attention from the sources of its operands.

    Attributes:
        attention: The operators.
        result: View of the product that is written.
        extents: Shape of the result.
        places: Dimensions of the result that number the queries and the elements of a value. The others are the batch.
        sizes: Sizes of the kernel.
        known: Bindings of the function.
    """

    attention: _Attention
    result: View
    extents: tuple[int, ...]
    places: tuple[int, int]
    sizes: Sizes
    known: Bindings

    def views(self) -> tuple[View, View, View]:
        """Return the views of queries, keys and values. Indices of keys are those of the transposed keys."""
        near = self.sizes.keys <= _SCATTERED
        query, key = self.attention.scores.args
        return (
            operand(query, self.known, scaled=True, sliced=True),
            operand(key, self.known, scaled=True, sliced=near),
            operand(self.attention.product.args[1], self.known, scaled=False, sliced=near),
        )

    def contiguous(self, factor: Any, part: View, last: Sequence[int], rewriter: Rewriter) -> View:
        """Return the view with a source of the new function, which is copied first if rows are far apart in the cache.

        factor: the operand of a product that `part` is the view of.
        last: dimensions of the operand that number the rows and their elements, counted from the end.
        """
        source, extents = rewriter.new(part.source), shape(part.source)
        at = part.place([*(variables := [_tvm.tirx.Var("i", "int64") for _ in shape(factor)])])
        row, element = (next((p for p, i in enumerate(at) if variables[n].same_as(i)), None) for n in last)
        if self.sizes.keys <= _SCATTERED or row is None or element is None:
            return replace(part, source=source)
        if math.prod(extents[element + 1 :]) == 1 and math.prod(extents[row + 1 :]) == extents[element]:
            return replace(part, source=source)
        order = [*(p for p in range(len(extents)) if p not in (row, element)), row, element]
        copied = rewriter.builder.emit(_tvm.relax.op.permute_dims(source, order))
        return replace(part, source=copied, place=partial(_reordered, part.place, order))

    def moves(self, mask: Any) -> bool:
        """Return whether a mask must be copied: the queries are not last, or keys are not padded."""
        *_, queries, keys = mask_shape(shape(mask))
        return queries > 1 or 1 < keys < self.sizes.rows

    def keeps_rows(self) -> bool:
        """Return whether no view between scores and result mixes queries, keys or elements of values with the batch."""
        batch = [_tvm.tirx.Var("b", "int64") for _ in self.sizes.batch]
        i, j = (_tvm.tirx.Var(name, "int64") for name in "ij")
        softmax, scores = self._of_softmax(batch, i, j), self._of_scores(batch, i, j)
        return all(a.same_as(b) for at in (softmax, scores) for a, b in zip(at[-2:], (i, j), strict=True))

    def _of_product(self, batch: Sequence[Any], i: Any, d: Any) -> Indices:
        """Return the indices of an element of the product with the values."""
        rest = iter(batch)
        indices = [
            i if p == self.places[0] else d if p == self.places[1] else next(rest) for p in range(len(self.extents))
        ]
        return self.result.place(indices)

    def _of_softmax(self, batch: Sequence[Any], i: Any, j: Any) -> Indices:
        """Return the indices of an element of the softmax."""
        outer = self._of_product(batch, i, 0)[:-2]
        return self.attention.powers.place([*broadcast(outer, shape(self.attention.product.args[0])[:-2]), i, j])

    def _of_scores(self, batch: Sequence[Any], i: Any, j: Any) -> Indices:
        """Return the indices of the score that an element of the softmax is computed from."""
        expression, at = self.attention.logits, self._of_softmax(batch, i, j)
        while not (value := self.known.value(expression)).same_as(self.attention.scores):
            if operator(value) == "reshape":
                expression, at = value.args[0], regrouped(shape(value.args[0]), shape(value), at)
            else:
                expression = next(a for a in value.args if _scores(a, self.known) is not None)
                at = broadcast(at, shape(expression))
        return at

    def _logit(self, expression: Any, at: Indices, score: Callable[[Indices], Any], masks: Sequence[Any]) -> Any:
        """Return an element of an expression between the scores and the softmax.

        score: returns a score by its indices.  masks: the tensors of `attention.masks`.
        """
        value = self.known.value(expression)
        if value.same_as(self.attention.scores):
            return score(at)
        for mask, band in self.attention.bands:
            if expression.same_as(mask):
                return band.element(at[-2], at[-1], str(expression.ty.dtype))
        for mask, tensor in zip(self.attention.masks, masks, strict=True):
            if expression.same_as(mask):
                *outer, i, j = [0, 0, *at][-max(2, len(at)) :]
                indices = [*outer, j, i] if self.moves(mask) else [*outer, i, j][len(outer) + 2 - len(at) :]
                return tensor(*indices)
        if is_number(expression):
            return _tvm.tirx.const(number(expression), str(expression.ty.dtype))
        if operator(value) == "reshape":
            return self._logit(value.args[0], regrouped(shape(value.args[0]), shape(value), at), score, masks)
        parts = [self._logit(a, broadcast(at, shape(a)), score, masks) for a in value.args]
        if operator(value) in _BOTH:
            return _tvm.tirx.all(*parts)
        return selected(*parts) if operator(value) == "where" else _BINARY[operator(value)](*parts)

    def compute(self, views: Sequence[View], tensors: Sequence[Any], masks: Sequence[Any]) -> Any:
        """Return the TVM tensor of the result, from the sources of queries, keys and values."""
        scores, product = self.attention.scores, self.attention.product

        def element(number: int, argument: Any, batch: Sequence[Any], *last: Any) -> Any:
            """Return an element of an operand whose batch dimensions those of its matmul are broadcast from."""
            outer = self._of_product(batch, 0, 0)[:-2] if number == 2 else self._of_scores(batch, 0, 0)[:-2]
            at = views[number].place([*broadcast(outer, shape(argument)[:-2]), *last])
            return tensors[number](*simplified(at, batch, self.sizes.batch))

        def masked(batch: Sequence[Any], j: Any, i: Any, score: Any) -> Any:
            at = simplified(self._of_softmax(batch, i, j), batch, self.sizes.batch)
            return self._logit(self.attention.logits, at, lambda _: score, masks)

        operands = Operands(
            query=lambda b, i, d: element(0, scores.args[0], b, i, d),
            key=lambda b, j, d: element(1, scores.args[1], b, d, j),
            value=lambda b, j, d: element(2, product.args[1], b, j, d),
            masked=None if self.known.value(self._last_logit).same_as(scores) else masked,
            factor=views[0].factor * views[1].factor,
        )
        weighted = attention(self.sizes, operands, safe=self.attention.safe)

        def output(*at: Any) -> Any:
            i, d = (at[place] for place in self.places)
            return weighted(*(a for place, a in enumerate(at) if place not in self.places), d, i)

        return _tvm.te.compute(self.extents, output, name="output")

    @property
    def _last_logit(self) -> Any:
        """The logits, before reshapes."""
        expression = self.attention.logits
        while operator(value := self.known.value(expression)) == "reshape":
            expression = value.args[0]
        return expression


def _reordered(place: Place, order: Sequence[int], indices: Indices) -> Indices:
    """Return the indices of a transposed source."""
    at = place(indices)
    return [at[dimension] for dimension in order]
