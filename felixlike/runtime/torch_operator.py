"""Define the torch operator felixlike::run, which represents a compiled model in PyTorch graphs.

    run(str model, Tensor[] inputs) -> Tensor[]

torch.compile, torch.export, FakeTensor, make_fx, vmap and the like cannot trace compiled code. They see a call as this
operator. It refers to the model by its key, so exported programs can be saved; they run in processes where the model is
loaded. The outputs are new tensors and carry no gradients.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from felixlike._util.torch_compat import (
    below_autograd,
    has_dispatch_modes,
    in_forward_mode,
    is_differentiated,
    is_tracing,
    is_wrapped,
)
from felixlike._util.torch_modes import once
from felixlike.errors import ModelNotLoaded, WrongContext
from felixlike.frontend import OutputSpec, Sizes


class Callee(Protocol):
    """The part of `callable.Compiled` that the operator uses."""

    key: str
    name: str
    outputs: tuple[OutputSpec, ...]
    sizes: Sizes | None
    device: Any

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs in order."""

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise InputMismatch for invalid inputs."""

    def note_gradients(self, tensors: Sequence[Any]) -> None:
        """Warn if an input requires a gradient."""


_loaded: dict[str, weakref.WeakSet[Callee]] = {}
"""The loaded models by key, copies included."""


def register(compiled: Callee) -> None:
    """Register a compiled model with the operator until it is deleted."""
    _library()
    _loaded.setdefault(compiled.key, weakref.WeakSet()).add(compiled)
    weakref.finalize(compiled, _forget, compiled.key).atexit = False


def prepare() -> None:
    """Define the operator in PyTorch early, since this takes time that the first model would otherwise need."""
    _library()


def run(key: str, tensors: Sequence[Any]) -> list[Any]:
    """Call the operator, so that PyTorch's modes and transforms apply; return the outputs in order."""
    import torch

    outputs: list[Any] = torch.ops.felixlike.run.default(key, list(tensors))
    return outputs


def is_traced(tensors: Sequence[Any]) -> bool:
    """Return whether a PyTorch mode, tracer or transform is active, or a tensor belongs to one."""
    return has_dispatch_modes() or is_tracing() or any(_wraps(tensor) for tensor in tensors)


def refuse_derivatives(where: str, tensors: Sequence[Any]) -> None:
    """Raise WrongContext for derivatives that would silently be zero: those of torch.func and of forward mode."""
    import torch

    forward_ad: Any = torch.autograd.forward_ad
    transformed, forward = is_differentiated(), in_forward_mode()
    if not transformed and not forward:
        return
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        reverse = transformed and tensor.requires_grad
        if reverse or (forward and forward_ad.unpack_dual(tensor).tangent is not None):
            raise WrongContext(
                "a compiled model cannot be differentiated",
                where=where,
                remedy="differentiate the original model",
            )


def _forget(key: str) -> None:
    """Remove a key whose last model was deleted."""
    if not _loaded.get(key):
        _loaded.pop(key, None)


def _find(key: str) -> Callee:
    """Return a loaded model with this key. Raise ModelNotLoaded."""
    for compiled in _loaded.get(key, ()):
        return compiled
    raise ModelNotLoaded(
        f"the compiled model {key!r} is not loaded in this process",
        where="felixlike::run",
        remedy="keep a reference to it while graphs call it; in another process, load its file with felixlike.load",
    )


def _wraps(tensor: Any) -> bool:
    """Return whether a value is a proxy, a functorch wrapper or a tensor subclass with its own dispatch."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return isinstance(tensor, torch.fx.Proxy)
    return is_wrapped(tensor)


@once
def _library() -> Any:
    """Define the operator; it exists as long as the returned library object."""
    import torch

    make: Any = torch.library.Library
    library = make("felixlike", "DEF")
    library.define("run(str model, Tensor[] inputs) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("run", _compute, "CompositeExplicitAutograd")
    library.impl("run", _without_gradients, "Autograd")
    # PyTorch asks where the registration stands. Without this entry, inspect looks at the files of all loaded modules.
    inspect.modulesbyfile[inspect.getabsfile(_pretend)] = __name__
    torch.library.register_fake("felixlike::run", _pretend, lib=library)
    torch.library.register_vmap("felixlike::run", _one_by_one, lib=library)
    return library


def _compute(model: str, inputs: list[Any]) -> list[Any]:
    """Run the model; clone outputs that share memory with inputs or other outputs, as operators must."""
    outputs = _find(model).run(inputs)
    seen = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    for index, tensor in enumerate(outputs):
        place = tensor.untyped_storage().data_ptr()
        if place in seen:
            outputs[index] = tensor.clone()
        seen.add(place)
    return outputs


def _without_gradients(model: str, inputs: list[Any]) -> list[Any]:
    """Run the operator below autograd, after a warning or error about derivatives."""
    compiled = _find(model)
    refuse_derivatives(compiled.name, inputs)
    compiled.note_gradients(inputs)
    with below_autograd():
        return run(model, inputs)


def _pretend(model: str, inputs: list[Any]) -> list[Any]:
    """Return outputs without values, for fake tensors."""

    compiled = _find(model)
    compiled.check(inputs)
    if compiled.sizes is not None:
        raise WrongContext(
            "the sizes of the outputs are known only at runtime",
            where=compiled.name,
            remedy="call the model outside of torch.compile and torch.export",
        )
    return [_empty(spec, compiled.device) for spec in compiled.outputs]


def _empty(spec: OutputSpec, device: Any) -> Any:
    """Return a tensor without values that has an output's shape, dtype, device and memory order."""
    import torch

    order = spec.order or tuple(range(len(spec.shape)))
    return torch.empty_permuted(spec.shape, order, dtype=getattr(torch, spec.dtype), device=device)


def _one_by_one(info: Any, in_dims: tuple[Any, ...], model: str, inputs: list[Any]) -> tuple[list[Any], list[int]]:
    """Implement vmap by one call per element of the batch, since sizes are fixed."""
    import torch

    _, dims = in_dims
    calls = []
    for index in range(info.batch_size):
        element = [
            tensor if dim is None else tensor.select(dim, index) for tensor, dim in zip(inputs, dims, strict=True)
        ]
        calls.append(run(model, element))
    outputs = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    return outputs, [0] * len(outputs)
