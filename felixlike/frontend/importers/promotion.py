"""Cast operands to the dtypes that PyTorch computes in.

Input: an ExportedProgram. Output: the same, with casts where PyTorch promotes operands implicitly: an int32 tensor
times 2.5 is float32, the sum of booleans int64. TVM's importer computes in the dtype of the first operand. Whole
numbers beside integers wrap: an int8 plus 300 is an int8 plus 44.
"""

from __future__ import annotations

from typing import Any

from felixlike.frontend.importers.graphs import graphs_of

_ELEMENTWISE = {
    *(f"{name}.{kind}" for name in ("add", "sub", "mul", "div") for kind in ("Tensor", "Scalar")),
    *(
        "pow.Scalar",
        "pow.Tensor_Scalar",
        "pow.Tensor_Tensor",
        "div.Tensor_mode",
        "remainder.Tensor",
        "remainder.Scalar",
    ),
    *("fmod.Tensor", "fmod.Scalar", "floor_divide.default", "maximum.default", "minimum.default", "where.self"),
    *(f"{name}.default" for name in ("sigmoid", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt")),
    *(f"{name}.default" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf")),
    *("reciprocal.default", "clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default"),
    *("atan2.default", "cat.default", "stack.default"),
}
"""Operators whose operands PyTorch promotes to the dtype of the result."""

_SUMS = {
    "sum.default",
    "sum.dim_IntList",
    "cumsum.default",
    "cumprod.default",
    "prod.default",
    "prod.dim_int",
    "mean.default",
    "mean.dim",
}
"""Reductions whose first operand has the dtype of the result."""

_COMPARISONS = {f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}
"""Operators whose operands PyTorch promotes to a common dtype."""

_BITWISE = {f"bitwise_{name}.Scalar" for name in ("and", "or", "xor")}
_QUOTIENTS = {"div.Tensor", "div.Scalar"}  # computed with floats
_BESIDE_NUMBERS = (_ELEMENTWISE | _COMPARISONS | _BITWISE) - _QUOTIENTS
"""Operators of integers beside which whole numbers wrap."""

_OF_BOOLEANS = {
    "add.Tensor": "logical_or",
    "maximum.default": "logical_or",
    "mul.Tensor": "logical_and",
    "minimum.default": "logical_and",
}
"""Logical operators that replace arithmetic of two booleans, which TVM cannot compile."""


def promote(program: Any) -> None:
    """Cast operands to the dtype that PyTorch computes in. Modifies the program's graphs."""
    for graph in graphs_of(program):
        _promote(graph)


def _promote(graph: Any) -> None:
    """Cast the operands in a graph."""
    import torch

    for node in list(graph.nodes):
        _wrap(node)
        result = node.meta.get("val") if node.op == "call_function" else None
        name = getattr(node.target, "__name__", "")
        if not isinstance(result, torch.Tensor):
            continue
        if name in _OF_BOOLEANS and result.dtype == torch.bool:
            node.target = getattr(torch.ops.aten, _OF_BOOLEANS[name]).default
        elif name in _ELEMENTWISE or name in _SUMS or name in _COMPARISONS:
            dtype = torch.result_type(*map(_value, node.args)) if name in _COMPARISONS else result.dtype
            if name in _COMPARISONS and dtype == torch.bool:
                dtype = torch.uint8  # TVM cannot compile comparisons of booleans
            excluded = node.args[:1] if name == "where.self" else node.args[1:] if name in _SUMS else ()
            for operand in [candidate for candidate in node.all_input_nodes if candidate not in excluded]:
                value = operand.meta.get("val")
                if isinstance(value, torch.Tensor) and value.dtype != dtype:
                    with graph.inserting_before(node):
                        node.replace_input_with(operand, cast(graph, operand, dtype))


def _wrap(node: Any) -> None:
    """Replace the whole numbers beside integers by those that they wrap to."""
    import torch

    if getattr(node.target, "__name__", "") not in _BESIDE_NUMBERS:
        return
    operands = [_value(argument) for argument in node.args if argument is not None]
    if not all(isinstance(operand, torch.Tensor | int | float) for operand in operands):
        return  # of stacks, or dynamic sizes
    dtype = torch.result_type(*operands[:2]) if len(operands) > 1 else operands[0].dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    node.args = tuple(
        (argument - low) % (high - low + 1) + low if type(argument) is int else argument for argument in node.args
    )


def cast(graph: Any, node: Any, dtype: Any) -> Any:
    """Insert a node that casts another node's result to a dtype, at the graph's insertion point."""
    import torch

    converted = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    converted.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    return converted


def _value(argument: Any) -> Any:
    """Return the tensor of a node's result, or the number itself."""
    return argument.meta["val"] if hasattr(argument, "meta") else argument
