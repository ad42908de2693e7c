"""Match the shapes of a call with the declared sizes.

Input: a program, the shape and dtype of each tensor. Output: sizes by name, or a TCCallError at the parameter that does
not match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from felixlike._util.wording import counted
from felixlike.errors import TCCallError
from felixlike.tc.program import Program, Tensor
from felixlike.tc.scalars import spoken


@dataclass(frozen=True, slots=True)
class Given:
    """Shape and dtype of a tensor passed by the caller; `dtype` is a numpy name."""

    shape: tuple[int, ...]
    dtype: str


def sizes_of(program: Program, given: Sequence[Given]) -> dict[str, int]:
    """Return sizes by name from the tensors of a call, one per parameter. Raise TCCallError."""
    count = len(program.parameters)
    if len(given) != count:
        names = ", ".join(_declared(parameter) for parameter in program.parameters) or "none"
        raise TCCallError(
            f"expected {counted(count, 'input')} but got {len(given)}",
            where=program.name,
            remedy=f"the inputs are {names}",
        )
    sizes: dict[str, int] = {}
    for parameter, tensor in zip(program.parameters, given, strict=True):
        _match(program, parameter, tensor, sizes)
    return sizes


def _declared(parameter: Tensor) -> str:
    """Return the declaration of a parameter as text."""
    dims = f"({', '.join(map(str, parameter.dims))})" if parameter.dims else ""
    return f"{spoken(parameter.dtype)}{dims} {parameter.name}"


def _match(program: Program, parameter: Tensor, tensor: Given, sizes: dict[str, int]) -> None:
    """Match a tensor with its declaration and record its sizes. Raise TCCallError."""

    def error(reason: str, remedy: str) -> TCCallError:
        return program.source.error(TCCallError, parameter.span, reason, remedy)

    name = parameter.name
    if tensor.dtype != parameter.dtype:
        raise error(
            f"expected type {spoken(parameter.dtype)} but found {tensor.dtype} for `{name}`",
            f"convert it: {name}.to(torch.{parameter.dtype})",
        )
    if len(tensor.shape) != len(parameter.dims):
        raise error(
            f"expected a tensor with {len(parameter.dims)} dimensions but found {len(tensor.shape)} dimensions for"
            f" `{name}`",
            f"it is declared as {_declared(parameter)}",
        )
    for number, (dim, size) in enumerate(zip(parameter.dims, tensor.shape, strict=True)):
        if size < 1:
            raise error(f"dimension {number} of `{name}` has size {size}", "all sizes must be at least 1")
        if isinstance(dim, int):
            if size != dim:
                raise error(
                    f"constant dimension {number} of `{name}`: expected size {dim} but found {size}",
                    f"it is declared as {_declared(parameter)}",
                )
        elif sizes.setdefault(dim, size) != size:
            raise error(
                f"mismatched sizes for dimension {number} of `{name}`: `{dim}` has the previous value {sizes[dim]} but"
                f" found {size}",
                f"it is declared as {_declared(parameter)}",
            )
