"""A compiled model as a function of torch tensors.

In: a runnable Relax VM module, input specs, the outputs' structure. Out: `Compiled`, torch in and torch out. Tensors
cross by DLPack without copies. Inputs are checked here, since generated code trusts them.
"""

import threading
from pathlib import Path
from typing import Any

from felixlike.errors import InputMismatch
from felixlike.frontend import InputSpec, Structure

_ALIGNMENT = 64
"""Bytes. Generated code loads whole vectors from buffers it takes to be so aligned, and crashes on others."""


class Compiled:
    """A compiled model: call it with torch tensors, by position or by name.

    Outputs come nested as the model nests them, and never carry gradients. Inputs are not changed. A tensor that is
    not contiguous, or does not start at a multiple of 64 bytes (a slice, some numpy arrays), is copied first; all
    others are read in place. An output that is an input, or a view of it, shares its memory, as in PyTorch. Threads
    may share one: their calls run one after another, each on TVM's thread pool (TVM_NUM_THREADS,
    which `tvmlib` sets to the number of cores unless it is set)."""

    def __init__(
        self,
        runtime: Any,
        *,
        inputs: tuple[InputSpec, ...],
        structure: Structure,
        target: Any,
        name: str = "model",
        lowered: Any = None,
        library: Path | None = None,
    ) -> None:
        """runtime: a runnable VM module with "main".  lowered: the Relax module it was generated from, if compiled
        in this process.  library: the shared library it was loaded from otherwise."""
        import torch

        from felixlike import tvmlib

        self.inputs = inputs
        self.structure = structure
        self.target = target
        self.name = name
        self.lowered = lowered
        self.library = library
        self.runtime = runtime
        device = tvmlib.device_of(target)
        self.device = torch.device(str(device.type), int(device.index)) if device.type != "cpu" else torch.device("cpu")
        self._machine = tvmlib.relax.VirtualMachine(runtime, device)
        self._main = self._machine["main"]
        self._rebuild = structure.builder()
        self._lock = threading.Lock()
        self._wanted = tuple((spec.shape, getattr(torch, spec.dtype)) for spec in inputs)
        self._tensor = torch.Tensor
        self._dense = torch.strided

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """The model's output for one tensor per input.  Raises InputMismatch for wrong number, name, shape, dtype
        or device."""
        if named:
            tensors = self._by_position(tensors, named)
        if len(tensors) != len(self._wanted):
            raise InputMismatch(
                f"{len(tensors)} inputs are given, {len(self._wanted)} needed", where=self.name, remedy=self._takes()
            )
        ready = [self._ready(index, tensor) for index, tensor in enumerate(tensors)]
        with self._lock:
            result = self._main(*ready)
        return self._rebuild((result,) if isinstance(result, self._tensor) else self._leaves(result))

    def __repr__(self) -> str:
        return f"<compiled {self.name}({', '.join(map(str, self.inputs))})>"

    def _ready(self, index: int, tensor: Any) -> Any:
        """The tensor as generated code wants it, or InputMismatch."""
        shape, dtype = self._wanted[index]
        if not isinstance(tensor, self._tensor):
            raise self._mismatch(index, f"is a {type(tensor).__name__}", "give a torch tensor")
        if tensor.shape != shape:
            raise self._mismatch(index, f"has shape {tuple(tensor.shape)}, compiled for {shape}")
        if tensor.dtype is not dtype:
            raise self._mismatch(index, f"is {tensor.dtype}, compiled for {dtype}", f"convert it: x.to({dtype})")
        if tensor.device != self.device or tensor.layout is not self._dense:
            remedy = f"give a dense tensor on {self.device}, as x.to({str(self.device)!r}) makes it"
            raise self._mismatch(index, f"is {tensor.layout} on {tensor.device}", remedy)
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.is_contiguous() or tensor.is_neg():  # there are no complex ones
            tensor = tensor.resolve_neg().contiguous()
        return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()

    def _mismatch(self, index: int, what: str, remedy: str = "") -> InputMismatch:
        return InputMismatch(f"input {self.inputs[index].name!r} {what}", where=self.name, remedy=remedy)

    def _by_position(self, tensors: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        names = [spec.name for spec in self.inputs]
        for name in named:
            if name not in names:
                raise InputMismatch(f"there is no input {name!r}", where=self.name, remedy=self._takes())
            if name in names[: len(tensors)]:
                raise InputMismatch(f"input {name!r} is given twice", where=self.name)
        missing = [name for name in names[len(tensors) :] if name not in named]
        if missing:
            raise InputMismatch(f"input {missing[0]!r} is missing", where=self.name, remedy=self._takes())
        return (*tensors, *(named[name] for name in names[len(tensors) :]))

    def _takes(self) -> str:
        return f"it takes {', '.join(map(str, self.inputs)) or 'none'}"

    def _leaves(self, results: Any) -> list[Any]:
        """The tensors of a result, which TVM nests in arrays."""
        leaves = []
        for result in results:
            if isinstance(result, self._tensor):
                leaves.append(result)
            else:
                leaves.extend(self._leaves(result))
        return leaves
