"""Let TVM compute constants as models compute other values: NaN and infinities are kept.

TVM's FoldConstant builds a kernel for each operator of constants by a function of its registry, and without the passes
of `codegen/pipeline.py`. A maximum of constants lost NaN, and that of -inf was the smallest finite number. It also
builds the same kernel again for each step of a loop over constants.
"""

from __future__ import annotations

import functools
from typing import Any

from felixlike import _tvm
from felixlike.codegen.passes import from_infinity, keep_nan, keep_rounding

_BUILD = "tirx.build"
"""Name of the function in TVM's registry that builds a PrimFunc. Only FoldConstant calls it by its name."""

_MOST_KERNELS = 256
"""Upper limit of the kernels that are kept, chosen by hand."""

_kernels: dict[tuple[int, str], tuple[Any, Any]] = {}
"""Functions and their kernels, by the structural hash and the other arguments."""


@functools.cache
def prepare_folding() -> None:
    """Let FoldConstant build its kernels after the passes for NaN and infinities, and once each, from now on."""
    build: Any = _tvm.tvm_ffi.get_global_func(_BUILD)

    def built(function: Any, *arguments: Any) -> Any:
        key = _tvm.structural_hash(function), " ".join(map(str, arguments))
        known = _kernels.get(key)
        if known is not None and _tvm.structural_equal(known[0], function):
            return known[1]
        module = function if isinstance(function, _tvm.IRModule) else _tvm.IRModule.from_expr(function)
        kernel = build(keep_nan(from_infinity(keep_rounding(module))), *arguments)
        while len(_kernels) >= _MOST_KERNELS:
            _kernels.pop(next(iter(_kernels)), None)
        _kernels[key] = function, kernel
        return kernel

    _tvm.tvm_ffi.register_global_func(_BUILD, built, override=True)
