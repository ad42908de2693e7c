"""Move large constants of a lowered Relax module to parameters of its main function, and back.

Input: a lowered module. Output: a module whose main function takes the constants after its other parameters, and the
constants. The kernels stay as they are, so their machine code can be linked with either module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from felixlike import _tvm

_LEAST_BYTES = 2**16
"""Size in bytes from which constants are moved. A parameter adds about 0.02 µs to a call, as much time as reading 1 KB
of a constant. Chosen by hand."""

_LEAST_TOTAL_BYTES = 2**20
"""Total size in bytes from which constants are moved. Files of smaller models have all in one library. Chosen by
hand."""

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of constants that are moved, which torch has too."""


def constants_as_parameters(lowered: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the module with parameters in place of its large constants, and TVM's tensors for these parameters.

    The module itself and no tensors are returned if there is less than 1 MiB of such constants. Only constants that
    kernels read are moved. Those that the model returns stay, since callers may write to outputs.
    """
    parameters: list[Any] = []
    constants: dict[int | None, tuple[Any, Any]] = {}

    def moved(argument: Any) -> Any:
        if not isinstance(argument, _tvm.ir.GenericConst) or not _is_large(argument.value):
            return argument
        key = _tvm.identity(argument)
        if key not in constants:
            parameters.append(_tvm.relax.Var(f"constant_{len(parameters)}", argument.ty))
            constants[key] = argument, parameters[-1]
        return constants[key][1]

    module = _with_arguments(lowered, moved, added=parameters)
    tensors = tuple(constant.value for constant, _ in constants.values())
    return (module, tensors) if sum(map(_bytes, tensors)) >= _LEAST_TOTAL_BYTES else (lowered, ())


def program_text(module: Any) -> str:
    """Return a lowered module without its kernels as TVM's JSON, for `linkable`."""
    functions = {
        variable: _declared(func) if isinstance(func, _tvm.PrimFunc) else func
        for variable, func in module.functions.items()
    }
    return str(_tvm.ir.save_json(_tvm.IRModule(functions, attrs=module.attrs)))


def linkable(program: str, kernels: Path, constants: Sequence[Any]) -> tuple[Any, Any]:
    """Return a lowered module and the module with its compiled kernels, for `relink_relax`.

    Args:
        program: The text of a module of `constants_as_parameters`, by `program_text`.
        kernels: The object file with its kernels.
        constants: One of TVM's tensors per moved constant.
    """
    module = _tvm.ir.load_json(program)
    return _parameters_as_constants(module, constants), _tvm.runtime.load_static_library(str(kernels), [])


def _parameters_as_constants(module: Any, constants: Sequence[Any]) -> Any:
    """Return the module with constants in place of the last parameters of its main function."""
    known = list(module["main"].params)[-len(constants) :]
    values = {
        _tvm.identity(parameter): _tvm.relax.const(tensor) for parameter, tensor in zip(known, constants, strict=True)
    }
    return _with_arguments(module, lambda argument: values.get(_tvm.identity(argument), argument), removed=len(known))


def _declared(func: Any) -> Any:
    """Return an empty function with the name of another one."""
    empty = _tvm.PrimFunc([], _tvm.tirx.Evaluate(0))
    return empty.with_attr("global_symbol", func.attrs["global_symbol"])


def _with_arguments(
    lowered: Any, replaced: Callable[[Any], Any], *, added: Sequence[Any] = (), removed: int = 0
) -> Any:
    """Return the module with other arguments of the kernel calls of main, and with parameters added or removed.

    Args:
        lowered: The lowered module.
        replaced: Returns an argument's replacement. Called for each before `added` is read.
        added: New parameters at the end.
        removed: Number of parameters at the end to remove.
    """
    relax, main = _tvm.relax, lowered["main"]
    kernels = {_tvm.identity(v) for v, f in lowered.functions.items() if isinstance(f, _tvm.PrimFunc)}

    def with_replaced(value: Any) -> Any:
        if not isinstance(value, relax.Call):
            return value
        if _tvm.identity(value.op) in kernels:
            arguments = list(map(replaced, value.args))
        elif str(getattr(value.op, "name", "")) == "relax.vm.call_tir_dyn":
            kernel, values = value.args
            arguments = [kernel, relax.Tuple([replaced(field) for field in values.fields])]
        else:
            return value
        return relax.Call(value.op, arguments, value.attrs, value.ty_args)

    blocks = [
        relax.BindingBlock([relax.VarBinding(binding.var, with_replaced(binding.value)) for binding in block.bindings])
        for block in main.body.blocks
    ]
    params = list(main.params)
    params = [*params[: len(params) - removed], *added]
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    module = _tvm.IRModule(dict(lowered.functions), attrs=lowered.attrs)
    module.update_func(module.get_global_var("main"), function)
    return module


def _is_large(value: Any) -> bool:
    """Return whether a constant's value is a tensor that is moved."""
    return isinstance(value, _tvm.runtime.Tensor) and str(value.dtype) in _DTYPES and _bytes(value) >= _LEAST_BYTES


def _bytes(tensor: Any) -> int:
    """Return the size of one of TVM's tensors in bytes."""
    return math.prod(map(int, tensor.shape)) * ((_tvm.bits(tensor.dtype) + 7) // 8)
