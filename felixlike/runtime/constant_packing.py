"""Constants packed when a model is compiled, so that no call packs them.

In: a Relax module whose scheduled functions may begin with packing blocks. Out: one whose calls pass packed constants.
TVM's SplitLayoutRewritePreproc and FoldConstant come to the same, but build a library for each call site; here all
packing functions are built together, and a constant that several calls read alike is packed once.
"""

from collections.abc import Mapping
from typing import Any

from felixlike import _tvm, codegen
from felixlike.errors import InvalidSchedule
from felixlike.measure.packing import Packing, cut

Pieces = Mapping[str, tuple[Any, tuple[Packing, ...]]]
"""A function's name → its kernel, and how the kernel's constants are packed."""


def with_packed_constants(module: Any, known: Pieces | None = None) -> Any:
    """The module without packing blocks; itself where it has none.  known: functions that are cut already.

    Raises InvalidSchedule where a function packs what is not a constant: every call would pack it again."""
    functions = {str(v.name_hint): f for v, f in module.functions.items() if isinstance(f, _tvm.PrimFunc)}
    pieces = {name: cut(func) for name, func in functions.items()}
    pieces = {name: found for name, found in pieces.items() if found[1]} | dict(known or {})
    return _rewritten(module, pieces, _Packer(pieces)) if pieces else module


class _Packer:
    """The packing functions of a module, built together for this machine."""

    def __init__(self, pieces: Pieces) -> None:
        functions = {
            f"{name}_pack{i}": packing.function.with_attr("global_symbol", f"{name}_pack{i}")
            for name, (_, packings) in pieces.items()
            for i, packing in enumerate(packings)
        }
        executable = codegen.compile_primfuncs(_tvm.IRModule(functions), _tvm.Target("llvm"))
        self._library = executable.jit()
        self._done: dict[tuple[str, int | None], Any] = {}

    def packed(self, name: str, number: int, packing: Packing, constant: Any) -> Any:
        """A Relax constant as packing `number` of a function wants it."""
        key = (f"{name}_pack{number}", _tvm.identity(constant))
        if key not in self._done:
            packed = _tvm.runtime.empty(packing.shape, packing.dtype)
            self._library[key[0]](constant.value, packed)
            self._done[key] = _tvm.relax.const(packed)
        return self._done[key]


def _rewritten(module: Any, pieces: Pieces, packer: _Packer) -> Any:
    """The module with every call of a function of `pieces` exchanged for one of its kernel on packed constants."""
    relax = _tvm.relax
    call_tir = _tvm.ir.Op.get("relax.call_tir")
    kernels: dict[str, Any] = {}
    refused: list[tuple[str, int]] = []

    class Packed(relax.PyExprMutator):  # type: ignore[misc,name-defined]
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            name = str(call.args[0].name_hint) if call.op == call_tir else ""
            if name not in pieces:
                return call
            kernel, packings = pieces[name]
            given = list(call.args[1].fields)
            for number, packing in enumerate(packings):
                constant = given[packing.parameter]
                if not isinstance(constant, _tvm.ir.GenericConst):
                    refused.append((name, packing.parameter))
                    return call
                given[packing.parameter] = packer.packed(name, number, packing, constant)
            if name not in kernels:
                kernels[name] = self.builder_.add_func(kernel, f"{name}_prepacked")
            return relax.Call(call.op, [kernels[name], relax.Tuple(given)], call.attrs, call.ty_args)

    mutator = relax.expr_functor.mutator(Packed)(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    for name, parameter in refused:  # told here, since errors on the way through TVM lose their kind
        raise InvalidSchedule(
            f"it packs parameter {parameter}, which is not a constant: every call would pack it",
            where=name,
            remedy="schedule it without a packing block",
        )
    return relax.transform.DeadCodeElimination()(mutator.builder_.get())
