"""Read the `shapes` argument and match it to a model's inputs.

Input: example tensors, sizes, or either by name, from Python or the command line. Output: one `Example` per tensor,
nested as the user nested them with constants between, or an `InvalidShape` that names the wrong entry.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from felixlike._util.torch_compat import is_fake, pytree
from felixlike._util.wording import advice, counted, kind_of, shown
from felixlike.errors import InvalidOption, InvalidShape
from felixlike.frontend.imported import InputSpec
from felixlike.frontend.signature.nesting import quoted
from felixlike.frontend.signature.structure import SCALARS, Structure, structure_from_leaves
from felixlike.hardware.probe import free_memory_bytes

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Supported element types of inputs."""

_DTYPES = ", ".join(DTYPES)

_HOW = "pass example tensors, or sizes: shapes=((1, 3, 224, 224),), or by name: shapes={'x': (1, 3, 224, 224)}"
"""Remedy for wrong shapes in Python. The command builds its shapes from text."""
_NESTED = (
    "pass tensors, sizes, None, numbers or strings, in tuples, lists, dictionaries or classes registered as torch"
    " pytrees (torch.export.register_dataclass registers a dataclass)"
)
_SIZES = re.compile(r"\d+([x×]\d+)+")
_TEXT = re.compile(r"(?:(?P<name>[^=:]+)=)?(?P<sizes>scalar|[^=:]+)(?::(?P<dtype>[^=:]+))?")


@dataclass(frozen=True, slots=True)
class Example:
    """Describe one input tensor.

    `value` is the user's own tensor, or None if only its sizes are known. `dims` has the position and the name of each
    dimension whose size differs between calls.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    value: Any = field(default=None, compare=False)
    dims: tuple[tuple[int, str], ...] = ()

    def tensor(self) -> Any:
        """Return the user's tensor, or make one: normal random floats from a fixed seed, zeros of other dtypes.

        Raises InvalidShape if the tensor needs more memory than is available.
        """
        if self.value is not None:
            return self.value
        import torch

        dtype = getattr(torch, self.dtype)
        size, free = math.prod(self.shape) * dtype.itemsize, free_memory_bytes()
        if free is not None and size > free:
            available = f"{free / 2**30:.1f} GiB are available"
            raise InvalidShape(
                f"an input of shape {self.shape} needs {size / 2**30:.1f} GiB, but only {available}",
                where="shapes",
                remedy="use smaller sizes, or optimize the model on a machine with more memory",
            )
        if not dtype.is_floating_point:
            return torch.zeros(self.shape, dtype=dtype)
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@dataclass(frozen=True, slots=True)
class Input:
    """Hold the value of one parameter: its example tensors, their nesting and the constants between them."""

    examples: tuple[Example, ...]
    structure: Structure = field(default_factory=Structure)

    def value(self) -> Any:
        """Return the argument itself, with a tensor for each example."""
        return self.structure.builder()([example.tensor() for example in self.examples])

    def alone(self, where: str) -> Example:
        """Return the only example.  Raises InvalidShape if there are several examples or constants."""
        if self.structure.spec is None:
            return self.examples[0]
        raise InvalidShape(
            f"expected a tensor or a tuple of sizes, got {kind_of(self.value())}",
            where=where,
            remedy="pass a tensor: models of this kind take only tensors",
        )


@dataclass(frozen=True, slots=True)
class Given:
    """Hold all inputs as the user passed them, either by position or by name."""

    positional: tuple[Input, ...] = ()
    named: tuple[tuple[str, Input], ...] = ()

    @property
    def only_sizes(self) -> bool:
        """True if there is no example tensor, so that every dtype was assumed."""
        inputs = (*self.positional, *(value for _, value in self.named))
        return all(example.value is None for value in inputs for example in value.examples)


def made(examples: Iterable[Example]) -> frozenset[int]:
    """Return the indices of the examples without a tensor of the user's."""
    return frozenset(index for index, example in enumerate(examples) if example.value is None)


def either(shapes: Any, example_inputs: Any) -> Any:
    """Return whichever of the two aliases was passed.  Raises InvalidOption for both."""
    if shapes is not None and example_inputs is not None:
        raise InvalidOption(
            "shapes and example_inputs are two names for the same argument, but both are given",
            where="example_inputs",
            remedy="pass only one of them",
        )
    return example_inputs if shapes is None else shapes


def read_shapes(shapes: Any) -> Given | None:
    """Parse the user's `shapes` argument.

    Args:
        shapes: One of: a tensor; sizes of the only input, as a tuple of integers; a sequence with an entry for each
            input; a mapping from input names to entries; None. An entry is a tensor or NumPy array, sizes (of a
            float32 tensor), a constant (None, bool, number, string), or tuples, lists, dictionaries and classes of
            these, nested as the model expects them.

    Returns:
        The parsed inputs, or None for None.

    Raises:
        InvalidShape: An entry is malformed.
    """
    if shapes is None or isinstance(shapes, Given):
        return shapes
    if isinstance(shapes, Mapping):
        return Given(
            named=tuple((_name(name), _input(value, where=f"shapes[{name!r}]")) for name, value in shapes.items())
        )
    if _is_single(shapes):
        return Given(positional=(_alone(_leaf(shapes, where="shapes")),))
    if isinstance(shapes, Sequence) and not isinstance(shapes, str | bytes):
        return Given(positional=tuple(_input(value, where=f"shapes[{i}]") for i, value in enumerate(shapes)))
    raise InvalidShape(f"expected shapes or example tensors, got {_show(shapes)}", where="shapes", remedy=_HOW)


def parse_shapes(texts: Sequence[str], dims: Mapping[str, int] = MappingProxyType({})) -> Given | None:
    """Parse the `--shape` options of the command line.

    Args:
        texts: Such as "1x3x224x224", "x=1x3x224x224", "ids=1x64:int64" or "t=scalar". Either all have names or none.
        dims: Example sizes of dynamic dimensions by name. A name in a text stands for the dimension: "ids=1xT:int64".

    Returns:
        The parsed inputs, or None if `texts` is empty.

    Raises:
        InvalidShape: A text is malformed, only some inputs are named, or a name occurs twice.

    Example:
        >>> parse_shapes(["ids=1x64:int64"]).named[0][1].examples[0].shape
        (1, 64)
    """
    parsed = [_parse(text, dims) for text in texts]
    if not parsed:
        return None
    names = [name for name, _ in parsed if name is not None]
    if not names:
        return Given(positional=tuple(_alone(example) for _, example in parsed))
    if len(names) < len(parsed):
        raise InvalidShape(
            "some inputs are named and some are not", where="shapes", remedy="name all of them: x=1x3x224x224"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidShape(f"input {twice[0]!r} is given twice", where="shapes")
    return Given(named=tuple((name or "", _alone(example)) for name, example in parsed))


def match_known(given: Given | None, specs: Sequence[InputSpec], *, where: str) -> tuple[Example, ...]:
    """Return one `Example` per input of a model with known inputs.

    The user's inputs must match `specs`. `where` is the model's name in messages. Raises InvalidShape.
    """
    if given is None:
        return tuple(Example(spec.shape, spec.dtype) for spec in specs)
    names = [spec.name for spec in specs]
    if given.named:
        by_name = dict(given.named)
        check_names(by_name, names, required=names, where=where)
        examples = tuple(by_name[name].alone(f"input {name!r}") for name in names)
    else:
        check_count(len(given.positional), names, required=len(names), where=where)
        examples = tuple(value.alone(f"input {name!r}") for name, value in zip(names, given.positional, strict=True))
    for spec, example in zip(specs, examples, strict=True):
        if example.shape != spec.shape:
            raise InvalidShape(
                f"input {quoted(spec.name)} has shape {spec.shape}, but {example.shape} was given",
                where=where,
                remedy="the model has fixed shapes: omit the shapes, or export the model with other ones",
            )
        if example.value is not None and example.dtype != spec.dtype:
            raise InvalidShape(
                f"input {quoted(spec.name)} has dtype {spec.dtype}, but {example.dtype} was given", where=where
            )
    return tuple(
        example if example.value is not None else Example(spec.shape, spec.dtype)
        for spec, example in zip(specs, examples, strict=True)
    )


def check_names(
    given: Mapping[str, Any], known: Sequence[str], *, required: Sequence[str], where: str, hint: str = ""
) -> None:
    """Raise InvalidShape for an unknown name or a required input without an entry.  hint: text added to the remedy."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InvalidShape(
            f"there is no input {unknown[0]!r}",
            where=where,
            remedy=f"{input_names(known)}{advice(hint, '')}",
        )
    missing = [name for name in required if name not in given]
    if missing:
        raise InvalidShape(f"input {missing[0]!r} is missing", where=where, remedy=input_names(known))


def check_count(count: int, known: Sequence[str], *, required: int, where: str) -> None:
    """Raise InvalidShape unless the number of entries is between `required` and the number of known inputs."""
    if required <= count <= len(known):
        return
    expected = "" if required == len(known) else f"{required} to "
    entry = advice("one entry of shapes", "one --shape")
    raise InvalidShape(
        f"expected {expected}{counted(len(known), 'input')}, got {count}",
        where=where,
        remedy=f"{input_names(known)}; pass {entry} for each" if known else input_names(known),
    )


def input_names(names: Sequence[str]) -> str:
    """Return the remedy that lists a model's inputs."""
    return f"the model's inputs are {', '.join(names)}" if names else "the model has no inputs"


def _is_single(shapes: Any) -> bool:
    """Return True for one tensor or one tuple of sizes, False for a sequence with an entry for each input."""
    if _is_tensor(shapes) or isinstance(shapes, Example):
        return True
    if not isinstance(shapes, Sequence) or isinstance(shapes, str | bytes) or not shapes:
        return False
    return all(map(_is_scalar, shapes))


def _is_sizes(value: Any) -> bool:
    """Return True for a flat sequence of scalars that is empty or has an integer, False for a nested input."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or hasattr(value, "_fields"):
        return False
    integers = [not isinstance(part, bool) and hasattr(part, "__index__") for part in value if _is_scalar(part)]
    return len(integers) == len(value) and (any(integers) or not value)


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a constant or an integer-like number."""
    return isinstance(value, SCALARS) or (hasattr(value, "__index__") and not _is_tensor(value))


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor or NumPy array."""
    import torch

    return isinstance(value, torch.Tensor | np.ndarray)


def _name(name: Any) -> str:
    """Return an input's name.  Raises InvalidShape unless it is a string."""
    if not isinstance(name, str):
        raise InvalidShape(f"expected the name of an input as key, got {_show(name)}", where="shapes", remedy=_HOW)
    return name


def _alone(example: Example) -> Input:
    """Return an input that consists of one tensor."""
    return Input((example,))


def _input(value: Any, *, where: str) -> Input:
    """Parse one entry.  Raises InvalidShape."""
    if isinstance(value, Mapping) and type(value) not in pytree().SUPPORTED_NODES:
        value = dict(value)  # such as the BatchEncoding of transformers' tokenizers
    pairs, spec = pytree().tree_flatten_with_path(value, is_leaf=_is_sizes)
    leaves = [_leaf(leaf, where=f"{where}{pytree().keystr(path)}") for path, leaf in pairs]
    return Input(tuple(leaf for leaf in leaves if isinstance(leaf, Example)), structure_from_leaves(spec, leaves))


def _leaf(value: Any, *, where: str) -> Any:
    """Parse a leaf into an `Example`, or return a constant unchanged.  Raises InvalidShape."""
    if isinstance(value, Example):
        return value
    if _is_tensor(value):
        return _tensor_example(value, where=where)
    if _is_sizes(value) or (where == "shapes" and _is_single(value)):
        return Example(tuple(_size(size, where=where) for size in value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, SCALARS) and not (isinstance(value, str) and _SIZES.fullmatch(value)):
        return value
    known = isinstance(value, SCALARS)
    raise InvalidShape(
        f"expected a tensor or a tuple of sizes, got {_show(value)}", where=where, remedy=_HOW if known else _NESTED
    )


def _tensor_example(value: Any, *, where: str) -> Example:
    """Return the example of a dense CPU or CUDA tensor or a NumPy array.  Raises InvalidShape for others."""
    if isinstance(value, np.ndarray):
        value = _from_numpy(value, where=where)
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise InvalidShape(f"tensors of dtype {dtype} are not supported", where=where, remedy=f"use one of {_DTYPES}")
    if value.device.type == "cuda":
        value = value.cpu()
    if is_fake(value):
        raise InvalidShape(
            "the example tensor is a FakeTensor, which has no values",
            where=where,
            remedy=f"pass its sizes, {tuple(value.shape)}, or a tensor created outside of FakeTensorMode",
        )
    if value.device.type != "cpu" or str(value.layout) != "torch.strided":
        raise InvalidShape(
            f"the example tensor has layout {value.layout} on device {value.device}",
            where=where,
            remedy="pass a dense tensor on the CPU",
        )
    if value.is_nested:
        raise InvalidShape("the example tensor is a nested tensor", where=where, remedy="pass a dense tensor")
    for size in value.shape:
        _size(int(size), where=where)
    value = value.detach()
    return Example(tuple(value.shape), dtype, value.clone() if value.is_inference() else value)


def _from_numpy(array: Any, *, where: str) -> Any:
    """Convert a NumPy array to a tensor of the same dtype."""
    import torch

    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError:
        raise InvalidShape(
            f"arrays of dtype {array.dtype} are not supported", where=where, remedy=f"use one of {_DTYPES}"
        ) from None


def _size(size: Any, *, where: str) -> int:
    """Return a size as an int.  Raises InvalidShape unless it is a positive integer."""
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise InvalidShape(f"expected an integer as size, got {_show(size)}", where=where, remedy=_static())
    number = int(size.__index__())
    if number < 1:
        raise InvalidShape(f"size {number} is not positive", where=where, remedy=_static())
    return number


def _static() -> str:
    """Return the remedy for a size that is not a positive integer."""
    sizes = "pass every size as a positive integer"
    return advice(f"{sizes}, or as a Dim in a tuple of sizes", f"{sizes}: --shape x=1x3x224x224")


def _parse(text: str, dims: Mapping[str, int]) -> tuple[str | None, Example]:
    """Parse one `--shape` text into a name and an example.  Raises InvalidShape."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidShape(
            f"cannot parse the shape {text!r}", where="shapes", remedy="write x=1x3x224x224 or ids=1x64:int64"
        )
    name, sizes, dtype = match["name"], match["sizes"], match["dtype"] or "float32"
    if dtype not in DTYPES:
        raise InvalidShape(f"unknown dtype {dtype!r}", where=text, remedy=f"use one of {_DTYPES}")
    if sizes == "scalar":
        return name, Example((), dtype)
    parts = re.split("[x×]", sizes)
    if not all(part in dims or re.fullmatch(r"-?\d{1,18}", part) for part in parts):
        raise InvalidShape(
            f"cannot parse the sizes {sizes!r}", where=text, remedy="write integers separated by x: 1x3x224x224"
        )
    shape = tuple(dims[part] if part in dims else _size(int(part), where=text) for part in parts)
    return name, Example(shape, dtype, dims=tuple((i, part) for i, part in enumerate(parts) if part in dims))


def _show(value: Any) -> str:
    """Return a value for a message."""
    return shown(value) if isinstance(value, (*SCALARS, Sequence, type)) else kind_of(value)
