"""Read the buffers of a PrimFunc as specs.

Input: a PrimFunc. Output: an InputSpec per parameter, outputs last, or an error that names the scalar or unknown
size.
"""

import math
from collections.abc import Iterable
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel, InvalidShape
from felixlike.frontend.imported import InputSpec


def buffers_of(func: Any, *, where: str) -> tuple[InputSpec, ...]:
    """Return name, shape and dtype of each buffer.  where: the function's name, for messages.

    Raises InvalidModel for a parameter that is not a buffer, InvalidShape for a size that is not a number.
    """
    specs = []
    for parameter in func.params:
        if getattr(parameter, "shape", None) is None:
            raise InvalidModel(
                f"parameter {parameter.name} is a scalar", where=where, remedy="make every parameter a T.Buffer"
            )
        shape = sizes_of(parameter.shape, what=f"buffer {parameter.name}", where=where)
        specs.append(InputSpec(str(parameter.name), shape, str(parameter.dtype)))
    return tuple(specs)


def check_index_width(func: Any, *, where: str) -> None:
    """Raise InvalidModel for a buffer with more elements than the dtype of its sizes can count.

    TVM would compute the offset of an element in that dtype. Buffers that the function allocates are checked too.
    where: the function's name.
    """
    allocated = [buffer for block in _tvm.found(func.body, _tvm.s_tir.SBlock) for buffer in block.alloc_buffers]
    for buffer in (*func.params, *allocated):
        sizes = list(getattr(buffer, "shape", None) or ())
        if not sizes or not all(isinstance(size, _tvm.tirx.IntImm) for size in sizes):
            continue
        bits, count = min(_tvm.bits(size.ty.dtype) for size in sizes), math.prod(map(int, sizes))
        if count >= 2 ** (bits - 1):
            raise InvalidModel(
                f"buffer {buffer.name} has {count} elements, more than its {bits}-bit sizes can count",
                where=where,
                remedy="declare its sizes and the loops as 64-bit integers: T.int64(…)",
            )


def sizes_of(shape: Iterable[Any], *, what: str, where: str) -> tuple[int, ...]:
    """Return TVM's sizes as numbers.  Raises InvalidShape if one is not a number.  what, where: for its message."""
    sizes = [int(size) if isinstance(size, _tvm.tirx.IntImm) else size for size in shape]
    if not all(isinstance(size, int) for size in sizes):
        raise InvalidShape(
            f"{what} has the dynamic shape ({', '.join(map(str, sizes))})",
            where=where,
            remedy="make every size a number, or pass a PrimFunc to felixlike.dynamic.compile",
        )
    return tuple(sizes)
