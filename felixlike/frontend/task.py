"""A task: one fused subgraph to be tuned, as one PrimFunc with static shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from felixlike import _tvm
from felixlike._encoding import showable
from felixlike._util.wording import kind_of
from felixlike.errors import InvalidModel, InvalidOption
from felixlike.frontend.constants import CONSTANTS, LAYOUT_FREE, layout_free, layout_free_parameters, with_indices


@dataclass(frozen=True, slots=True)
class Task:
    """One subgraph of a model.

    name: for people, unique within a model.  module: IRModule {"main": PrimFunc}, static shapes, outputs last.
    target: the TVM target it is tuned for.  weight: call sites in the model.  flops: floating-point operations of
    one call.  key: the same for structurally equal PrimFuncs on the same target, in every process."""

    name: str
    module: Any
    target: Any
    weight: float
    flops: float
    key: str

    @property
    def layout_free(self) -> tuple[str, ...]:
        """Names of the parameters whose layout schedules may choose."""
        return tuple(str(parameter.name) for parameter in layout_free_parameters(self.module["main"]))

    def __str__(self) -> str:
        return showable(f"{self.name} (×{self.weight:g}, {self.flops / 1e6:.1f} MFLOP)")


def make_task(func: Any, target: Any, *, name: str, weight: float = 1.0, constants: Sequence[int] = ()) -> Task:
    """The task of one PrimFunc.

    func: a PrimFunc; its own name and attributes do not enter the key.  constants: indices of its parameters that are
    the same in every call. Schedules may lay weights among them out anew, once, before the first call; the
    key tells whether they may. What the function itself says of free layouts is dropped: nothing says that those
    buffers are constant, and what is not would be laid out anew in every call.
    Raises InvalidModel for what is no PrimFunc, InvalidOption for an index that is no input's."""
    import hashlib

    if not isinstance(func, _tvm.PrimFunc):
        raise InvalidModel(
            f"{kind_of(func)} is no PrimFunc", where="make_task", remedy="of an IRModule, give module[name]"
        )
    constants = _checked(constants, func)
    # A private copy under the one name that traces know, so that equal bodies have equal keys.
    main = _tvm.without_attributes(_named_apart(func), "global_symbol", "op_pattern", CONSTANTS)
    main = main.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    main = with_indices(main, LAYOUT_FREE, layout_free(main, constants))
    digest = hashlib.sha256(f"{_tvm.structural_hash(main)} {target}".encode()).hexdigest()
    module = _tvm.IRModule({"main": with_indices(main, CONSTANTS, constants)})
    return Task(
        name=name,
        module=module,
        target=target,
        weight=float(weight),
        flops=float(_tvm.estimate_tir_flops(module)),
        key=digest[:32],
    )


def _named_apart(func: Any) -> Any:
    """The function with parameters of different names: blocks that pad or copy them are named after them, and found by
    name."""
    taken: set[str] = set()
    renamed: dict[Any, Any] = {}
    for parameter in func.params:
        original = str(parameter.name)
        numbered = (f"{original}_{number}" for number in count(1))
        name = next(name for name in chain([original], numbered) if name not in taken)
        taken.add(name)
        if name != original:
            renamed[parameter] = _tvm.ir.Var(name, parameter.ty)
    if not renamed:
        return func
    parameters = [renamed.get(parameter, parameter) for parameter in func.params]
    return _tvm.PrimFunc(parameters, _tvm.substituted(func.body, renamed), func.ret_type, func.attrs)


def _checked(constants: Sequence[int], func: Any) -> tuple[int, ...]:
    if not all(0 <= index < len(func.params) - 1 for index in constants):
        raise InvalidOption(
            f"constants are {list(constants)}, of {len(func.params)} parameters",
            where="make_task",
            remedy="give indices of parameters that are inputs",
        )
    return tuple(sorted(set(constants)))
