"""The torch operator felixlike::comprehension: a tensor comprehension where PyTorch looks on.

    comprehension(str source, str name, Tensor[] inputs) -> Tensor[]

torch.export and torch.compile see one operator, whose text says all there is to know; felixlike.optimize takes it for
the functions that it is made of. Outputs are new tensors and carry no gradients; an access that leaves its tensor
raises where the operator runs, and reads the nearest element in a model that was optimized.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from felixlike._util.torch_modes import alone, once
from felixlike.errors import NoGradientWarning, callers_level
from felixlike.frontend.importers.converters import CONVERTERS
from felixlike.tc.call import Given
from felixlike.tc.instance import Instance, emitted, instance, results

_NAME = "comprehension"


_makers: list[Callable[[str, str], Any]] = []


def made_by(define: Callable[[str, str], Any]) -> None:
    """Say what makes a comprehension of a text and a name."""
    _makers[:] = [define]


def run(source: str, name: str, tensors: Sequence[Any]) -> list[Any]:
    """The outputs in order, as PyTorch's modes and transforms want them.  tensors: parameters, then outputs that are
    accumulated into."""
    import torch

    found: list[Any] = torch.ops.felixlike.comprehension.default(source, name, list(tensors))
    return found


def prepare() -> None:
    """Make the operator known to PyTorch and to the importer of models."""
    _library()


@once
def _library() -> Any:
    """The operator's definition; it lasts as long as what is returned here."""
    import torch

    make: Any = torch.library.Library
    defined = make("felixlike", "FRAGMENT")
    defined.define(f"{_NAME}(str source, str name, Tensor[] inputs) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    defined.impl(_NAME, _compute, "CompositeExplicitAutograd")
    defined.impl(_NAME, _without_gradients, "Autograd")
    torch.library.register_fake(f"felixlike::{_NAME}", _pretend, lib=defined)
    torch.library.register_vmap(f"felixlike::{_NAME}", _one_by_one, lib=defined)
    CONVERTERS[f"{_NAME}.default"] = _converted
    return defined


@functools.lru_cache(maxsize=256)
def _comprehension(source: str, name: str) -> Any:
    with alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was warned of slips where the text was defined
        return _makers[0](source, name)


def _made(source: str, name: str, tensors: Sequence[Any]) -> Instance:
    program = _comprehension(source, name).program
    given = [Given(tuple(int(size) for size in t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    return instance(program, given[: len(program.parameters)])


def _compute(source: str, name: str, inputs: list[Any]) -> list[Any]:
    found = _comprehension(source, name)
    program = found.program
    given = {o.name: t.clone() for o, t in zip(program.given, inputs[len(program.parameters) :], strict=True)}
    outputs = found(*inputs[: len(program.parameters)], out=given or None)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _without_gradients(source: str, name: str, inputs: list[Any]) -> list[Any]:
    import torch

    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        text = f"{name}: an input needs a gradient, but gradients stop here: tensor comprehensions have none."
        warnings.warn(NoGradientWarning(text), stacklevel=callers_level())
    with torch._C._AutoDispatchBelowAutograd():
        return run(source, name, [tensor.detach() for tensor in inputs])


def _pretend(source: str, name: str, inputs: list[Any]) -> list[Any]:
    """The outputs without their values, for inputs without values."""
    import torch

    made = _made(source, name, inputs)
    device = inputs[0].device if inputs else None
    return [
        torch.empty(made.ranges.shape(output.name), dtype=getattr(torch, output.dtype), device=device)
        for output in made.program.outputs
    ]


def _one_by_one(info: Any, in_dims: Any, source: str, name: str, inputs: list[Any]) -> tuple[list[Any], list[int]]:
    """vmap: one call for each element of the batch."""
    import torch

    places = in_dims[2]
    calls = [
        run(source, name, [t if at is None else t.select(at, i) for t, at in zip(inputs, places, strict=True)])
        for i in range(info.batch_size)
    ]
    outputs = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    return outputs, [0] * len(outputs)


def _converted(node: Any, importer: Any) -> Any:
    """The calls of its functions, put into the model that is imported."""
    from felixlike import _tvm

    source, name, arguments = node.args
    made = _made(source, name, [argument.meta["val"] for argument in arguments])
    values = emitted(made, importer.block_builder, [importer.env[argument] for argument in arguments])
    outputs = results(made)[: len(made.program.outputs)]
    return importer.block_builder.emit(_tvm.relax.Tuple([values[output] for output in outputs]))
