"""Pack constants at compile time instead of in every call.

Input: a Relax module whose scheduled functions may start with packing blocks. Output: a module whose calls pass packed
constants. TVM's SplitLayoutRewritePreproc and FoldConstant have the same effect, but build one library per call site.
Here all packing functions are built together, and a constant that several calls pack alike is packed once.
"""

import functools
from collections.abc import Mapping
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidSchedule
from felixlike.frontend.constants import LEAST_INFINITE, largest_finite
from felixlike.hardware import huge_pages, placement
from felixlike.measure.packing import Packing, compiled_packings, cut, kernel_name

_HALF = "bfloat16"

Pieces = Mapping[str, tuple[Any, tuple[Packing, ...]]]
"""Maps a function's name to its kernel and the packings of the kernel's constants."""


def with_packed_constants(module: Any, known: Pieces | None = None) -> Any:
    """Remove packing blocks from a module's functions and pass packed constants instead.

    Args:
        module: A Relax module.
        known: Functions that are already split into kernel and packings.

    Returns:
        The new module; the same one if it has no packing blocks.

    Raises:
        InvalidSchedule: A function packs a parameter that is not a constant, so that every call would pack it, or
            packs a finite number in a type that makes it infinite.
    """
    functions = {str(v.name_hint): f for v, f in module.functions.items() if isinstance(f, _tvm.PrimFunc)}
    pieces = {name: cut(func) for name, func in functions.items()}
    pieces = {name: piece for name, piece in pieces.items() if piece[1]} | dict(known or {})
    return _rewritten(module, pieces, _Packer(pieces)) if pieces else module


class _Packer:
    """The packing functions of a module, built together for this machine, with their results."""

    def __init__(self, pieces: Pieces) -> None:
        packings = {
            f"{name}_pack{i}": packing for name, (_, several) in pieces.items() for i, packing in enumerate(several)
        }
        self._library = compiled_packings(packings).jit()
        placement.pin_threads()
        self._done: dict[tuple[str, int | None], Any] = {}

    def packed(self, name: str, number: int, packing: Packing, constant: Any) -> Any:
        """Return a Relax constant, packed by packing `number` of a function."""
        key = (f"{name}_pack{number}", _tvm.identity(constant))
        if key not in self._done:
            packed = huge_pages.empty(packing.shape, packing.dtype)
            self._library[key[0]](constant.value, packed)
            self._done[key] = _tvm.relax.const(packed)
        return self._done[key]


def _refusal(name: str, packing: Packing, constant: Any) -> InvalidSchedule | None:
    """Return why a function cannot pack an argument, or None."""
    if not isinstance(constant, _tvm.ir.GenericConst):
        return InvalidSchedule(
            f"the schedule packs parameter {packing.parameter}, which is not a constant, so every call would pack it",
            where=name,
            remedy="use a schedule without a packing block",
        )
    largest = 0.0 if packing.dtype != _HALF else largest_finite(constant)
    if largest < LEAST_INFINITE:
        return None
    return InvalidSchedule(
        f"{packing.dtype} has no number near {largest:.6g}, which parameter {packing.parameter} contains",
        where=name,
        remedy='use precision="float32", or scale the weights down',
    )


def _rewritten(module: Any, pieces: Pieces, packer: _Packer) -> Any:
    """Return the module with calls of functions in `pieces` replaced by calls of their kernels on packed constants."""
    relax = _tvm.relax
    mutator = _mutator()(module, pieces, packer)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    for refusal in mutator.refusals:  # raised here, since exceptions that pass through TVM lose their class
        raise refusal
    return relax.transform.DeadCodeElimination()(mutator.builder_.get())


@functools.cache
def _mutator() -> Any:
    """Return the class of TVM's object that replaces calls. TVM never frees such classes, nor what they refer to."""
    relax = _tvm.relax
    call_tir = _tvm.ir.Op.get("relax.call_tir")

    class Packed(relax.PyExprMutator):  # type: ignore[misc,name-defined]
        def __init__(self, module: Any, pieces: Pieces, packer: _Packer) -> None:
            super().__init__(module)
            self.pieces, self.packer = pieces, packer
            self.kernels: dict[str, Any] = {}
            self.refusals: list[InvalidSchedule] = []

        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            name = str(call.args[0].name_hint) if call.op == call_tir else ""
            if name not in self.pieces:
                return call
            kernel, packings = self.pieces[name]
            arguments = list(call.args[1].fields)
            for number, packing in enumerate(packings):
                constant = arguments[packing.parameter]
                refusal = _refusal(name, packing, constant)
                if refusal is not None:
                    self.refusals.append(refusal)
                    return call
                arguments[packing.parameter] = self.packer.packed(name, number, packing, constant)
            if name not in self.kernels:
                self.kernels[name] = self.builder_.add_func(kernel, kernel_name(name, packings))
            return relax.Call(call.op, [self.kernels[name], relax.Tuple(arguments)], call.attrs, call.ty_args)

    return relax.expr_functor.mutator(Packed)
