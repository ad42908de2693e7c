"""An operator compiled for every size, as a function of torch tensors.

Input: the library of a kernel, its dimensions, its tree. Output: `DynamicKernel`. Sizes are read from the input
tensors. They must be in range and agree between inputs. Constants are packed at their first use.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from felixlike._util.torch_compat import changes
from felixlike._util.wording import counted, kind_of
from felixlike.dynamic.dims import Dim
from felixlike.dynamic.dispatch import Tree, choose, describe
from felixlike.dynamic.stages import Stage
from felixlike.errors import InputMismatch, NoGradientWarning, callers_level
from felixlike.hardware.placement import pin_threads
from felixlike.runtime.serial_copy import contiguous_copy

if TYPE_CHECKING:
    import torch

Size = int | str
"""Size of a buffer dimension: a number or the name of a Dim."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a kernel was planned.

    Attributes:
        stages: uKernels left after each stage of FTuner's filter.
        tiles: Number of uKernels in the code.
        programs: Number of ranked programs.
        measured: Number of timings.
        seconds: Planning time in seconds.
        agreement: Kendall's τ between predicted and measured times.
        among_top: Fraction of timed sizes whose fastest program is among the ten best by SIA.
        repaired: Number of sizes at which the tree was changed after it had been timed.
    """

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
    """Name, shape and dtype of a parameter."""

    name: str
    shape: tuple[Size, ...]
    dtype: str


@dataclass(eq=False)
class DynamicKernel:
    """A compiled operator: call it with one tensor per input, in order; it returns the output.

    Attributes:
        name: Name of the operator.
        library: The compiled library.
        dims: The dynamic dimensions.
        symbols: Names of the dimensions, in the kernel's order.
        buffers: The inputs and, last, the output.
        constants: Indices of inputs that are packed at their first use.
        packed_shape: Shape of the packed constant, () if there is none.
        packed_dtype: Dtype of the packed constant, "" if there is none.
        tree: Decision tree that chooses a program by the sizes of `symbols`.
        tiles: The uKernels: (rows, vectors) on a CPU, `BlockTile`s on a GPU.
        report: How the kernel was planned.
        device: torch's name of the device type, such as "cpu".
    """

    name: str
    library: Any
    dims: tuple[Dim, ...]
    symbols: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[int, ...]
    packed_shape: tuple[int, ...]
    packed_dtype: str
    tree: Tree[Any]
    tiles: tuple[Any, ...]
    report: Report
    device: str = "cpu"
    _packed: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._run = self.library["main"]
        self._by_name = {dim.name: dim for dim in self.dims}

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Compute the output for inputs of any size in range.

        The output carries no gradients. If an input requires one, a NoGradientWarning is issued once.

        Args:
            tensors: One tensor per input, with the dtypes of `buffers`, on `device`. Do not change those of `constants`
                through `.data`, which PyTorch does not count: pass other tensors.

        Returns:
            A new tensor.

        Raises:
            InputMismatch: Number, type, dtype, device or shape of the inputs is wrong, or a size is out of range.
        """
        import torch

        sizes = self.sizes(tensors)
        self._note_gradients(tensors)
        output = self.buffers[-1]
        shape = [self._size(size, sizes) for size in output.shape]
        result = torch.empty(shape, dtype=getattr(torch, output.dtype), device=self.device)
        arguments = [contiguous_copy(t) if not t.is_contiguous() or t.is_neg() else t for t in tensors]
        for index in self.constants:
            arguments[index] = self._pack(arguments[index])
        if self.device == "cpu":
            pin_threads()
        self._run(*arguments, result)
        return result

    def _note_gradients(self, tensors: Sequence[Any]) -> None:
        """Warn once if an input requires a gradient."""
        import torch

        if not self._warned and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            self._warned = True
            text = (
                f"{self.name}: an input requires a gradient, but the output carries none. Call it under torch.no_grad()"
            )
            warnings.warn(NoGradientWarning(text), stacklevel=callers_level())

    def sizes(self, tensors: Sequence[Any]) -> dict[str, int]:
        """Return the size of each dimension in a call.

        Args:
            tensors: One tensor per input.

        Returns:
            Sizes by the name of the dimension.

        Raises:
            InputMismatch: A tensor does not match, sizes disagree, or a size is out of range.
        """
        import torch

        inputs = self.buffers[:-1]
        if len(tensors) != len(inputs):
            raise InputMismatch(f"expected {counted(len(inputs), 'input')}, got {len(tensors)}", where=self.name)
        seen: dict[str, tuple[int, str]] = {}
        for buffer, tensor in zip(inputs, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise self._mismatch(buffer, f"is {kind_of(tensor)}", "give a torch tensor")
            if tensor.layout is not torch.strided or tensor.is_nested:
                raise self._mismatch(buffer, "is sparse or nested", "give a dense tensor")
            if tensor.dtype is not getattr(torch, buffer.dtype) or tensor.device.type != self.device:
                where = "the CPU" if self.device == "cpu" else self.device
                raise self._mismatch(buffer, f"is {tensor.dtype} on {tensor.device}", f"give {buffer.dtype} on {where}")
            if len(tensor.shape) != len(buffer.shape):
                raise self._mismatch(buffer, f"has shape {tuple(tensor.shape)}", f"give {_shown(buffer.shape)}")
            for size, expected in zip(tensor.shape, buffer.shape, strict=True):
                if isinstance(expected, str):
                    self._note(seen, expected, int(size), buffer)
                elif size != expected:
                    raise self._mismatch(buffer, f"has shape {tuple(tensor.shape)}", f"give {_shown(buffer.shape)}")
        return {name: size for name, (size, _) in seen.items()}

    def _note(self, seen: dict[str, tuple[int, str]], name: str, size: int, buffer: Buffer) -> None:
        """Record the size of a dimension; raise InputMismatch if it differs from an earlier one or is out of range."""
        previous, where = seen.setdefault(name, (size, buffer.name))
        if previous != size:
            raise InputMismatch(
                f"{name} is {previous} in input {where!r} and {size} in input {buffer.name!r}",
                where=self.name,
                remedy=f"give inputs with the same {name}",
            )
        self._by_name[name].check(size, where=f"{self.name}: input {buffer.name!r}")

    def program(self, **sizes: int) -> Any:
        """Return the program for a call.

        Args:
            sizes: The size of each dimension, by name.

        Returns:
            A `Program` on a CPU, a `BlockProgram` on a GPU.
        """
        return choose(self.tree, [sizes[name] for name in self.symbols])

    def explain(self) -> str:
        """Return the nested ifs of the host function as text."""
        return describe(self.tree, self.symbols)

    def _size(self, size: Size, sizes: dict[str, int]) -> int:
        return sizes[size] if isinstance(size, str) else size

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pack a constant into panels; the result is reused until another tensor is passed or this one is modified.

        Tensors of inference mode are packed in every call.
        """
        import torch

        key = tensor.data_ptr()
        cached = self._packed.get(key)
        if cached is not None and cached[0]() is tensor and cached[1][0] == changes(tensor):
            packed: torch.Tensor = cached[1][1]
            return packed
        packed = torch.empty(self.packed_shape, dtype=getattr(torch, self.packed_dtype))
        self.library["pack0"](tensor, packed)
        if tensor.is_inference():  # PyTorch counts no changes of it
            return packed
        self._packed = {key: (weakref.ref(tensor), (changes(tensor), packed))}
        return packed

    def _mismatch(self, buffer: Buffer, what: str, remedy: str) -> InputMismatch:
        return InputMismatch(f"input {buffer.name!r} {what}", where=self.name, remedy=remedy)


def _shown(shape: tuple[Size, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
