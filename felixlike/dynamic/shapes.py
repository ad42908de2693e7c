"""Read shapes with dimensions: example sizes to export with, and the positions of each dimension.

Input: example tensors and tuples of sizes with `Dim`s in them or beside them, or an ExportedProgram with ranges.
Output: `DynamicShapes`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from felixlike._util.torch_compat import pytree, size_hint
from felixlike._util.wording import counted, kind_of, shown
from felixlike.dynamic.dims import MOST_SIZES, Dim, check_dims
from felixlike.errors import InvalidDim, InvalidShape
from felixlike.frontend.examples import repeated
from felixlike.frontend.importers.input_shapes import Example, Given, Input, check_names, input_names, read_shapes

_EXAMPLE = 5
"""Least example size where the range allows it: torch treats 0 and 1 as constants. Chosen by hand."""

LEAST_EXPORTED = 2
"""Least size of an example's dynamic dimension: torch.export takes a size of 1 as fixed."""

_UNBOUNDED = 8
"""Ratio of the largest size that a dimension without an upper bound is compiled for to its example's size. Chosen by
hand."""

_HOW = 'pass one entry for each input, as torch.export takes them: dynamic_shapes=({1: fx.Dim("T", range(1, 129))},)'


@dataclass(frozen=True, slots=True)
class DynamicShapes:
    """Shapes of a model with dynamic sizes.

    Attributes:
        given: The examples, with the names of their dynamic dimensions.
        dims: All dimensions by name.
        unbounded: Names of those that had no upper bound.
    """

    given: Given
    dims: Mapping[str, Dim]
    unbounded: tuple[str, ...]


def has_dims(shapes: Any) -> bool:
    """Return whether a Dim occurs anywhere in shapes."""
    if _is_dim(shapes):
        return True
    if isinstance(shapes, Mapping):
        return any(map(has_dims, shapes.values()))
    return isinstance(shapes, list | tuple) and any(map(has_dims, shapes))


def read_dynamic_shapes(
    shapes: Any, dynamic_shapes: Any, names: Sequence[str], rest: str | None = None
) -> DynamicShapes:
    """Parse shapes.

    Args:
        shapes: As for `optimize`, with `Dim`s among the sizes.
        dynamic_shapes: As for `optimize`.
        names: Names of the inputs that can be passed by position.
        rest: Name of the parameter that takes any number of further inputs.

    Raises:
        InvalidDim: A dimension is invalid, or there are none or too many.
        InvalidShape: The shapes or the examples are malformed, or do not match the dimensions.
    """
    reader = _Reader()
    given = read_shapes(reader.without_dims(shapes)) or Given()
    if dynamic_shapes is not None:
        given = reader.marked(given, dynamic_shapes, names, rest)
    dims = {dim.name: dim for dim in check_dims(reader.dims.values())}
    return DynamicShapes(_enlarged(given, dims), dims, tuple(reader.unbounded))


class _Reader:
    """Collect the dimensions of a model's inputs."""

    def __init__(self) -> None:
        self.dims: dict[str, Dim] = {}
        self.unbounded: list[str] = []
        self._used: dict[str, tuple[int, str]] = {}  # size in an example tensor, and the place of it

    def without_dims(self, shapes: Any) -> Any:
        """Return shapes in which each tuple of sizes with a Dim is an Example."""

        def read(value: Any, where: str) -> Any:
            return self._sized(value, where) if _has_dim(value) else value

        if _has_dim(shapes):
            return read(shapes, "shapes")
        if isinstance(shapes, Mapping):
            return {name: self._nested(value, read, f"shapes[{name!r}]") for name, value in shapes.items()}
        if isinstance(shapes, list | tuple):
            return tuple(self._nested(value, read, f"shapes[{place}]") for place, value in enumerate(shapes))
        return shapes

    @staticmethod
    def _nested(value: Any, read: Any, where: str) -> Any:
        """Apply a function to the leaves of an input that contains a Dim."""
        if not has_dims(value):
            return value
        return pytree().tree_map_with_path(
            lambda path, leaf: read(leaf, f"{where}{pytree().keystr(path)}"), value, is_leaf=_has_dim
        )

    def _sized(self, sizes: Sequence[Any], where: str) -> Example:
        """Return the example of a tuple of sizes with a Dim."""
        shape, dims = [], []
        for place, size in enumerate(sizes):
            if _is_dim(size):
                dim = self._dim(size, None, where)
                dims.append((place, dim.name))
                size = example_size(dim)
            shape.append(size)
        checked = read_shapes((tuple(shape),))
        assert checked is not None
        (example,) = checked.positional[0].examples
        return replace(example, dims=tuple(dims))

    def _dim(self, dim: Any, size: int | None, where: str) -> Dim:
        """Return a dimension.  size: that of the example tensor, if there is one.  Raises InvalidDim."""
        checked = dim if isinstance(dim, Dim) else self._of_torch(dim, size, where)
        previous = self.dims.setdefault(checked.name, checked)
        if previous != checked:
            raise InvalidDim(
                f"two different dimensions have the name {checked.name!r}",
                where=where,
                remedy="give them the same sizes and weights, or different names",
            )
        return checked

    def _of_torch(self, dim: Any, size: int | None, where: str) -> Dim:
        """Return a dimension of torch.export's as a Dim.  Raises InvalidDim for those that depend on others."""
        import torch

        if type(dim) is not torch.export.Dim:
            raise InvalidDim(
                f"expected a dimension with a name and a range, got {dim}",
                where=where,
                remedy='pass fx.Dim("T", range(1, 129)), or a torch.export.Dim with a name',
            )
        if not _is_finite(dim.max) and size is None:
            raise InvalidDim(
                f"dimension {dim.__name__} has no upper bound",
                where=where,
                remedy=f'give it one: torch.export.Dim("{dim.__name__}", max=128)',
            )
        least = max(1, int(dim.min))
        if _is_finite(dim.max):
            return Dim(dim.__name__, _range(least, int(dim.max)))
        if dim.__name__ not in self.unbounded:
            self.unbounded.append(dim.__name__)
        return Dim(dim.__name__, _default_range(least, size or 1))

    def marked(self, given: Given, dynamic: Any, names: Sequence[str], rest: str | None) -> Given:
        """Return the inputs with the dimensions of `dynamic_shapes`.  Raises InvalidDim, InvalidShape."""
        if isinstance(dynamic, Mapping) and dynamic and all(isinstance(key, int) for key in dynamic):
            dynamic = (dynamic,)  # of the only input
        if given.named:
            known = [name for name, _ in given.named]
            if not isinstance(dynamic, Mapping):
                raise InvalidShape(
                    f"the inputs are given by name, but their dynamic sizes as {kind_of(dynamic)}",
                    where="dynamic_shapes",
                    remedy=f"pass a dictionary by name; {input_names(known)}",
                )
            check_names(dynamic, known, required=(), where="dynamic_shapes")
            named = [(name, self._input(v, dynamic.get(name), _entry(name))) for name, v in given.named]
            return replace(given, named=tuple(named))
        count = len(given.positional)
        entries: dict[str | int, Any] = {}
        if isinstance(dynamic, Mapping):
            known = [*names[:count], *([rest] if rest is not None and count > len(names) else [])]
            check_names(dynamic, known, required=(), where="dynamic_shapes")
            entries = {place: dynamic.get(name) for place, name in enumerate(names[:count])}
            further = dynamic.get(rest) if rest is not None and count > len(names) else None
            if further is not None:
                self._check_sequence(further, count - len(names), _entry(rest))
                entries |= {len(names) + place: entry for place, entry in enumerate(further)}
        else:
            self._check_sequence(dynamic, count, "dynamic_shapes")
            entries = dict(enumerate(dynamic))
        positional = [self._input(v, entries.get(i), _entry(i)) for i, v in enumerate(given.positional)]
        return replace(given, positional=tuple(positional))

    @staticmethod
    def _check_sequence(value: Any, count: int, where: str) -> None:
        """Raise InvalidShape unless a value is a sequence of `count` entries."""
        if not isinstance(value, list | tuple):
            raise InvalidShape(f"expected a tuple or a dictionary, got {shown(value)}", where=where, remedy=_HOW)
        if len(value) != count:
            raise InvalidShape(
                f"expected {counted(count, 'entry', 'entries')}, got {len(value)}", where=where, remedy=_HOW
            )

    def _input(self, value: Input, dynamic: Any, where: str) -> Input:
        """Return one input with its dimensions."""
        leaves: list[Any] = list(value.examples)
        for index, constant in value.structure.constants:
            leaves.insert(index, constant)
        spec = value.structure.spec
        if spec is None:
            return replace(value, examples=(self._example(leaves[0], dynamic, where),))
        return replace(value, examples=tuple(self._examples(spec, iter(leaves), dynamic, where)))

    def _examples(self, tree: Any, leaves: Iterator[Any], dynamic: Any, where: str) -> Iterator[Example]:
        """Yield the examples of a part of an input with their dimensions.

        Args:
            tree: torch's TreeSpec of the part.
            leaves: Examples and constants.
            dynamic: The part's dynamic sizes, None without any.
            where: The place of them.
        """
        if tree.is_leaf():
            leaf = next(leaves)
            if isinstance(leaf, Example):
                yield self._example(leaf, dynamic, where)
            elif dynamic is not None:
                raise InvalidShape(f"the input is {shown(leaf)}, which has no sizes", where=where, remedy="pass None")
            return
        children = tree.children()
        parts: Iterable[Any] = [None] * len(children)
        names: Sequence[Any] = range(len(children))
        if dynamic is not None and tree.type in (dict, OrderedDict):
            if not isinstance(dynamic, Mapping):
                raise InvalidShape(f"expected a dictionary, got {shown(dynamic)}", where=where, remedy=_HOW)
            names = list(tree.context)
            unknown = [key for key in dynamic if key not in names]
            if unknown:
                raise InvalidShape(
                    f"there is no {shown(unknown[0])}",
                    where=where,
                    remedy=f"the keys are {', '.join(map(shown, names))}",
                )
            parts = [dynamic.get(key) for key in names]
        elif dynamic is not None:
            self._check_sequence(dynamic, len(children), where)
            parts = dynamic
        for name, child, part in zip(names, children, parts, strict=True):
            yield from self._examples(child, leaves, part, f"{where}[{name!r}]")

    def _example(self, example: Example, dynamic: Any, where: str) -> Example:
        """Return an example tensor with its dimensions.  Raises InvalidDim, InvalidShape."""
        if dynamic is None:
            return example
        rank = len(example.shape)
        if isinstance(dynamic, Mapping):
            wrong = [place for place in dynamic if isinstance(place, bool) or place not in range(rank)]
            if wrong:
                raise InvalidShape(
                    f"there is no dimension {shown(wrong[0])} in a tensor of shape {example.shape}",
                    where=where,
                    remedy=f"dimensions are counted from 0 to {rank - 1}" if rank else "leave it out",
                )
            sizes = dict(dynamic)
        else:
            self._check_sequence(dynamic, rank, where)
            sizes = dict(enumerate(dynamic))
        dims = dict(example.dims)
        for place, size in sizes.items():
            if not self._is_fixed(size, example.shape[place], f"{where}[{place}]"):
                dims[place] = self._placed(size, example.shape[place], f"{where}[{place}]")
        return replace(example, dims=tuple(sorted(dims.items())))

    @staticmethod
    def _is_fixed(size: Any, actual: int, where: str) -> bool:
        """Return whether a size is fixed.  Raises InvalidShape if the example has another one."""
        import torch

        if size is None or (isinstance(size, type(torch.export.Dim.STATIC)) and size == torch.export.Dim.STATIC):
            return True
        if not isinstance(size, int):
            return False
        if size != actual:
            raise InvalidShape(f"the size is {actual} in the example, but {size} here", where=where)
        return True

    def _placed(self, wanted: Any, size: int, where: str) -> str:
        """Return the name of the dimension of an example's size.  Raises InvalidDim, InvalidShape."""
        if not _is_dim(wanted):
            raise InvalidDim(
                f"expected a Dim, got {shown(wanted)}", where=where, remedy='pass fx.Dim("T", range(1, 129))'
            )
        dim = self._dim(wanted, size, where)
        if not dim.least <= size <= dim.most:
            raise InvalidShape(
                f"the example's size is {size}, out of the range {dim.least} to {dim.most} of {dim.name}",
                where=where,
                remedy="pass an example with a size in that range",
            )
        used, first = self._used.setdefault(dim.name, (size, where))
        if used != size:
            raise InvalidShape(
                f"{dim.name} is {used} in the example of {first}, but {size} here",
                where=where,
                remedy=f"pass examples with equal {dim.name}",
            )
        return dim.name


def _entry(name: str | int | None) -> str:
    """Return the place of an entry for messages."""
    return f"dynamic_shapes[{name!r}]"


def _enlarged(given: Given, dims: Mapping[str, Dim]) -> Given:
    """Return examples of size 1 repeated along dynamic dimensions: torch.export takes a size of 1 as fixed."""

    def enlarged(example: Example) -> Example:
        larger = {p: example_size(dims[n]) for p, n in example.dims if example.shape[p] == 1}
        if not larger or example.value is None:
            return example
        value = repeated(example.value, larger)
        return replace(example, shape=tuple(value.shape), value=value)

    def of(value: Input) -> Input:
        return replace(value, examples=tuple(map(enlarged, value.examples)))

    return Given(tuple(map(of, given.positional)), tuple((name, of(value)) for name, value in given.named))


def example_size(dim: Dim) -> int:
    """Return a size to export with, 2 or more if possible."""
    return min(max(dim.least, _EXAMPLE), max(dim.most, LEAST_EXPORTED))


def dims_of_program(program: Any) -> tuple[tuple[Dim, ...], tuple[str, ...]]:
    """Return the dimensions of an ExportedProgram, and the names of those without an upper bound.

    Raise InvalidDim for a dimension without an upper bound and without an example.
    """
    dims, unbounded = [], []
    for symbol, span in program.range_constraints.items():
        if not symbol.is_symbol:  # such as s0 + 1, whose range follows from that of s0
            continue
        name, least = str(symbol), max(1, int(span.lower)) if _is_finite(span.lower) else 1
        if _is_finite(span.upper):
            sizes = _range(least, int(span.upper))
        else:
            unbounded.append(name)
            sizes = _default_range(least, _example_of(program, name))
        dims.append(Dim(name, sizes))
    return check_dims(dims), tuple(unbounded)


def _default_range(least: int, example: int) -> Sequence[int]:
    """Return the sizes to compile for of a dimension without an upper bound.  example: its size in the example."""
    return _range(least, max(least, _UNBOUNDED * example))


def _range(least: int, most: int) -> Sequence[int]:
    """Return the sizes of a range, spread evenly if there are more than a Dim can have."""
    count = min(most - least + 1, MOST_SIZES)
    return (
        range(least, most + 1)
        if most - least < count
        else [least + i * (most - least) // (count - 1) for i in range(count)]
    )


def _example_of(program: Any, symbol: str) -> int:
    """Return the size of a symbol in a program's example inputs.  Raise InvalidDim without any."""
    place, name = _place(program, symbol)
    values = {str(node.name): node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    hint = size_hint(values[name].shape[place]) if name in values else None
    inputs = pytree().tree_leaves(program.example_inputs) if program.example_inputs else []
    if hint is None and name in (users := list(program.graph_signature.user_inputs)) and len(inputs) == len(users):
        hint = int(inputs[users.index(name)].shape[place])
    if hint is None:
        bounded = f'dynamic_shapes={{"{name}": {{{place}: torch.export.Dim("N", max=64)}}}}'
        raise InvalidDim(
            f"dimension {place} of {name} has neither an upper bound nor an example",
            where="ExportedProgram",
            remedy=f"export it with a bound: {bounded}",
        )
    return hint


def _place(program: Any, symbol: Any) -> tuple[int, str]:
    """Return the first position and input with this size."""
    for node in program.graph.find_nodes(op="placeholder"):
        for place, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if str(size) == str(symbol):
                return place, str(node.name)
    return 0, str(symbol)


def is_dynamic_program(model: Any) -> bool:
    """Return whether a model is an ExportedProgram with dynamic sizes."""
    import torch

    return isinstance(model, torch.export.ExportedProgram) and bool(model.range_constraints)


def _is_finite(bound: Any) -> bool:
    """Return whether an upper bound is below 2³¹."""
    try:
        return int(bound) < 2**31
    except (OverflowError, TypeError, ValueError, AttributeError):
        return False


def _is_dim(value: Any) -> bool:
    """Return whether a value is a dimension, of felixlike's or of torch.export's."""
    import torch

    return isinstance(value, Dim | torch.export.Dim)


def _has_dim(value: Any) -> bool:
    """Return whether a value is a tuple of sizes with a Dim."""
    return isinstance(value, list | tuple) and any(map(_is_dim, value))
