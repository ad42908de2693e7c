"""The torch operator felixlike::comprehension, which represents a tensor comprehension under tracing and transforms.

    comprehension(str source, str name, Tensor[] inputs) -> Tensor[]

torch.export and torch.compile see one operator, which carries the whole text. felixlike.optimize replaces it by the
functions that it consists of. Outputs are new tensors without gradients. An access outside its tensor raises when the
operator runs; in an optimized model it reads the nearest element.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from felixlike._util.torch_compat import below_autograd
from felixlike._util.torch_modes import alone, once
from felixlike.errors import NoGradientWarning, callers_level
from felixlike.frontend.importers.converters import CONVERTERS
from felixlike.tc.call import Given
from felixlike.tc.instance import Instance, emitted, instance, results

_NAME = "comprehension"


_makers: list[Callable[[str, str], Any]] = []
"""The function that makes comprehensions, set by `made_by`; empty before."""


def made_by(define: Callable[[str, str], Any]) -> None:
    """Register the function that makes a comprehension from a text and a name."""
    _makers[:] = [define]


def run(source: str, name: str, tensors: Sequence[Any]) -> list[Any]:
    """Call the operator through PyTorch's dispatcher and return the outputs in order.

    tensors: Parameters, then outputs that are accumulated into.
    """
    import torch

    outputs: list[Any] = torch.ops.felixlike.comprehension.default(source, name, list(tensors))
    return outputs


def prepare() -> None:
    """Register the operator with PyTorch and with the model importer."""
    _library()


@once
def _library() -> Any:
    """Define the operator. It exists as long as the returned library object."""
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
    """Return the cached comprehension of a text."""
    with alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `define` has already warned about suspicious names
        return _makers[0](source, name)


def _made(source: str, name: str, tensors: Sequence[Any]) -> Instance:
    """Return the instance of a text for tensors, which may be fake."""
    program = _comprehension(source, name).program
    signature = [Given(tuple(int(size) for size in t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    return instance(program, signature[: len(program.parameters)])


def _compute(source: str, name: str, inputs: list[Any]) -> list[Any]:
    """Run the operator on real tensors; tensors that are accumulated into are cloned."""
    comprehension = _comprehension(source, name)
    program = comprehension.program
    out = {o.name: t.clone() for o, t in zip(program.given, inputs[len(program.parameters) :], strict=True)}
    outputs = comprehension(*inputs[: len(program.parameters)], out=out or None)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _without_gradients(source: str, name: str, inputs: list[Any]) -> list[Any]:
    """Run the operator below autograd, with a warning if an input requires a gradient."""
    import torch

    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        text = f"{name}: an input requires a gradient, but tensor comprehensions have no gradients; they stop here."
        warnings.warn(NoGradientWarning(text), stacklevel=callers_level())
    with below_autograd():
        return run(source, name, [tensor.detach() for tensor in inputs])


def _pretend(source: str, name: str, inputs: list[Any]) -> list[Any]:
    """Return empty outputs for fake tensors."""
    import torch

    made = _made(source, name, inputs)
    device = inputs[0].device if inputs else None
    return [
        torch.empty(made.ranges.shape(output.name), dtype=getattr(torch, output.dtype), device=device)
        for output in made.program.outputs
    ]


def _one_by_one(info: Any, in_dims: Any, source: str, name: str, inputs: list[Any]) -> tuple[list[Any], list[int]]:
    """Implement vmap: one call for each element of the batch."""
    import torch

    places = in_dims[2]
    calls = [
        run(source, name, [t if at is None else t.select(at, i) for t, at in zip(inputs, places, strict=True)])
        for i in range(info.batch_size)
    ]
    outputs = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    return outputs, [0] * len(outputs)


def _converted(node: Any, importer: Any) -> Any:
    """Emit the calls of the comprehension's functions into the imported model."""
    from felixlike import _tvm

    source, name, arguments = node.args
    made = _made(source, name, [argument.meta["val"] for argument in arguments])
    values = emitted(made, importer.block_builder, [importer.env[argument] for argument in arguments])
    outputs = results(made)[: len(made.program.outputs)]
    return importer.block_builder.emit(_tvm.relax.Tuple([values[output] for output in outputs]))
