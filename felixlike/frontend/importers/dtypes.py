"""Check element types, and correct the types that TVM's importer gives to operators.

Input: the graph of an ExportedProgram, and converters. Output: an UnsupportedOperator that names dtype and operator,
or converters whose values have PyTorch's dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel, UnsupportedOperator
from felixlike.frontend.importers.graphs import graphs_of
from felixlike.frontend.importers.input_shapes import DTYPES

_KNOWN = ", ".join(DTYPES)
_IMPRECISE = ("upsample_bilinear", "grid_sampler")
"""Operators that TVM computes in float32 regardless of their operands' dtype."""

Converter = Callable[[Any, Any], Any]


def check_tensor(tensor: Any, *, what: str, where: str) -> None:
    """Raise InvalidModel for a tensor whose dtype is not one of DTYPES."""
    name = _name(tensor.dtype)
    if name not in DTYPES:
        raise InvalidModel(
            f"{what} has the unsupported dtype {name}", where=where, remedy=f"convert it to one of {_KNOWN}"
        )


def check_dtypes(program: Any, where: str) -> None:
    """Raise InvalidModel for inputs and constants, and UnsupportedOperator for operators, of unsupported dtypes."""
    inputs = set(program.graph_signature.user_inputs)
    for node in (node for graph in graphs_of(program) for node in graph.nodes):
        for value in _tensors(node.meta.get("val")):
            if node.op == "placeholder":
                kind = "input" if node.name in inputs else "constant"
                check_tensor(value, what=f"{kind} {node.name!r}", where=where)
            elif _name(value.dtype) not in DTYPES:
                raise UnsupportedOperator(
                    f"{node.target} returns the unsupported dtype {_name(value.dtype)}",
                    where=where,
                    remedy=f"use one of {_KNOWN}",
                )
            elif _name(value.dtype) == "float64" and str(node.target).startswith(
                tuple(f"aten.{n}" for n in _IMPRECISE)
            ):
                raise UnsupportedOperator(
                    f"TVM would compute {node.target} of float64 in float32",
                    where=where,
                    remedy="convert the operand: x.float()",
                )


def with_right_types(own: Mapping[str, Converter], names: set[str], where: str) -> dict[str, Converter]:
    """Return converters for these operators, from `own` or TVM's importer, whose values have the graph's dtypes.

    Integers and booleans of another dtype are converted. Floats are never widened, because they have lost digits: the
    operator is refused by name.
    """
    builtin: dict[int, dict[str, Any]] = {}

    def convert(name: str) -> Converter:
        def converted(node: Any, importer: Any) -> Any:
            if name in own:
                return _typed(own[name](node, importer), node, importer, where)
            if id(importer) not in builtin:
                builtin[id(importer)] = importer.create_convert_map()
            return _typed(builtin[id(importer)][name](node), node, importer, where)

        return converted

    return {name: convert(name) for name in names}


_NO_STATISTICS = frozenset(
    f"output {index} of aten.native_{norm}_norm.default" for norm in ("layer", "group") for index in (1, 2)
)
"""Means and 1/σ of norms, for which TVM's importer returns zeros."""


def _typed(value: Any, node: Any, importer: Any, where: str) -> Any:
    """Return the value in the graph's dtype.  Raises UnsupportedOperator for a float that would be too imprecise."""
    expected = node.meta.get("val")
    kind = getattr(value, "ty", None)
    if not hasattr(expected, "dtype") or not isinstance(kind, _tvm.relax.TensorType) or not node.users:
        return value
    if _operator(node) in _NO_STATISTICS:
        raise UnsupportedOperator(
            f"TVM's importer does not compute {_operator(node)}",
            where=where,
            remedy="compute means and deviations with torch.var_mean",
        )
    _check_sizes(kind, expected, node, where)
    want, have = _name(expected.dtype), str(kind.dtype)
    if want == have:
        return value
    if "float" not in have or (have == "float64" and want == "float32"):
        return importer.block_builder.emit(_tvm.relax.op.astype(value, want))
    raise UnsupportedOperator(
        f"{_operator(node)} has dtype {want}, but TVM's importer computes it in {have}",
        where=where,
        remedy="rewrite that part with other operators, or in float32",
    )


def _check_sizes(kind: Any, expected: Any, node: Any, where: str) -> None:
    """Raise UnsupportedOperator for another shape than PyTorch's, which a bug in TVM's importer would cause."""
    want = [*expected.shape]
    if kind.shape is None or not all(isinstance(size, int) for size in want):
        return
    have = [getattr(size, "value", size) for size in getattr(kind.shape, "values", ())]
    if all(isinstance(size, int) for size in have) and have != want:
        raise UnsupportedOperator(
            f"{_operator(node)} has shape {want}, but TVM's importer infers {have}",
            where=where,
            remedy="rewrite that part with other operators",
        )


def _operator(node: Any) -> str:
    """Return the name of a node's operator, or of the operator whose tuple it indexes."""
    is_getitem = getattr(node.target, "__name__", "") == "getitem"
    return f"output {node.args[1]} of {node.args[0].target}" if is_getitem else str(node.target)


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors of a node's value."""
    import torch

    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, torch.Tensor):
            yield item


def _name(dtype: Any) -> str:
    """Return a dtype's name without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")
