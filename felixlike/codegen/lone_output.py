"""Return a model's only output without a tuple.

    main(x) → (R.Tensor,)      →      main(x) → R.Tensor

Input: a Relax module, lowered until reshapes are views. Output: the same module, in which a "main" that returned a
tuple of one tensor returns the tensor. Taking it out of TVM's tuple in Python takes longer than calling a small model.
While reshapes are operators, the tuple must stay: TVM does not turn a returned reshape into a view.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm


def lone_output(module: Any) -> Any:
    """Return the module with a "main" that returns its only tensor directly."""
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
