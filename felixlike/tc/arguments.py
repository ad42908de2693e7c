"""Check and complete the arguments of a call.

Input: a program, torch tensors, tensors for outputs. Output: the same with numbers converted to tensors, or a
TCCallError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import kind_of
from felixlike.errors import TCCallError
from felixlike.tc.call import Given, sizes_of
from felixlike.tc.instance import Instance, instance
from felixlike.tc.program import Output, Program
from felixlike.tc.scalars import spoken

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one program.

    Attributes:
        program: The program.
        scalars: Whether it has parameters without dimensions, which also accept Python numbers.
    """

    program: Program
    scalars: bool

    @classmethod
    def of(cls, program: Program) -> Arguments:
        """Create the argument checker of a program."""
        return cls(program, any(not parameter.dims for parameter in program.parameters))

    def _names(self, tensors: Sequence[Any]) -> list[str]:
        names = [parameter.name for parameter in self.program.parameters]
        return [names[i] if i < len(names) else f"input {i}" for i in range(len(tensors))]

    def given_of(self, tensor: Any, name: str) -> Given:
        """Return the shape and dtype of a tensor or shape tuple. Raise TCCallError."""
        import torch

        if not isinstance(tensor, torch.Tensor):
            if isinstance(tensor, tuple | list) and all(isinstance(size, int) for size in tensor):
                dtype = next((p.dtype for p in self.program.parameters if p.name == name), "float32")
                return Given(tuple(tensor), dtype)
            raise TCCallError(
                f"expected a torch.Tensor for `{name}`, got {kind_of(tensor)}",
                where=self.program.name,
                remedy="pass one torch.Tensor per parameter",
            )
        if tensor.is_nested:
            raise TCCallError(f"`{name}` is a nested tensor", where=self.program.name, remedy="pass a dense tensor")
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
                torch.tensor(tensor, dtype=getattr(torch, parameter.dtype))
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
            made = instance(self.program, signature)
            for output in missing:
                outputs[output.name] = torch.ones(made.ranges.shape(output.name), dtype=getattr(torch, output.dtype))
            self._check_outputs(made, outputs)
        return tensors, outputs

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

    def of_inputs(self, tensors: Sequence[Any]) -> list[Given]:
        """Return the shape and dtype of each input, a tensor or a shape tuple. Raise TCCallError."""
        return [self.given_of(tensor, name) for tensor, name in zip(tensors, self._names(tensors), strict=True)]

    def signature(self, tensors: Sequence[Any], out: Mapping[str, Any]) -> list[Given]:
        """Return the shape and dtype of the inputs, then of the outputs that are accumulated into."""
        return [*self.of_inputs(tensors), *(self.given_of(out[o.name], o.name) for o in self.program.given)]
