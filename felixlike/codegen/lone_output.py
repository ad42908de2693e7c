"""A model's only output is returned by itself.

    main(x) → (R.Tensor,)      →      main(x) → R.Tensor

In: a Relax module, lowered until reshapes are views. Out: the same, but a "main" that returned a tuple of one tensor
returns the tensor. Taking it out of TVM's tuple from Python costs more than calling a small model; while reshapes are
operators, the tuple has to stay: TVM makes a view of a reshape only where it is not itself what is returned.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def lone_output(module: Any) -> Any:
    """The module with a "main" that returns a lone tensor as it is."""
    relax, main = _tvm.relax, module["main"]
    *blocks, last = main.body.blocks
    *bindings, final = last.bindings
    is_tuple = final.var.same_as(main.body.body) and isinstance(final, relax.VarBinding)
    if not is_tuple or not isinstance(final.value, relax.Tuple) or len(final.value.fields) != 1:
        return module
    (output,) = final.value.fields
    if not isinstance(output, relax.Var) or not isinstance(output.ty, relax.TensorType):
        return module
    body = relax.SeqExpr([*blocks, relax.BindingBlock(bindings)], output)
    alone = relax.Function(main.params, body, output.ty, main.is_pure, main.attrs)
    functions = {**module.functions, module.get_global_var("main"): alone}
    return _tvm.IRModule(functions, attrs=module.attrs)
