"""Search and transform TVM's expressions, statements and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from felixlike._tvm.names import IRModule, PrimFunc, ir, runtime, structural_map, structural_walk, sym, tirx


def identity(value: Any) -> int | None:
    """Return a number that is equal for two handles of the same live TVM object, or None for plain Python values.

    Random variables of a trace cannot be hashed, and comparing them one by one with same_as is slow.
    """
    handle = getattr(value, "__chandle__", None)
    return int(handle()) if handle is not None else None


def uses(expression: Any, variable: Any) -> bool:
    """Return whether a TVM variable occurs in a TVM expression."""
    return any(other.same_as(variable) for other in found(expression, tirx.Var))


def simplify(expression: Any) -> Any:
    """Return a PrimExpr after TVM's simplifier, without knowledge about its variables."""
    return sym.Analyzer().simplify(expression)


def is_spatial(iterator: Any) -> bool:
    """Return whether a block's iterator is data-parallel: each value computes different elements."""
    return int(iterator.iter_type) == int(tirx.IterVar.DataPar)


def is_reduction(iterator: Any) -> bool:
    """Return whether a block's iterator is reduced over: its values are summed, for example."""
    return int(iterator.iter_type) == int(tirx.IterVar.CommReduce)


def bits(dtype: Any) -> int:
    """Return the bits of an element of a TVM type."""
    return int(runtime.DataType(str(dtype)).bits)


def lanes(dtype: Any) -> int:
    """Return the elements of a value of a TVM type, 1 unless it is a vector."""
    return int(runtime.DataType(str(dtype)).lanes)


def without_attributes(func: Any, *names: str) -> Any:
    """Return a PrimFunc without these attributes, whether it has them or not."""
    for name in names:
        if func.attrs and name in func.attrs:
            func = func.without_attr(name)
    return func


def with_llvm_text(body: Any, *texts: str) -> Any:
    """Return a statement that brings functions in LLVM's language along, which its code may call."""
    for text in texts:
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), body)
    return body


def map_functions(module: Any, change: Callable[[Any], Any]) -> Any:
    """Return the IRModule with `change` applied to every PrimFunc. Other functions are not changed."""
    functions = {name: change(f) if isinstance(f, PrimFunc) else f for name, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def found(root: Any, kind: Any) -> list[Any]:
    """Return all nodes of a kind below a TVM object, itself included, in post-order and from left to right."""
    nodes: list[Any] = []
    structural_walk(root, (kind, nodes.append))
    return nodes


def substituted(root: Any, values: Mapping[Any, Any]) -> Any:
    """Return a TVM object with some of its variables replaced by expressions or numbers.

    A number becomes a constant of its variable's type. The keys of `values` are distinguished as objects, not by name:
    an object's hash is its address in TVM.
    """

    def put(variable: Any) -> Any:
        value = values.get(variable, variable)
        return tirx.const(value, str(variable.ty.dtype)) if isinstance(value, int) else value

    return structural_map(root, (tirx.Var, put))


def runs_in_parallel(module: Any) -> bool:
    """Return whether the code of a lowered IRModule may run on several threads."""
    parallel = tirx.ForKind.PARALLEL
    functions = [f for _, f in module.functions.items() if isinstance(f, PrimFunc)]
    return any(loop.kind == parallel for f in functions for loop in found(f.body, tirx.For))


def calls(root: Any, *operators: str) -> bool:
    """Return whether one of these operators is called below a TVM object."""
    return any(str(getattr(call.op, "name", "")) in operators for call in found(root, ir.Call))
