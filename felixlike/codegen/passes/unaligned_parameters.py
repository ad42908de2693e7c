"""Parameters that may begin at any element: rows of a batch, slices and many NumPy arrays do.

In: an IRModule of (scheduled) PrimFuncs. Out: the same with buffers for parameters that are aligned to their elements
alone. TVM takes all to begin at a multiple of 64 bytes, and loads whole vectors with instructions that fault at other
addresses. Those that do not fault are as fast on today's CPUs where the address is a multiple: one version serves all.
"""

from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module


def unaligned_parameters(module: Module) -> Module:
    """The IRModule with parameters of its PrimFuncs aligned to their elements."""
    return _tvm.map_functions(module, _unaligned)


def _unaligned(func: Func) -> Func:
    changed = {parameter: _aligned_to_elements(parameter) for parameter in func.params if _is_buffer(parameter)}
    if not changed:
        return func
    params = [changed.get(parameter, parameter) for parameter in func.params]
    return _tvm.PrimFunc(params, _tvm.substituted(func.body, changed), func.ret_type, func.attrs)


def _is_buffer(parameter: Any) -> bool:
    return bool(_tvm.tirx.is_buffer_var(parameter))


def _aligned_to_elements(buffer: Any) -> Any:
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
