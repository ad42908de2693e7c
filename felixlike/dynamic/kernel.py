"""One operator compiled for every size: a function of torch tensors.

In: a kernel's library, its dimensions, its tree. Out: `DynamicKernel`. Sizes are read off the tensors and checked: they
must be in range, and the same wherever a dimension stands. Constants are packed when they are first seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import kind_of
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.dispatch import Tree, choose, describe
from felixlike.dynamic.stages import Stage
from felixlike.errors import InputMismatch
from felixlike.hardware.placement import pin_threads

if TYPE_CHECKING:
    import torch

Size = int | str | None
"""A size of a buffer: a number, the name of a dimension, or None where it follows from others."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a kernel came about.  stages: what FTuner's filter kept.  tiles: uKernels that there is code for.  programs:
    that were ranked.  measured: timings that were taken.  seconds: that all took.  agreement: Kendall's τ between
    predicted and measured seconds.  among_top: share of the timed sizes at which the fastest program is among the ten
    best by SIA.  repaired: sizes at which the tree was changed after it had been timed."""

    stages: tuple[Stage, ...]
    tiles: int
    programs: int
    measured: int
    seconds: float
    agreement: float
    among_top: float
    repaired: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """name, shape, dtype of a parameter."""

    name: str
    shape: tuple[Size, ...]
    dtype: str


@dataclass(eq=False)
class DynamicKernel:
    """Call it with a tensor for each input, in order; it gives the output.

    dims: the dimensions that a call decides.  buffers: of the inputs and, last, the output.  tree: which program serves
    which sizes, by `symbols`, the names of the dimensions in the kernel's order.  tiles: (rows, vectors)
    of the uKernels in its code; blocks on a GPU.  report: how it came about.  device: torch's name of where it runs."""

    name: str
    library: Any
    dims: tuple[Dim, ...]
    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[int, ...]
    packed_shape: tuple[int, ...]
    tree: Tree[Any]
    tiles: tuple[Any, ...]
    report: Report
    device: str = "cpu"
    _packed: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._run = self.library["main"]
        self._by_name = {dim.name: dim for dim in self.dims}

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The output for inputs of any size in range.  Raises InputMismatch."""
        import torch

        sizes = self.sizes(tensors)
        output = self.buffers[-1]
        shape = [self._size(size, sizes) for size in output.shape]
        result = torch.empty(shape, dtype=getattr(torch, output.dtype), device=self.device)
        given = [tensor.contiguous() for tensor in tensors]
        for index in self.constants:
            given[index] = self._pack(given[index])
        if self.device == "cpu":
            pin_threads()
        self._run(*given, result)
        return result

    def sizes(self, tensors: Sequence[Any]) -> dict[str, int]:
        """The size of each dimension in a call.  Raises InputMismatch for tensors that do not fit."""
        import torch

        inputs = self.buffers[:-1]
        if len(tensors) != len(inputs):
            raise InputMismatch(f"{len(tensors)} inputs are given, {len(inputs)} needed", where=self.name)
        found: dict[str, tuple[int, str]] = {}
        for buffer, tensor in zip(inputs, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise self._mismatch(buffer, f"is {kind_of(tensor)}", "give a torch tensor")
            if tensor.dtype is not getattr(torch, buffer.dtype) or tensor.device.type != self.device:
                where = "the CPU" if self.device == "cpu" else self.device
                raise self._mismatch(buffer, f"is {tensor.dtype} on {tensor.device}", f"give {buffer.dtype} on {where}")
            if len(tensor.shape) != len(buffer.shape):
                raise self._mismatch(buffer, f"has shape {tuple(tensor.shape)}", f"give {_shown(buffer.shape)}")
            for size, wanted in zip(tensor.shape, buffer.shape, strict=True):
                if isinstance(wanted, str):
                    self._note(found, wanted, int(size), buffer)
                elif wanted is not None and size != wanted:
                    raise self._mismatch(buffer, f"has shape {tuple(tensor.shape)}", f"give {_shown(buffer.shape)}")
        return {name: size for name, (size, _) in found.items()}

    def _note(self, found: dict[str, tuple[int, str]], name: str, size: int, buffer: Buffer) -> None:
        known, where = found.setdefault(name, (size, buffer.name))
        if known != size:
            raise InputMismatch(
                f"{name} is {known} in input {where!r} and {size} in input {buffer.name!r}",
                where=self.name,
                remedy=f"give inputs that agree about {name}",
            )
        self._by_name[name].check(size, where=f"{self.name}: input {buffer.name!r}")

    def program(self, **sizes: int) -> Any:
        """What serves a call of these sizes."""
        return choose(self.tree, [sizes[name] for name in self.symbols])

    def explain(self) -> str:
        """The nested ifs of the host function."""
        return describe(self.tree, self.symbols)

    def _size(self, size: Size, sizes: dict[str, int]) -> int:
        return sizes[size] if isinstance(size, str) else int(size or 0)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """A constant in panels; packed anew only for another tensor, or where this one was written to."""
        import torch

        key = tensor.data_ptr()
        known = self._packed.get(key)
        if known is not None and known[0]() is tensor and known[1][0] == tensor._version:
            packed: torch.Tensor = known[1][1]
            return packed
        packed = torch.empty(self.packed_shape, dtype=tensor.dtype)
        self.library["pack0"](tensor, packed)
        self._packed = {key: (weakref.ref(tensor), (tensor._version, packed))}
        return packed

    def _mismatch(self, buffer: Buffer, what: str, remedy: str) -> InputMismatch:
        return InputMismatch(f"input {buffer.name!r} {what}", where=self.name, remedy=remedy)


def _shown(shape: tuple[Size, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
