"""Wrap a compiled model as a function of torch tensors.

Inputs: a runnable Relax VM module, input specifications and the outputs' structure. Output: `Compiled`. Tensors are
passed by DLPack without copies. Generated code does not check its inputs, so `Compiled` does: fully at first, and in
later calls by one torch guard that compares them with inputs already checked.
"""

import inspect
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from felixlike import _tvm
from felixlike._util.torch_compat import dispatch_depth
from felixlike._util.wording import counted
from felixlike.errors import InputMismatch, NoGradientWarning, WrongContext, callers_level
from felixlike.frontend import NONE, InputSpec, Mutations, OutputSpec, Signature, Sizes, Structure
from felixlike.frontend.signature.layouts import inverse
from felixlike.frontend.signature.nesting import quoted
from felixlike.hardware.faults import fault_of
from felixlike.hardware.placement import pin_threads
from felixlike.runtime import pytorch_calls, torch_operator
from felixlike.runtime.serial_copy import contiguous_copy, let_openmp_sleep
from felixlike.runtime.shared_library import Library
from felixlike.runtime.stream_serializer import StreamSerializer
from felixlike.runtime.tensor_guards import likeness, never
from felixlike.runtime.writing import Writing, refuse_overlap

ALIGNMENT = 64
"""Required alignment of inputs in bytes, for code that was not compiled for unaligned inputs. Such code uses aligned
vector loads and crashes on other addresses."""

_BOUND_MAIN = "main_with_constants"
"""Name of the function of a virtual machine that passes constants to its "main"."""

_KINDS = 4
"""Maximum number of cached kinds of inputs (of inference mode, requiring gradients …). Chosen by hand."""

_KINDS_OF_SIZES = 64
"""The same for models with dynamic sizes, where each combination of sizes is a kind. Chosen by hand."""


class Compiled:
    """A compiled model, called like the original model with torch tensors, by position or by name.

    Arguments are nested like the example inputs. Arguments that are not tensors (flags, numbers, None) were compiled
    in: omit them or pass the same values. The same applies to parameters without an example. PyTorch modes of the
    caller have no effect; dtypes are fixed, under autocast too.

    Outputs are nested like the model's and never carry gradients. Inputs that the model changes in place are changed,
    as are the model's own buffers (`mutations.state`), which copies of the model do not share. The calling thread
    copies tensors that are not contiguous, and on a GPU those that do not start at a multiple of 64 bytes. All others
    are read in place. As in PyTorch, an output that is an input or a view of it shares its memory; others are new.

    Several threads may call one model concurrently. Each call runs on the calling thread and its own workers, on
    different cores (felixlike.hardware.placement). The number of threads is `threads`, else TVM_NUM_THREADS, else
    OMP_NUM_THREADS, else one per core. On a GPU a call launches kernels on torch's current stream and returns. Under
    torch.compile, torch.export, vmap and the like a call is the operator felixlike::run.

    Attributes:
        inputs: One specification per input tensor, in order.
        outputs: One specification per output tensor, in order.
        signature: How inputs are passed.
        machine: TVM's virtual machine of the first calling thread. Other threads have their own, with the same code
            and constants.
        key: Identifies the model in PyTorch graphs; equal for copies and saved models.
        threads: Number of threads per call; 0 if the environment decides.
        mutations: What a call changes in place.
        pytorch: Names of the operators that PyTorch runs.
    """

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
        mutations: Mutations = NONE,
        pytorch: tuple[str, ...] = (),
        constants: tuple[Any, ...] = (),
    ) -> None:
        """Wrap a compiled module.

        Args:
            runtime: A runnable VM module with "main".
            inputs: One specification per input tensor, with the largest of dynamic sizes.
            outputs: One specification per output tensor, likewise.
            signature: How inputs are passed.
            structure: How outputs are nested.
            target: The TVM target.
            name: The model's name, for messages.
            key: See the attribute; empty for a new key.
            lowered: The Relax module that was compiled, if that was in this process.
            library: The shared library from which the module was loaded otherwise.
            parallel: Whether calls may use several threads.
            sizes: The dynamic sizes; None without any.
            threads: Number of threads per call; 0 if the environment decides.
            unaligned: Whether inputs may start at any element, see `codegen/passes/unaligned_parameters.py`.
            mutations: What the model changes in place. Its buffers are copied.
            pytorch: Names of the operators that PyTorch runs.
            constants: Torch tensors on the CPU that "main" takes after its other inputs. Loaded models only.
        """
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
        self.mutations = mutations
        self.pytorch = pytorch
        if pytorch:
            pytorch_calls.register()
        self.constants = constants
        self._most_kinds = _KINDS if sizes is None else _KINDS_OF_SIZES
        self.runtime = runtime
        device = _tvm.device_of(target)
        self.device = torch.device(str(device.type), int(device.index)) if device.type != "cpu" else torch.device("cpu")
        self._rebuild = structure.builder()
        views = [inverse(spec.order) for spec in outputs]
        self._views = views if any(views) else []
        self._single_output = structure.spec is None and not self._views
        self._plain = len(inputs) if signature.by_position else -1
        self._expected = tuple((spec.shape, getattr(torch, spec.dtype)) for spec in inputs)
        self._alignments = tuple(dtype.itemsize if unaligned else ALIGNMENT for _, dtype in self._expected)
        self._warned = False
        # Functions of torch and TVM that calls use, looked up once.
        self._tensor, self._dense = torch.Tensor, torch.strided
        self._data_ptr = torch.Tensor.data_ptr
        self._forward_mode, self._modes = forward_ad, dispatch_depth()
        self._is_compiling = torch.compiler.is_dynamo_compiling
        self._array_item, self._from_dlpack = _tvm.array_item, torch.utils.dlpack.from_dlpack
        self.threads = threads
        self._open()

    def _open(self) -> None:
        """Create the state that copies do not share: a virtual machine, which runs one call at a time."""
        self.machine = self._virtual_machine()
        self.mutations = self.mutations.copied()
        main, on_gpu = self._entry(self.machine), self.device.type != "cpu"
        self._serialized_main = StreamSerializer(main, self.device) if on_gpu else None
        self._first = [] if on_gpu else [main]
        self._here = threading.local()
        if self.parallel and not on_gpu:
            let_openmp_sleep()
        self._pin_threads: Callable[[int], object] = pin_threads if self.parallel and not on_gpu else _nothing
        self._latest: _Kind = (never, None)
        self._kinds: tuple[_Kind, ...] = ()
        self._output_indices: range | None = None
        torch_operator.register(self)

    def _virtual_machine(self) -> Any:
        """Return a new virtual machine."""
        return _tvm.relax.VirtualMachine(self.runtime, _tvm.device_of(self.target))

    def _main_of_thread(self) -> Any:
        """Return the virtual machine's entry for the calling thread, in the thread's first call."""
        try:
            main = self._serialized_main or self._first.pop()  # list.pop is atomic: one thread gets the first machine
        except IndexError:
            main = self._entry(self._virtual_machine())
        self._here.main = main
        return main

    def _entry(self, machine: Any) -> Callable[..., Any]:
        """Return the entry of a virtual machine, with the writing of what the model changes."""
        main = self._main(machine)
        return Writing(main, self.mutations, self._tensors, self.name) if self.mutations else main

    def tvm_constants(self) -> list[Any]:
        """Return `constants` as TVM's tensors, which share their memory."""
        return list(map(_tvm.runtime.from_dlpack, self.constants))

    def _main(self, machine: Any) -> Callable[..., Any]:
        """Return a virtual machine's function, with its constants bound to it."""
        if self.constants:
            machine.save_function("main", _BOUND_MAIN, *self.tvm_constants())
        main: Callable[..., Any] = machine[_BOUND_MAIN if self.constants else "main"]
        return main

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            tensors: Positional arguments of the original model.
            named: Keyword arguments of the original model.

        Returns:
            The outputs, nested like those of the original model.

        Raises:
            InputMismatch: The number, names, nesting, constants, shapes, dtypes or devices of the inputs are wrong.
            WrongContext: Derivatives are requested.
            ForkedProcess: The process was forked from one that has run the model.
        """
        if named or len(tensors) != self._plain:
            tensors = self._flat(tensors, named)
        if self._is_compiling():
            return self._through_operator(tensors)
        known, (alike, special) = False, self._latest
        try:
            for tensor in tensors:
                if tensor.is_nested:  # the guard below would abort the process
                    break
            else:
                known = alike(*tensors)
        except (AttributeError, ValueError):
            pass  # not a tensor
        if not known or self._modes() or self._forward_mode._current_level >= 0:
            return self._carefully(tensors)
        if special is not None:
            return self._specially(tensors, special)
        for tensor, alignment in zip(tensors, self._alignments):  # noqa: B905  lengths are equal, and this is faster
            place = self._data_ptr(tensor)
            if not place or place % alignment:
                return self._specially(tensors, _PLAIN)
        self._pin_threads(self.threads)
        try:
            main = self._here.main
        except AttributeError:
            main = self._main_of_thread()
        try:
            result = main(*tensors)
        except Exception as error:
            raise self._explained(error) from error
        if self._single_output and type(result) is self._tensor:
            return result
        return self._rebuild(self._leaves(result))

    def __repr__(self) -> str:
        return f"<compiled {self.name}({', '.join(map(str, self.inputs))})>"

    def __copy__(self) -> "Compiled":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiled":
        """Return a copy that shares the immutable code and constants, with its own working memory."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._open()
        return copied

    def as_python(self) -> inspect.Signature:
        """Return the signature for inspect.signature."""
        return self.signature.as_python([str(spec).removeprefix(f"{spec.name}: ") for spec in self.inputs])

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """Run the model on flat inputs.

        Args:
            tensors: One tensor per input, in order.

        Returns:
            One tensor per output, in order.

        Raises:
            InputMismatch: The inputs do not fit.
        """
        self.check(tensors)
        return self._outputs(tensors, _spread(tensors))

    def in_order(self, result: Any) -> Any:
        """Return a result of the virtual machine; as a list of tensors if dimensions must be permuted."""
        return self._leaves(result) if self._views else result

    def check(self, tensors: Sequence[Any]) -> None:
        """Check flat inputs, which need not have values.

        Raises:
            InputMismatch: The inputs do not fit.
        """
        self._check_count(tensors)
        for index, tensor in enumerate(tensors):
            self._check(index, tensor)
        if self.sizes is not None:
            names, shapes = [spec.name for spec in self.inputs], [spec.shape for spec in self.inputs]
            self.sizes.check(names, shapes, tensors, self.name)

    def note_gradients(self, tensors: Sequence[Any]) -> None:
        """Warn once if one of the tensors requires a gradient, since outputs carry none."""
        import torch

        needs = [spec.name for spec, tensor in zip(self.inputs, tensors, strict=True) if tensor.requires_grad]
        if needs and not self._warned and torch.is_grad_enabled():
            self._warned = True
            text = (
                f"{self.name}: input {quoted(needs[0])} requires a gradient, but the outputs of a compiled model carry "
                "none. Call it under torch.no_grad(), or train the original model."
            )
            warnings.warn(NoGradientWarning(text), stacklevel=callers_level())

    def _carefully(self, tensors: Sequence[Any]) -> Any:
        """Run a call whose inputs differ in kind from those of the latest one."""
        special = self._look_at(tensors)
        return self._through_operator(tensors) if special is None else self._specially(tensors, special)

    def _specially(self, tensors: Sequence[Any], special: "_Special") -> Any:
        """Run a call with checked inputs of a kind, some of which may have to be copied."""
        if special.gradients:
            if self.mutations:
                self._check_changed(tensors)
            self.note_gradients(tensors)
        return self._rebuild(self._outputs(tensors, special.spread))

    def _through_operator(self, tensors: Sequence[Any]) -> Any:
        """Run a call as the operator felixlike::run. Raise WrongContext if it would change tensors in place."""
        if self.mutations:
            raise WrongContext(
                f"the model changes {', '.join(self.mutations.names[:3])} in place, unlike PyTorch's operators",
                where=self.name,
                remedy="call it outside of torch.compile, torch.export and transforms",
            )
        outputs = torch_operator.run(self.key, tensors)
        outputs = [outputs[index] for index in range(len(self.outputs))]  # torch.fx returns a proxy, not a list
        return self._rebuild(outputs)

    def _look_at(self, tensors: Sequence[Any]) -> "_Special | None":
        """Check inputs and return their kind; None if a PyTorch mode or transform is active.

        Raise InputMismatch or WrongContext for invalid inputs."""
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
        """Run the model on checked inputs with values. `spread` has the indices of inputs that must be copied."""
        ready = list(tensors)
        for index, tensor in enumerate(tensors):
            place = self._data_ptr(tensor)
            if not place and not tensor._is_zerotensor():
                raise self._mismatch(index, "has no storage", "give a tensor whose storage was not freed")
            if place % self._alignments[index] or not place or index in spread:
                detached = tensor.detach() if tensor.requires_grad else tensor
                ready[index] = contiguous_copy(detached)
        if self.mutations:
            self._check_changed(tensors)
        self._pin_threads(self.threads)
        main = getattr(self._here, "main", None) or self._main_of_thread()
        try:
            result = main(*ready)
        except Exception as error:
            raise self._explained(error) from error
        for index in self.mutations.inputs:
            if ready[index] is not tensors[index]:
                tensors[index].copy_(ready[index])
        return self._leaves(result)

    def _check_changed(self, tensors: Sequence[Any]) -> None:
        """Raise InputMismatch if tensors that the model changes share memory or, as in PyTorch, require gradients."""
        import torch

        refuse_overlap((*tensors, *self.mutations.state), self.mutations, self.name)
        for index in self.mutations.inputs:
            if tensors[index].requires_grad and torch.is_grad_enabled():
                remedy = "call the model under torch.no_grad()"
                raise self._mismatch(index, "requires a gradient, but is changed in place", remedy)

    def at_hand(self, index: int, tensor: Any) -> Any:
        """Return a contiguous tensor, or its copy if the code cannot read it at its address."""
        return contiguous_copy(tensor) if self._data_ptr(tensor) % self._alignments[index] else tensor

    def _explained(self, error: Exception) -> Exception:
        """Return the error to raise for an error in a call: on a GPU, the meaning of CUDA's error."""
        return (fault_of(error, where=self.name) if self.device.type != "cpu" else None) or error

    def _flat(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return one tensor per input, in order, for nested arguments."""
        return self.signature.flatten(args, named, where=self.name, takes=self._takes())

    def _check_count(self, tensors: Sequence[Any]) -> None:
        """Raise InputMismatch for a wrong number of inputs."""
        if len(tensors) != len(self._expected):
            raise InputMismatch(
                f"expected {counted(len(self._expected), 'input')}, got {len(tensors)}",
                where=self.name,
                remedy=self._takes(),
            )

    def _check(self, index: int, tensor: Any) -> None:
        """Raise InputMismatch for a wrong input."""
        shape, dtype = self._expected[index]
        if not isinstance(tensor, self._tensor):
            raise self._mismatch(index, f"is a {type(tensor).__name__}", _as_tensor(tensor))
        if tensor.is_nested:
            raise self._mismatch(index, "is a nested tensor", "give a dense tensor")
        if tensor.shape != shape and self.sizes is None:
            remedy = "give a tensor of that shape, or optimize the model for this shape"
            raise self._mismatch(index, f"has shape {tuple(tensor.shape)}, compiled for {shape}", remedy)
        if tensor.dtype is not dtype:
            raise self._mismatch(index, f"is {tensor.dtype}, compiled for {dtype}", f"convert it: x.to({dtype})")
        if tensor.device != self.device or tensor.layout is not self._dense:
            remedy = f"give a dense tensor on {self.device}, for instance x.to({str(self.device)!r})"
            raise self._mismatch(index, f"is {tensor.layout} on {tensor.device}", remedy)

    def _mismatch(self, index: int, what: str, remedy: str) -> InputMismatch:
        """Return the error for an input."""
        return InputMismatch(f"input {quoted(self.inputs[index].name)} {what}", where=self.name, remedy=remedy)

    def _takes(self) -> str:
        """Describe the inputs, for messages."""
        return f"the inputs are {', '.join(map(str, self.inputs)) or 'none'}"

    def _leaves(self, result: Any) -> list[Any]:
        """Return the output tensors of a result, with their dimensions in the model's order."""
        tensors = self._tensors(result)
        if not self._views:
            return tensors
        return [tensor.permute(view) if view else tensor for tensor, view in zip(tensors, self._views, strict=True)]

    def _tensors(self, result: Any) -> list[Any]:
        """Return the tensors of a result, which TVM returns in nested arrays unless there is only one."""
        if isinstance(result, self._tensor):
            return [result]
        if isinstance(result, list):  # of `Writing`
            return result
        if not self.inputs and not self.mutations:  # without a torch input TVM returns its own tensors
            return [self._from_dlpack(part) for part in self._unnested([result])]
        part = self._array_item
        if self._output_indices is not None:
            return [part(result, index) for index in self._output_indices]
        parts = list(result)
        if all(isinstance(part, self._tensor) for part in parts):
            self._output_indices = range(len(parts))
        return list(self._unnested(parts))

    def _unnested(self, parts: Iterable[Any]) -> Iterator[Any]:
        """Yield the tensors of nested arrays."""
        for part in parts:
            if isinstance(part, self._tensor | _tvm.runtime.Tensor):
                yield part
            else:
                yield from self._unnested(part)


class _Special(NamedTuple):
    """Properties of a kind of inputs.

    Attributes:
        spread: Indices of inputs that must be copied regardless of their address.
        gradients: Whether an input requires a gradient.
    """

    spread: frozenset[int] = frozenset()
    gradients: bool = False


_PLAIN = _Special()
_Kind = tuple[Callable[..., bool], _Special | None]
"""A guard for inputs of a kind, and its properties; None if it has none."""


def _spread(tensors: Sequence[Any]) -> frozenset[int]:
    """Return the indices of tensors that are not contiguous, or have PyTorch's negative bit set."""
    return frozenset(i for i, tensor in enumerate(tensors) if not tensor.is_contiguous() or tensor.is_neg())


def _as_tensor(value: Any) -> str:
    """Return the remedy for an input that is not a tensor."""
    return "give a torch tensor" + (": torch.from_numpy(x)" if isinstance(value, np.ndarray) else "")


def _nothing(_: int) -> None:
    """Do nothing: calls on one thread need no pinning."""
