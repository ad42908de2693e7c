"""A compiled model as a function of torch tensors.

In: a runnable Relax VM module, input specs, the outputs' structure. Out: `Compiled`, torch in and torch out. Tensors
cross by DLPack without copies. Inputs are checked here, since generated code trusts them: closely once, and then, by
one question to torch, whether those of the next call are like them.
"""

import inspect
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from felixlike import _tvm
from felixlike.errors import InputMismatch, NoGradientWarning, callers_level
from felixlike.frontend import InputSpec, OutputSpec, Signature, Sizes, Structure
from felixlike.frontend.signature.layouts import inverse
from felixlike.frontend.signature.nesting import quoted
from felixlike.hardware.faults import fault_of
from felixlike.hardware.placement import pin_threads
from felixlike.runtime import torch_operator
from felixlike.runtime.serial_copy import on_this_thread
from felixlike.runtime.shared_library import Library
from felixlike.runtime.stream_serializer import StreamSerializer
from felixlike.runtime.tensor_guards import likeness, never

ALIGNMENT = 64
"""Bytes. Code that was not made for inputs at any address loads whole vectors from buffers it takes to be so aligned,
and crashes on others."""

_KINDS = 4
"""How many kinds of inputs (made in inference mode, needing gradients, spread …) are remembered."""


_KINDS_OF_SIZES = 64
"""The same where a call decides sizes: each is a kind of its own."""


class Compiled:
    """A compiled model: call it as the model itself, with torch tensors, by position or by name.

    Arguments are nested as the examples were. What was no tensor among them (flags, numbers, None) is part of what was
    compiled: it may be left out, or be the same. So may a parameter for which no example was given. The modes that the
    caller has set in PyTorch change nothing: types are fixed, under autocast too.

    Outputs come nested as the model nests them, and never carry gradients. Inputs are not changed. A tensor that
    is not contiguous is copied first, by the calling thread; on a GPU also one that does not start at a multiple of 64
    bytes. All others are read in place. An output that is an input, or a view of it, shares its memory, as in PyTorch.

    Threads may share one: their calls run side by side, each on the calling thread and workers of its own, on different
    cores (felixlike.hardware.placement): as many as `threads` says, else TVM_NUM_THREADS, else OMP_NUM_THREADS, else
    one for each core. On a GPU a call starts kernels on torch's current stream and returns.
    Under torch.compile, torch.export, vmap and the like a call is the operator felixlike::run.

    inputs, outputs: one spec per tensor, in order.  signature: how inputs are given.  machine: TVM's virtual machine of
    the first thread that calls; others have one each, with the same code and constants.
    key: tells models apart where graphs call them; copies and saved models have the same."""

    def __init__(
        self,
        runtime: Any,
        *,
        inputs: tuple[InputSpec, ...],
        outputs: tuple[OutputSpec, ...],
        signature: Signature,
        structure: Structure,
        target: Any,
        name: str = "model",
        key: str = "",
        lowered: Any = None,
        library: Library | None = None,
        parallel: bool = True,
        sizes: Sizes | None = None,
        threads: int = 0,
        unaligned: bool = False,
    ) -> None:
        """runtime: a runnable VM module with "main".  key: empty for a new one.  lowered: the Relax module it was
        generated from, if compiled in this process.  library: the shared library it was loaded from otherwise.
        parallel: whether it may run on several threads.  sizes: those that a call decides, if there are any; the
        specifications then have the largest.  threads: of a call, 0 for what the environment says.  unaligned: whether
        inputs may begin at any element, see `codegen/passes/unaligned_parameters.py`."""
        import torch
        from torch.autograd import forward_ad

        self.inputs = inputs
        self.outputs = outputs
        self.signature = signature
        self.structure = structure
        self.target = target
        self.name = name
        self.key = key or f"{name}-{uuid.uuid4().hex}"
        self.lowered = lowered
        self.library = library
        self.parallel = parallel
        self.sizes = sizes
        self.unaligned = unaligned
        self._most_kinds = _KINDS if sizes is None else _KINDS_OF_SIZES
        self.runtime = runtime
        device = _tvm.device_of(target)
        self.device = torch.device(str(device.type), int(device.index)) if device.type != "cpu" else torch.device("cpu")
        self._rebuild = structure.builder()
        views = [inverse(spec.order) for spec in outputs]
        self._views = views if any(views) else []
        self._alone = structure.spec is None and not self._views
        self._plain = len(inputs) if signature.by_position else -1
        self._wanted = tuple((spec.shape, getattr(torch, spec.dtype)) for spec in inputs)
        self._alignments = tuple(dtype.itemsize if unaligned else ALIGNMENT for _, dtype in self._wanted)
        self._warned = False
        # What a call needs of torch and TVM, at hand.
        self._tensor, self._dense, self._contiguous = torch.Tensor, torch.strided, torch.contiguous_format
        self._place, self._clone = torch.Tensor.data_ptr, torch.Tensor.clone
        self._forward_mode, self._modes = forward_ad, torch._C._len_torch_dispatch_stack
        self._is_compiling = torch.compiler.is_dynamo_compiling
        self._part, self._own = _tvm.array_item, torch.utils.dlpack.from_dlpack
        self.threads = threads
        self._open()

    def _open(self) -> None:
        """Make what every copy has for itself: a virtual machine, which one call at a time may use."""
        self.machine = self._virtual_machine()
        main, on_gpu = self.machine["main"], self.device.type != "cpu"
        self._everybodys = StreamSerializer(main, self.device) if on_gpu else None
        self._first = [] if on_gpu else [main]
        self._here = threading.local()
        self._pin_threads: Callable[[int], object] = pin_threads if self.parallel and not on_gpu else _nothing
        self._latest: _Kind = (never, None)
        self._kinds: tuple[_Kind, ...] = ()
        self._parts: range | None = None
        torch_operator.register(self)

    def _virtual_machine(self) -> Any:
        return _tvm.relax.VirtualMachine(self.runtime, _tvm.device_of(self.target))

    def _arrive(self) -> Any:
        """The calling thread's entry, in its first call."""
        try:
            main = self._everybodys or self._first.pop()  # which one thread gets, whatever the others do meanwhile
        except IndexError:
            main = self._virtual_machine()["main"]
        self._here.main = main
        return main

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """The model's output for its arguments.  Raises InputMismatch for wrong number, name, nesting, constant, shape,
        dtype or device, WrongContext where derivatives are asked for, ForkedProcess after a fork."""
        if named or len(tensors) != self._plain:
            tensors = self._flat(tensors, named)
        if self._is_compiling():
            return self._through_operator(tensors)
        known, (alike, special) = False, self._latest
        try:
            for tensor in tensors:
                if tensor.is_nested:  # the check below ends the process at one
                    break
            else:
                known = alike(*tensors)
        except (AttributeError, ValueError):
            pass  # no tensor
        if not known or self._modes() or self._forward_mode._current_level >= 0:
            return self._carefully(tensors)
        if special is not None:
            return self._specially(tensors, special)
        for tensor, alignment in zip(tensors, self._alignments):  # noqa: B905  their number is known, and this is quicker
            place = self._place(tensor)
            if not place or place % alignment:
                return self._specially(tensors, _PLAIN)
        self._pin_threads(self.threads)
        try:
            main = self._here.main
        except AttributeError:
            main = self._arrive()
        try:
            result = main(*tensors)
        except Exception as error:
            raise self._explained(error) from error
        if self._alone and type(result) is self._tensor:
            return result
        return self._rebuild(self._leaves(result))

    def __repr__(self) -> str:
        return f"<compiled {self.name}({', '.join(map(str, self.inputs))})>"

    def __copy__(self) -> "Compiled":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiled":
        """One with the same code and constants, which never change, but memory of its own."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._open()
        return copied

    def as_python(self) -> inspect.Signature:
        """How it is called, for inspect.signature."""
        return self.signature.as_python([str(spec).removeprefix(f"{spec.name}: ") for spec in self.inputs])

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """The outputs in order, not nested, for one tensor per input.  Raises InputMismatch."""
        self.check(tensors)
        return self._outputs(tensors, _spread(tensors))

    def in_order(self, result: Any) -> Any:
        """A result of the virtual machine; as a list of tensors where their dimensions have to be put in order."""
        return self._leaves(result) if self._views else result

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise InputMismatch unless the tensors, which need not have values, are what the model takes."""
        self._check_count(tensors)
        for index, tensor in enumerate(tensors):
            self._check(index, tensor)
        if self.sizes is not None:
            names, shapes = [spec.name for spec in self.inputs], [spec.shape for spec in self.inputs]
            self.sizes.check(names, shapes, tensors, self.name)

    def note_gradients(self, tensors: Sequence[Any]) -> None:
        """Warn, the first time only, if one of the tensors needs a gradient that will not come."""
        import torch

        needs = [spec.name for spec, tensor in zip(self.inputs, tensors, strict=True) if tensor.requires_grad]
        if needs and not self._warned and torch.is_grad_enabled():
            self._warned = True
            text = (
                f"{self.name}: input {quoted(needs[0])} needs a gradient, but gradients stop here: the outputs of a "
                "compiled model have none. Call it under torch.no_grad(), or train the model it was made from."
            )
            warnings.warn(NoGradientWarning(text), stacklevel=callers_level())

    def _carefully(self, tensors: Sequence[Any]) -> Any:
        """A call with inputs that are not like those of the latest one."""
        special = self._look_at(tensors)
        return self._through_operator(tensors) if special is None else self._specially(tensors, special)

    def _specially(self, tensors: Sequence[Any], special: "_Special") -> Any:
        """A call with inputs of a kind, some of which may have to be copied."""
        if special.gradients:
            self.note_gradients(tensors)
        return self._rebuild(self._outputs(tensors, special.spread))

    def _through_operator(self, tensors: Sequence[Any]) -> Any:
        outputs = torch_operator.run(self.key, tensors)
        outputs = [outputs[index] for index in range(len(self.outputs))]  # torch.fx gives no list
        return self._rebuild(outputs)

    def _look_at(self, tensors: Sequence[Any]) -> "_Special | None":
        """What is special about inputs; None if something of PyTorch's looks on.

        Raises InputMismatch, WrongContext."""
        nested = any(isinstance(tensor, self._tensor) and tensor.is_nested for tensor in tensors)
        if not nested and not self._modes() and self._forward_mode._current_level < 0:
            for kind in self._kinds:
                if kind[0](*tensors):
                    self._latest = kind
                    return kind[1] or _PLAIN
        torch_operator.refuse_derivatives(self.name, tensors)
        if not nested and torch_operator.is_traced(tensors):
            return None
        self.check(tensors)
        special = _Special(_spread(tensors), any(tensor.requires_grad for tensor in tensors))
        self._latest = likeness(tensors), None if special == _PLAIN else special
        self._kinds = (self._latest, *self._kinds)[: self._most_kinds]
        return special

    def _outputs(self, tensors: Sequence[Any], spread: frozenset[int]) -> list[Any]:
        """The outputs in order for checked inputs that have values.  spread: which of them must be copied."""
        ready = list(tensors)
        for index, tensor in enumerate(tensors):
            place = self._place(tensor)
            if not place and not tensor._is_zerotensor():
                raise self._mismatch(index, "has no memory any more", "give a tensor whose storage was not resized")
            if place % self._alignments[index] or not place or index in spread:
                kept = tensor.detach() if tensor.requires_grad else tensor
                ready[index] = self._copy(kept)
        self._pin_threads(self.threads)
        main = getattr(self._here, "main", None) or self._arrive()
        try:
            result = main(*ready)
        except Exception as error:
            raise self._explained(error) from error
        return self._leaves(result)

    def at_hand(self, index: int, tensor: Any) -> Any:
        """A contiguous tensor, or a copy of it where the code cannot read it at its address."""
        return self._copy(tensor) if self._place(tensor) % self._alignments[index] else tensor

    def _copy(self, tensor: Any) -> Any:
        with on_this_thread():
            return self._clone(tensor, memory_format=self._contiguous)

    def _explained(self, error: Exception) -> Exception:
        """What is to be said of an error in a call: on a GPU, what CUDA means by it."""
        return (fault_of(error, where=self.name) if self.device.type != "cpu" else None) or error

    def _flat(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """One tensor per input, in order."""
        return self.signature.flatten(args, named, where=self.name, takes=self._takes())

    def _check_count(self, tensors: Sequence[Any]) -> None:
        if len(tensors) != len(self._wanted):
            raise InputMismatch(
                f"{len(tensors)} inputs are given, {len(self._wanted)} needed", where=self.name, remedy=self._takes()
            )

    def _check(self, index: int, tensor: Any) -> None:
        shape, dtype = self._wanted[index]
        if not isinstance(tensor, self._tensor):
            raise self._mismatch(index, f"is a {type(tensor).__name__}", _as_tensor(tensor))
        if tensor.is_nested:
            raise self._mismatch(index, "is a nested tensor", "give a dense one")
        if tensor.shape != shape and self.sizes is None:
            remedy = "give one of that shape, or optimize the model for this one: shapes are fixed"
            raise self._mismatch(index, f"has shape {tuple(tensor.shape)}, compiled for {shape}", remedy)
        if tensor.dtype is not dtype:
            raise self._mismatch(index, f"is {tensor.dtype}, compiled for {dtype}", f"convert it: x.to({dtype})")
        if tensor.device != self.device or tensor.layout is not self._dense:
            remedy = f"give a dense tensor on {self.device}, as x.to({str(self.device)!r}) makes it"
            raise self._mismatch(index, f"is {tensor.layout} on {tensor.device}", remedy)

    def _mismatch(self, index: int, what: str, remedy: str) -> InputMismatch:
        return InputMismatch(f"input {quoted(self.inputs[index].name)} {what}", where=self.name, remedy=remedy)

    def _takes(self) -> str:
        return f"it takes {', '.join(map(str, self.inputs)) or 'none'}"

    def _leaves(self, result: Any) -> list[Any]:
        """The output tensors of a result, with their dimensions in the model's order."""
        tensors = self._tensors(result)
        if not self._views:
            return tensors
        return [tensor.permute(view) if view else tensor for tensor, view in zip(tensors, self._views, strict=True)]

    def _tensors(self, result: Any) -> list[Any]:
        """The tensors of a result, which TVM gives in an array or in nested ones, but for a lone one."""
        if isinstance(result, self._tensor):
            return [result]
        if not self.inputs:  # it was none of torch's tensors that told TVM to give such
            return [self._own(part) for part in self._unnested([result])]
        part = self._part
        if self._parts is not None:
            return [part(result, index) for index in self._parts]
        parts = list(result)
        if all(isinstance(part, self._tensor) for part in parts):
            self._parts = range(len(parts))
        return list(self._unnested(parts))

    def _unnested(self, parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            if isinstance(part, self._tensor | _tvm.runtime.Tensor):
                yield part
            else:
                yield from self._unnested(part)


class _Special(NamedTuple):
    """What is special about inputs.  spread: numbers of those that must be copied, wherever they lie.  gradients:
    whether one needs a gradient."""

    spread: frozenset[int] = frozenset()
    gradients: bool = False


_PLAIN = _Special()
_Kind = tuple[Callable[..., bool], _Special | None]
"""Whether inputs are of a kind, and what is special about it: None for nothing."""


def _spread(tensors: Sequence[Any]) -> frozenset[int]:
    """Numbers of those whose elements do not just lie one after the other, or are noted to be negative."""
    return frozenset(i for i, tensor in enumerate(tensors) if not tensor.is_contiguous() or tensor.is_neg())


def _as_tensor(value: Any) -> str:
    """The remedy for what is no tensor."""
    return "give a torch tensor" + (": torch.from_numpy(x)" if isinstance(value, np.ndarray) else "")


def _nothing(_: int) -> None:
    """One thread needs no place."""
