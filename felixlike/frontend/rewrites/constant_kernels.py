"""Let TVM compute constants as models compute other values: NaN and infinities are kept.

TVM's FoldConstant builds a kernel for each operator of constants by a function of its registry, and without the passes
of `codegen/pipeline.py`. A maximum of constants lost NaN, and that of -inf was the smallest finite number.
"""

from __future__ import annotations

import functools
from typing import Any

from felixlike import _tvm
from felixlike.codegen.passes import from_infinity, keep_nan, keep_rounding

_BUILD = "tirx.build"
"""Name of the function in TVM's registry that builds a PrimFunc. Only FoldConstant calls it by its name."""


@functools.cache
def prepare_folding() -> None:
    """Let FoldConstant build its kernels after the passes for NaN and infinities, from now on."""
    build: Any = _tvm.tvm_ffi.get_global_func(_BUILD)

    def built(function: Any, *arguments: Any) -> Any:
        module = function if isinstance(function, _tvm.IRModule) else _tvm.IRModule.from_expr(function)
        return build(keep_nan(from_infinity(keep_rounding(module))), *arguments)

    _tvm.tvm_ffi.register_global_func(_BUILD, built, override=True)
