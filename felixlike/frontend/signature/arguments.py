"""Describe how a function uses its buffers: which it reads and writes, and which hold indices and their bounds.

Input: a PrimFunc with static shapes. Output: one `Argument` per parameter, in order, from the loads and stores of its
body.
"""

from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel

_DTYPES = frozenset(
    ["bfloat16", "float16", "float32", "float64", "bool"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@dataclass(frozen=True, slots=True)
class Argument:
    """Describe one parameter.

    Attributes:
        name: Name of the parameter.
        shape: Sizes.
        dtype: NumPy's name of the element type, or "bfloat16".
        written: Whether the function stores to it.
        read: Whether the function loads from it, which includes an output that it accumulates in.
        below: Exclusive upper limit of integers that are used as indices, so that all accesses stay in bounds. None
            if its values are not used as indices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    written: bool
    read: bool
    below: int | None

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        size = -(-_tvm.bits(self.dtype) // 8)
        for extent in self.shape:
            size *= extent
        return size


def arguments(func: Any) -> tuple[Argument, ...]:
    """Return the parameters of a PrimFunc.

    Args:
        func: PrimFunc with static shapes.

    Returns:
        One argument per parameter, in order.

    Raises:
        InvalidModel: A parameter is not a buffer, has a dynamic shape or an unsupported dtype, or the function writes
            to none of them.
    """
    accesses = _Accesses(func)
    below = accesses.limits()
    result = tuple(
        _checked(
            Argument(
                name=str(param.name),
                shape=_shape(param),
                dtype=str(param.dtype),
                written=param in accesses.written,
                read=param in accesses.loaded,
                below=below.get(param),
            )
        )
        for param in func.params
    )
    if not any(argument.written for argument in result):
        raise InvalidModel(
            "the function does not write to any of its parameters",
            where="PrimFunc",
            remedy="add the output as the last parameter",
        )
    return result


class _Accesses:
    """Collect loads, stores and bound variables of a function's body.

    Buffers are TVM variables, compared by identity.
    """

    def __init__(self, func: Any) -> None:
        self._load = _tvm.ir.TensorLoad
        self._walk = _tvm.structural_walk
        self.loaded: set[Any] = set()
        self.written: set[Any] = set()
        self._indexed: list[tuple[Any, Any]] = []  # (buffer, indices), of loads and stores
        self._stores: list[tuple[Any, Any]] = []  # (buffer, value)
        self._values: dict[Any, Any] = {}  # variable → the value it is bound to
        self._walk(
            func.body,
            (
                (_tvm.ir.TensorLoad, self._see_load),
                (_tvm.tirx.BufferStore, self._see_store),
                (_tvm.s_tir.SBlock, self._see_block),
                ((_tvm.tirx.Bind, _tvm.tirx.Let), self._see_binding),
            ),
        )

    def limits(self) -> dict[Any, int]:
        """Return, per buffer, the smallest dimension that its values index, directly or through other buffers."""
        limits: dict[Any, int] = {}
        for buffer, indices in self._indexed:
            for index, extent in zip(indices, _shape(buffer), strict=True):
                for source in self._sources(index):
                    limits[source] = min(limits.get(source, extent), extent)
        changed = bool(limits)
        while changed:
            changed = False
            for buffer, value in self._stores:
                if buffer not in limits:
                    continue
                for source in self._sources(value):
                    if limits.get(source, limits[buffer] + 1) > limits[buffer]:
                        limits[source] = limits[buffer]
                        changed = True
        return limits

    def _sources(self, value: Any) -> set[Any]:
        """Return the integer buffers that an expression loads, also through bound variables."""
        sources: set[Any] = set()

        def load(node: Any) -> None:
            if "int" in str(node.source.dtype):
                sources.add(node.source)

        def variable(node: Any) -> None:
            if node in self._values:
                sources.update(self._sources(self._values[node]))

        self._walk(value, ((self._load, load), (_tvm.ir.Var, variable)))
        return sources

    def _see_load(self, node: Any) -> None:
        """Record a load."""
        self.loaded.add(node.source)
        self._indexed.append((node.source, node.indices))

    def _see_store(self, node: Any) -> None:
        """Record a store."""
        self.written.add(node.buffer)
        self._indexed.append((node.buffer, node.indices))
        self._stores.append((node.buffer, node.value))

    def _see_block(self, node: Any) -> None:
        """Record the buffers that a block declares as written."""
        # Opaque code (calls with a buffer's address) shows only in the block's declared regions.
        self.written.update(region.source for region in node.writes)

    def _see_binding(self, node: Any) -> None:
        """Record the value of a bound variable."""
        self._values[node.var] = node.value


def _shape(buffer: Any) -> tuple[int, ...]:
    """Return a buffer's extents.  Raises InvalidModel unless all are numbers."""
    try:
        return tuple(int(extent) for extent in buffer.shape)
    except (TypeError, AttributeError, ValueError):
        raise InvalidModel(
            "the parameter is not a buffer of static shape",
            where=f"parameter {getattr(buffer, 'name', buffer)}",
            remedy="measure a static instance of the function, with buffers as its only parameters",
        ) from None


def _checked(argument: Argument) -> Argument:
    """Return the argument, or raise InvalidModel for an unsupported dtype."""
    if argument.dtype not in _DTYPES:
        raise InvalidModel(
            f"values of dtype {argument.dtype} cannot be generated or compared",
            where=f"parameter {argument.name}",
            remedy="use one of " + ", ".join(sorted(_DTYPES)),
        )
    return argument
