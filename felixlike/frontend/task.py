"""Define a task: one fused subgraph to tune, as a PrimFunc with static shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from felixlike import _tvm
from felixlike._encoding import showable
from felixlike._util.wording import kind_of, task_title
from felixlike.errors import InvalidModel, InvalidOption
from felixlike.frontend.constants import CONSTANTS, LAYOUT_FREE, layout_free, layout_free_parameters, with_indices


@dataclass(frozen=True, slots=True)
class Task:
    """Describe one subgraph of a model.

    Attributes:
        name: Display name, unique within a model.
        module: IRModule {"main": PrimFunc} with static shapes. Outputs are the last parameters.
        target: TVM target that the task is tuned for.
        weight: Number of call sites in the model.
        flops: Floating-point operations of one call.
        key: Hash that is equal for structurally equal PrimFuncs on the same target, in every process.
        layers: What each call site computes, in names of the user's model: "layer1.0.conv1 + bn1 + relu". Empty if
            the model has no such names. It does not enter the key.
    """

    name: str
    module: Any
    target: Any
    weight: float
    flops: float
    key: str
    layers: tuple[str, ...] = ()

    @property
    def layout_free(self) -> tuple[str, ...]:
        """Names of the parameters whose layout schedules may choose."""
        return tuple(str(parameter.name) for parameter in layout_free_parameters(self.module["main"]))

    @property
    def title(self) -> str:
        """Layers of the first call site and the number of other ones, or the name if the model names no layers."""
        return task_title(self.layers, self.name)

    def __str__(self) -> str:
        return showable(f"{self.name} (×{self.weight:g}, {self.flops / 1e6:.1f} MFLOP)")


def make_task(func: Any, target: Any, *, name: str, weight: float = 1.0, constants: Sequence[int] = ()) -> Task:
    """Return the task of one PrimFunc.

    The function's own `layout_free_buffers` attribute is dropped: it does not say that those buffers are constant,
    and a buffer that is not would be repacked in every call.

    Args:
        func: PrimFunc. Its name and attributes do not enter the key.
        target: TVM target.
        name: Display name of the task.
        weight: Number of call sites in the model.
        constants: Indices of the parameters that are the same in every call. Schedules may repack the weights among
            them once, before the first call. The key depends on which ones they may repack.

    Returns:
        The task. Its function is a copy named "main".

    Raises:
        InvalidModel: `func` is not a PrimFunc.
        InvalidOption: An index in `constants` is not that of an input.
    """
    import hashlib

    if not isinstance(func, _tvm.PrimFunc):
        raise InvalidModel(
            f"expected a PrimFunc, got {kind_of(func)}", where="make_task", remedy="for an IRModule, pass module[name]"
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
    """Return the function with unique parameter names: blocks that pad or copy parameters are named after them."""
    used: set[str] = set()
    renamed: dict[Any, Any] = {}
    for parameter in func.params:
        original = str(parameter.name)
        numbered = (f"{original}_{number}" for number in count(1))
        name = next(name for name in chain([original], numbered) if name not in used)
        used.add(name)
        if name != original:
            renamed[parameter] = _tvm.ir.Var(name, parameter.ty)
    if not renamed:
        return func
    parameters = [renamed.get(parameter, parameter) for parameter in func.params]
    return _tvm.PrimFunc(parameters, _tvm.substituted(func.body, renamed), func.ret_type, func.attrs)


def _checked(constants: Sequence[int], func: Any) -> tuple[int, ...]:
    """Return the indices sorted and without duplicates, or raise InvalidOption for one that is out of range."""
    if not all(0 <= index < len(func.params) - 1 for index in constants):
        raise InvalidOption(
            f"constants {list(constants)} are out of range: the function has {len(func.params)} parameters",
            where="make_task",
            remedy="pass indices of inputs (the last parameter is the output)",
        )
    return tuple(sorted(set(constants)))
