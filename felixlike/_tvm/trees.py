"""Looking at TVM's expressions, statements and functions, and exchanging parts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from felixlike._tvm.names import IRModule, PrimFunc, runtime, structural_map, structural_walk, sym, tirx


def identity(value: Any) -> int | None:
    """The same number for two handles of one TVM object, as long as it lives; None for plain Python values.

    Random variables of a trace cannot be hashed, and comparing them one by one with same_as is slow."""
    handle = getattr(value, "__chandle__", None)
    return int(handle()) if handle is not None else None


def uses(expression: Any, variable: Any) -> bool:
    """Whether a TVM variable occurs in a TVM expression."""
    return any(other.same_as(variable) for other in found(expression, tirx.Var))


def simplify(expression: Any) -> Any:
    """A PrimExpr as TVM's simplifier leaves it where nothing is known of its variables."""
    return sym.Analyzer().simplify(expression)


def is_spatial(iterator: Any) -> bool:
    """Whether a block's iterator is data-parallel: each of its values computes something of its own."""
    return int(iterator.iter_type) == int(tirx.IterVar.DataPar)


def is_reduction(iterator: Any) -> bool:
    """Whether a block's iterator is reduced over: its values are summed up, or the largest is taken."""
    return int(iterator.iter_type) == int(tirx.IterVar.CommReduce)


def bits(dtype: Any) -> int:
    """Bits of one element of a type of TVM's."""
    return int(runtime.DataType(str(dtype)).bits)


def lanes(dtype: Any) -> int:
    """Elements of a value of a type of TVM's: 1, but of vectors."""
    return int(runtime.DataType(str(dtype)).lanes)


def without_attributes(func: Any, *names: str) -> Any:
    """A PrimFunc without these attributes, whether it has them or not."""
    for name in names:
        if func.attrs and name in func.attrs:
            func = func.without_attr(name)
    return func


def map_functions(module: Any, change: Callable[[Any], Any]) -> Any:
    """The IRModule with every PrimFunc changed; other functions stay."""
    functions = {name: change(f) if isinstance(f, PrimFunc) else f for name, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def found(root: Any, kind: Any) -> list[Any]:
    """All nodes of a kind below a TVM object, itself included, in post-order: what a node holds comes before it, from
    left to right."""
    nodes: list[Any] = []
    structural_walk(root, (kind, nodes.append))
    return nodes


def substituted(root: Any, values: Mapping[Any, Any]) -> Any:
    """A TVM object with expressions or numbers for some of its variables; a number becomes a constant of its variable's
    type.

    values: by variable, told apart as objects (an object's hash is its address in TVM), not by name."""

    def put(variable: Any) -> Any:
        value = values.get(variable, variable)
        return tirx.const(value, str(variable.ty.dtype)) if isinstance(value, int) else value

    return structural_map(root, (tirx.Var, put))


def runs_in_parallel(module: Any) -> bool:
    """Whether code of a lowered IRModule may run on several threads."""
    parallel = tirx.ForKind.PARALLEL
    functions = [f for _, f in module.functions.items() if isinstance(f, PrimFunc)]
    return any(loop.kind == parallel for f in functions for loop in found(f.body, tirx.For))
