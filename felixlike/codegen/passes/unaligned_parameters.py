"""Allow parameters to begin at any element, as rows of a batch, slices and many NumPy arrays do.

Input: an IRModule of (scheduled) PrimFuncs. Output: the same module with parameters aligned only to their elements. TVM
assumes that all begin at a multiple of 64 bytes, and loads whole vectors with instructions that fault at other
addresses. Instructions that do not fault are as fast on current CPUs for aligned addresses, so one version suffices.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module


def unaligned_parameters(module: Module) -> Module:
    """Return the IRModule with its PrimFuncs' parameters aligned to their elements."""
    return _tvm.map_functions(module, _unaligned)


def _unaligned(func: Func) -> Func:
    """Return a function with its parameters aligned to their elements."""
    buffers = filter(_tvm.tirx.is_buffer_var, func.params)
    changed = {buffer: _aligned_to_elements(buffer) for buffer in buffers}
    if not changed:
        return func
    params = [changed.get(parameter, parameter) for parameter in func.params]
    return _tvm.PrimFunc(params, _tvm.substituted(func.body, changed), func.ret_type, func.attrs)


def _aligned_to_elements(buffer: Any) -> Any:
    """Return a buffer that is aligned to its elements."""
    kind = buffer.ty
    return _tvm.tirx.decl_buffer(
        list(buffer.shape),
        kind.dtype,
        buffer.name,
        strides=list(kind.strides),
        elem_offset=kind.elem_offset,
        scope=str(kind.storage_scope),
        data_alignment=max(1, _tvm.bits(kind.dtype) // 8),
        offset_factor=kind.offset_factor,
        layout=kind.layout,
    )
