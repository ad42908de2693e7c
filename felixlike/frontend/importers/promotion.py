"""Operands in the types that PyTorch computes in.

In: the graph of an ExportedProgram. Out: the same graph, with casts where PyTorch promotes operands by itself: an int32
tensor times 2.5 is float32, the sum of booleans int64. TVM's importer computes in the type of the first operand.
"""

from __future__ import annotations

from typing import Any

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
    *("atan2.default", "hypot.default", "cat.default", "stack.default"),
}
"""Their operands have the type of their result, in PyTorch."""

_SUMS = {
    "sum.default",
    "sum.dim_IntList",
    "cumsum.default",
    "cumprod.default",
    "prod.dim_int",
    "mean.default",
    "mean.dim",
}
"""What is summed has the type of the sum."""

_COMPARISONS = {f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}
"""Their operands have the type that sums of them would have."""

_OF_BOOLEANS = {"add.Tensor": "logical_or", "mul.Tensor": "logical_and"}
"""What PyTorch makes of two booleans; TVM compiles no arithmetic of theirs."""


def promote(program: Any) -> None:
    """Cast operands, in the graph of the program itself, which stays a graph of the same program."""
    import torch

    graph = program.graph
    for node in list(graph.nodes):
        result = node.meta.get("val") if node.op == "call_function" else None
        name = getattr(node.target, "__name__", "")
        if not isinstance(result, torch.Tensor):
            continue
        if name in _OF_BOOLEANS and result.dtype == torch.bool:
            node.target = getattr(torch.ops.aten, _OF_BOOLEANS[name]).default
        elif name in _ELEMENTWISE or name in _SUMS or name in _COMPARISONS:
            wanted = torch.result_type(*map(_value, node.args)) if name in _COMPARISONS else result.dtype
            apart = node.args[:1] if name == "where.self" else node.args[1:] if name in _SUMS else ()
            for operand in [given for given in node.all_input_nodes if given not in apart]:
                value = operand.meta.get("val")
                if isinstance(value, torch.Tensor) and value.dtype != wanted:
                    with graph.inserting_before(node):
                        node.replace_input_with(operand, cast(graph, operand, wanted))


def cast(graph: Any, node: Any, dtype: Any) -> Any:
    """A new node, at the place where the graph inserts them, with the result of another in a type."""
    import torch

    found = graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    found.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    return found


def _value(argument: Any) -> Any:
    """The tensor of a node's result, or the number itself."""
    return argument.meta["val"] if hasattr(argument, "meta") else argument
