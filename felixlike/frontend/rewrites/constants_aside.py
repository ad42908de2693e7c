"""Find equal expressions and compute those of constants as TVM does, in less time.

    lv = matmul(x, W); lv1 = matmul(x, W)     →     lv = matmul(x, W)        (`without_equal_expressions`)
    lv = add(C, D); lv1 = multiply(x, lv)     →     lv1 = multiply(x, CD)    (`with_computed_constants`)

Input: a Relax module in dataflow form. Output: what EliminateCommonSubexpr and FoldConstant return. The first of these
hashes the contents of all constants, which takes 0.5 s for a BERT-base. The second creates the kernel of every operator
before it looks whether the operands are constants, which takes 0.4 s. Here large constants are parameters while equal
expressions are found, and FoldConstant sees only the operators of constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Func, Module
from felixlike.frontend.rewrites.rewriting import (
    Bindings,
    Rewriter,
    elements,
    functions_of,
    is_constant,
    operator,
    rewritten,
)

_LARGE = 2**12
"""Elements from which a constant is a parameter while equal expressions are found. Chosen by hand."""

_OF_SHAPES = ("tensor_to_shape", "shape_to_tensor")
"""Operators between shapes and tensors, which FoldConstant also computes where an operand is not a constant."""


def without_equal_expressions(module: Module) -> Module:
    """Return the IRModule with equal expressions computed once.

    Large constants are equal if they are the same object, as those of one parameter are."""
    constants = {variable: _large(function) for variable, function in functions_of(module)}
    lifted = {variable: _lifted(module[variable], found) for variable, found in constants.items()}
    module = _tvm.relax.transform.EliminateCommonSubexpr()(_with_functions(module, lifted))
    bound = {}
    for variable, found in constants.items():
        params = list(module[variable].params)[len(module[variable].params) - len(found) :]
        bound[variable] = module[variable].bind_params(dict(zip(params, found.values(), strict=True)))
    return _with_functions(module, bound)


def _with_functions(module: Module, functions: dict[Any, Func]) -> Module:
    """Return the module with other functions of the same names."""
    return _tvm.IRModule({**dict(module.functions.items()), **functions}, attrs=module.attrs)


def _large(function: Func) -> dict[int | None, Any]:
    """Return the large constants of a function, each once, in order."""
    found = _tvm.found(function.body, _tvm.ir.GenericConst)
    return {_tvm.identity(one): one for one in found if (elements(one.ty) or 0) >= _LARGE}


def _lifted(function: Func, constants: dict[int | None, Any]) -> Func:
    """Return a function with parameters, after its own, in place of constants."""
    variables = {
        key: _tvm.relax.Var(f"constant_aside{number}", constant.ty)
        for number, (key, constant) in enumerate(constants.items())
    }
    body = _tvm.structural_map(
        function.body, (_tvm.ir.GenericConst, lambda constant: variables.get(_tvm.identity(constant), constant))
    )
    params = [*function.params, *variables.values()]
    return _tvm.relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)


def with_computed_constants(module: Module) -> Module:
    """Return the IRModule with operators of constants computed, and variables that are constants replaced by them."""
    passes = _tvm.relax.transform
    functions = [function for _, function in functions_of(module)]
    if any(map(_folds_shapes, functions)):
        return passes.FoldConstant()(module)
    computed = {key: value for function in functions for key, value in _computed(module, function).items()}

    def rule(value: Any, bindings: Bindings, _: Rewriter) -> Any:
        return computed.get(_tvm.identity(bindings.variable(value)))

    # The canonical form has constants in place of variables.
    return passes.DeadCodeElimination()(passes.CanonicalizeBindings()(rewritten(module, rule) if computed else module))


def _folds_shapes(function: Func) -> bool:
    """Return whether FoldConstant may change operators of a function that have other operands than constants."""
    values = [getattr(binding, "value", None) for block in function.body.blocks for binding in block.bindings]
    return any(isinstance(value, _tvm.relax.ShapeExpr) or operator(value) in _OF_SHAPES for value in values)


def _computed(module: Module, function: Func) -> dict[int | None, Any]:
    """Return the constants that operators of constants compute, by the variables that are bound to these operators."""
    relax = _tvm.relax
    constants: dict[int | None, Any] = {}
    operators: dict[int | None, Any] = {}
    read: dict[int | None, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
            if not isinstance(binding, relax.VarBinding):
                continue
            key = _tvm.identity(binding.var)
            if is_constant(binding.value):
                constants[key] = binding.value
            elif isinstance(binding.value, relax.Call | relax.Tuple | relax.TupleGetItem):
                used = {_tvm.identity(variable): variable for variable in relax.analysis.free_vars(binding.value)}
                if used.keys() <= constants.keys() | operators.keys():
                    operators[key] = binding
                    read |= used
    if not operators:
        return {}
    known = [relax.VarBinding(read[key], constant) for key, constant in constants.items() if key in read]
    results = relax.Tuple([binding.var for binding in operators.values()])
    # Elements of a tuple of constants are constants only in the canonical form.
    passes = "FoldConstant", "CanonicalizeBindings", "FoldConstant"
    values = zip(operators, evaluated(module, [*known, *operators.values()], results, passes).fields, strict=True)
    return {key: value for key, value in values if is_constant(value)}


def evaluated(module: Module, bindings: Sequence[Any], expression: Any, passes: Sequence[str]) -> Any:
    """Return an expression of constants after passes of Relax.

    Args:
        module: The module with the PrimFuncs that are called.
        bindings: Bindings of all variables that the expression is computed with, in order.
        expression: The expression.
        passes: Names of the passes, which see nothing else.
    """
    relax = _tvm.relax
    output = relax.Var("output", expression.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(output, expression)])
    function = relax.Function([], relax.SeqExpr([block], output), expression.ty)
    kernels = {v: f for v, f in module.functions.items() if isinstance(f, _tvm.PrimFunc)}
    alone = _tvm.IRModule({**kernels, "main": function.with_attr("global_symbol", "main")})
    result = _tvm.transform.Sequential([getattr(relax.transform, name)() for name in passes])(alone)["main"]
    return Bindings(result).value(result.body.body)
