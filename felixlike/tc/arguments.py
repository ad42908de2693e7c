"""Check and complete the arguments of a call.

Input: a program, torch tensors, tensors for outputs. Output: the same with numbers converted to tensors, or a
TCCallError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from felixlike._util.wording import kind_of, shown
from felixlike.errors import TCCallError
from felixlike.tc.call import Given, sizes_of
from felixlike.tc.instance import Instance, instance
from felixlike.tc.program import Output, Program, Tensor
from felixlike.tc.scalars import is_float, limits, spoken

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one program.

    Attributes:
        program: The program.
        scalars: Whether it has parameters without dimensions, which also accept Python numbers.
        instances: Instances by the shapes and dtypes of inputs: making one takes longer than a small call.
    """

    program: Program
    scalars: bool
    instances: dict[tuple[Given, ...], Instance] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Arguments:
        """Create the argument checker of a program."""
        return cls(program, any(not parameter.dims for parameter in program.parameters))

    def _names(self, tensors: Sequence[Any]) -> list[str]:
        names = [parameter.name for parameter in self.program.parameters]
        return [names[i] if i < len(names) else f"input {i}" for i in range(len(tensors))]

    def given_of(self, tensor: Any, name: str) -> Given:
        """Return the shape and dtype of a tensor. Raise TCCallError."""
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise TCCallError(
                f"expected a torch.Tensor for `{name}`, got {kind_of(tensor)}",
                where=self.program.name,
                remedy="pass one torch.Tensor per parameter",
            )
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise TCCallError(f"`{name}` is a {kind} tensor", where=self.program.name, remedy="pass a dense tensor")
        return Given(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def completed(
        self, tensors: Sequence[Any], out: Mapping[str, torch.Tensor] | None, *, examples: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return checked inputs and output tensors; numbers for parameters without dimensions become tensors.

        Args:
            tensors: The inputs.
            out: Output tensors by name.
            examples: Whether outputs that are accumulated into may be left out; tensors of ones replace them.

        Raises:
            TCCallError: A tensor does not match the definition, or an output is missing.
        """
        import torch

        tensors = tuple(tensors)
        if self.scalars and len(tensors) == len(self.program.parameters):
            tensors = tuple(
                self._number(tensor, parameter)
                if not parameter.dims and isinstance(tensor, bool | int | float)
                else tensor
                for tensor, parameter in zip(tensors, self.program.parameters, strict=True)
            )
        signature = self.of_inputs(tensors)
        sizes_of(self.program, signature)
        outputs = dict(self._checked_out(out))
        missing = [output for output in self.program.given if output.name not in outputs]
        if missing and not examples:
            raise self._uninitialised(missing[0])
        if missing or outputs:
            made = self._instance(signature)
            for output in missing:
                outputs[output.name] = torch.ones(made.ranges.shape(output.name), dtype=getattr(torch, output.dtype))
            self._check_outputs(made, outputs)
        return tensors, outputs

    def _instance(self, signature: Sequence[Given]) -> Instance:
        """Return the program for inputs of these shapes and dtypes."""
        key = tuple(signature)
        if key not in self.instances:
            self.instances[key] = instance(self.program, signature)
        return self.instances[key]

    def _number(self, number: float, parameter: Tensor) -> torch.Tensor:
        """Return a number as a tensor of a parameter's type. Raise TCCallError if the type cannot represent it."""
        import torch

        dtype = getattr(torch, parameter.dtype)
        if is_float(parameter.dtype):
            fits = not torch.finfo(dtype).max < abs(number) < math.inf
        else:
            low, high = limits(parameter.dtype)
            fits = low <= number <= high and number == int(number)
        if not fits:
            raise self.program.source.error(
                TCCallError,
                parameter.span,
                f"expected a value of type {spoken(parameter.dtype)} for `{parameter.name}` but found {shown(number)}",
                "pass a number that the type can represent",
            )
        return torch.tensor(number, dtype=dtype)

    def _checked_out(self, out: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
        """Return `out` as a mapping. Raise TCCallError for unknown outputs."""
        if out is None:
            return {}
        if not isinstance(out, Mapping):
            raise TCCallError(
                f"expected a dict for `out`, got {kind_of(out)}",
                where=self.program.name,
                remedy='pass output tensors by name: out={"C": c}',
            )
        names = [output.name for output in self.program.outputs]
        for name in out:
            if name not in names:
                raise TCCallError(
                    f"there is no output {name!r}",
                    where=self.program.name,
                    remedy=f"the outputs are {', '.join(names)}",
                )
        return out

    def _uninitialised(self, output: Output) -> TCCallError:
        """Return an error for an output that the caller must pass."""
        step = next(step for step in self.program.steps if step.target == output.name)
        return self.program.source.error(
            TCCallError,
            step.span,
            f"reduction without initialization: `{output.name}` is accumulated into, so its initial values must be"
            " passed by the caller"
            if not step.fresh
            else f"`{output.name}` is read before it is written, so its initial values must be passed by the caller",
            f'pass out={{"{output.name}": tensor}}'
            + ("" if step.fresh else f", or write {step.operator}=! to initialize the reduction"),
        )

    def _check_outputs(self, made: Instance, out: Mapping[str, Any]) -> None:
        """Raise TCCallError if an output tensor has the wrong dtype or shape."""
        for output in self.program.outputs:
            if output.name not in out:
                continue
            actual = self.given_of(out[output.name], output.name)
            shape = made.ranges.shape(output.name)

            def error(reason: str, output: Output = output, shape: tuple[int, ...] = shape) -> TCCallError:
                remedy = f"pass a tensor of shape {shape} and type {spoken(output.dtype)}"
                return self.program.source.error(TCCallError, output.span, reason, remedy)

            if actual.dtype != output.dtype:
                raise error(f"expected type {spoken(output.dtype)} but found {actual.dtype} for `{output.name}`")
            if len(actual.shape) != len(shape):
                raise error(
                    f"expected {len(shape)} dimensions but found tensor with {len(actual.shape)} dimensions for"
                    f" `{output.name}`"
                )
            if actual.shape != shape:
                raise error(f"expected size {shape} but found {actual.shape} for `{output.name}`")

    def check_writable(self, out: Mapping[str, torch.Tensor]) -> None:
        """Raise TCCallError if elements of output tensors share memory, or PyTorch forbids to change one."""
        import torch

        for name, tensor in out.items():
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                raise self._unwritable(name, "is an inference tensor, which only inference mode may change")
            if tensor.is_meta:
                raise self._unwritable(name, "is on the meta device, which has no memory")
            if not _has_own_places(tensor):
                raise self._unwritable(name, "has several elements in one place of memory")
        for (name, tensor), (other, other_tensor) in itertools.combinations(out.items(), 2):
            if np.shares_memory(_layout(tensor), _layout(other_tensor)):
                raise self._unwritable(other, f"shares memory with that for `{name}`")

    def _unwritable(self, name: str, reason: str) -> TCCallError:
        span = next(output.span for output in self.program.outputs if output.name == name)
        return self.program.source.error(
            TCCallError, span, f"the tensor for `{name}` {reason}", "pass a tensor of its own, for example a clone()"
        )

    def of_inputs(self, tensors: Sequence[Any]) -> list[Given]:
        """Return the shape and dtype of each input. Raise TCCallError."""
        return [self.given_of(tensor, name) for tensor, name in zip(tensors, self._names(tensors), strict=True)]

    def of_shapes(self, tensors: Sequence[Any]) -> list[Given]:
        """Return the shape and dtype of each input, a tensor or a shape tuple. Raise TCCallError."""
        dtypes = {parameter.name: parameter.dtype for parameter in self.program.parameters}
        return [
            Given(tuple(tensor), dtypes.get(name, "float32"))
            if isinstance(tensor, tuple | list) and all(isinstance(size, int) for size in tensor)
            else self.given_of(tensor, name)
            for tensor, name in zip(tensors, self._names(tensors), strict=True)
        ]

    def signature(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> list[Given]:
        """Return the shape and dtype of the inputs, then of the outputs that are accumulated into."""
        return [*self.of_inputs(tensors), *(self.given_of(out[o.name], o.name) for o in self.program.given)]


def _has_own_places(tensor: torch.Tensor) -> bool:
    """Return whether each element of a tensor has a place of its own in memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _layout(tensor: torch.Tensor) -> Any:
    """Return an array with the addresses of a tensor's elements, which may be on any device and are not read."""
    size = tensor.element_size()
    interface = {
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "typestr": f"|V{size}",
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
