"""Let products read factors in bfloat16 that models have in bfloat16, instead of copies in float32.

    matmul(float32(X), float32(W))   →   Σ_k float32(X[…]) · float32(W[…])

The importer computes models in bfloat16 in float32, so that all other rewrites see operators in float32. This one runs
after them. Factors that are exactly bfloat16 stay so: results that are rounded, and constants, if no rewrite has
changed their values. Rules can then multiply pairs without rounding anything (`spaces/cpu/bfloat16_pairs.py`), and the
artefact has no float32 copy of a weight. Sums stay float32, as in PyTorch's kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.frontend.rewrites.half_values import HALF, WIDE, has_half_factors, has_paired_channels
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    constant,
    is_constant,
    operator,
    rewritten,
    shape,
    with_attributes,
)
from felixlike.frontend.rewrites.split_deconvolution import is_transposed_last
from felixlike.frontend.rewrites.winograd import is_channels_last
from felixlike.hardware import Device


def with_wide_constants(module: Any) -> Any:
    """Convert constants in bfloat16 that operators read in float32.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    wide = rewritten(module, _wide_constant)
    unchanged = _tvm.structural_equal(wide, module)
    return module if unchanged else _tvm.relax.transform.CanonicalizeBindings()(wide)


def with_bfloat16_factors(module: Any, device: Device) -> Any:
    """Let products read both factors in bfloat16 where their values are and the device has an instruction for them.

    Args:
        module: Relax IRModule with operators.
        device: Device of the target.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _product) if device.multiplies_halves else module


def _wide_constant(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Return the float32 constant that a conversion of a bfloat16 constant computes."""
    if operator(expression) != "astype" or str(expression.ty.dtype) != WIDE or not is_constant(expression.args[0]):
        return None
    if str(expression.args[0].ty.dtype) != HALF:
        return None
    return constant(expression.args[0].value.numpy().astype(np.float32))


def _product(expression: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Replace both factors of a product by their values in bfloat16."""
    if not has_pairs(expression) or str(expression.ty.dtype) != WIDE:
        return None
    if not has_half_factors(expression, known):
        return None
    factors = [_narrow(factor, known, rewriter) for factor in expression.args]
    if operator(expression) == "matmul":
        return _tvm.relax.op.matmul(*factors, out_dtype=WIDE)
    return with_attributes(expression, factors, out_dtype=WIDE)


def has_pairs(product: Any) -> bool:
    """Return whether an expression is a product whose factors schedules may multiply in pairs."""
    is_matmul = operator(product) == "matmul"
    if not (is_matmul or is_channels_last(product) or is_transposed_last(product)):
        return False
    last: Any = shape(product.args[0])[-1]
    if is_matmul:
        return not isinstance(last, int) or last > 1
    taps = shape(product.args[1])[-1]  # of a convolution whose columns are channels, too
    even = isinstance(last, int) and (last if last > 1 else taps) % 2 == 0
    return even and has_paired_channels(product)


def _narrow(factor: Any, known: Bindings, rewriter: Rewriter) -> Any:
    """Return a factor in bfloat16."""
    if is_constant(factor):
        return _tvm.relax.const(factor.value.numpy(), HALF)
    value = known.value(factor)
    if operator(value) == "astype":
        return rewriter.new(value.args[0])
    source = _narrow(value.args[0], known, rewriter)
    arguments = [source, *map(rewriter.new, value.args[1:])]
    return rewriter.builder.emit(_tvm.relax.Call(value.op, arguments, value.attrs))
