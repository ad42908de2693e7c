"""Evaluate a PyTorch model with PyTorch itself, in eager mode.

Input: an nn.Module or ExportedProgram. Output: an `Original`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from felixlike._util.torch_compat import Workspace, converted_at_use, is_converted_at_use, pytree
from felixlike._util.torch_modes import callers_dtype
from felixlike.frontend.originals.original import moved_by_a_rounding
from felixlike.frontend.signature.mutations import NONE, Mutations
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import pytree_warnings_off
from felixlike.hardware.probe import free_memory_bytes

_LARGE_BYTES = 2**20
"""Size in bytes from which a parameter or buffer is converted to float64 for each operator that reads it, not in
advance. Chosen by hand."""


class TorchOriginal:
    """Evaluate a module in eval mode, or an ExportedProgram, with PyTorch. The model itself stays unchanged.

    A copy is evaluated. In float64 it shares the model's large parameters and buffers, and converts each for the
    operators that read it. Buffers that the model is known to change are copied. If the model does anything else with
    the shared ones, all are converted in advance, if the memory suffices.
    """

    exact = True

    def __init__(self, model: Any, signature: Signature, mutations: Mutations = NONE) -> None:
        self._model, self._signature, self._mutations = model, signature, mutations

    def name(self, *, wide: bool) -> str:
        """Return the precision of the reference: "float64", or the model's own."""
        if wide:
            return "float64"
        precisions = {tensor.dtype for tensor in self._tensors() if tensor.is_floating_point()}
        return str(precisions.pop()).removeprefix("torch.") if len(precisions) == 1 else "the model's own precision"

    def memory(self, *, wide: bool) -> int:
        """Return the bytes of a copy's weights. With `wide`, of small weights and of the largest one in float64, twice:
        its operator may copy it to another layout.
        """
        tensors = self._tensors()
        if not wide:
            return int(sum(tensor.nbytes for tensor in tensors))
        shared = self._shared(self._model)
        large = [tensor for tensor in tensors if id(tensor) in shared]
        small = [tensor for tensor in tensors if id(tensor) not in shared]
        return _wide_bytes(small) + max((2 * 8 * tensor.numel() for tensor in large), default=0)

    def _tensors(self) -> list[Any]:
        """Return the parameters and buffers, each once."""
        import torch

        state = _named_tensors(self._model).values()
        return list({id(tensor): tensor for tensor in state if isinstance(tensor, torch.Tensor)}.values())

    def _shared(self, model: Any) -> dict[int, Any]:
        """Return the large tensors of a model by identity, without buffers that a call changes."""
        tensors = _named_tensors(model)
        changed = {id(tensors[name]) for name in self._mutations.buffers if name in tensors}
        return {id(t): t for t in tensors.values() if _is_large(t) and id(t) not in changed}

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate in eval mode. An exported program keeps the mode that it was exported in.

        New values of tensors that the model changes in place come after the outputs.
        """
        if wide and moved is None and self._shared(self._model):
            try:
                return self._outputs(_with_wide_small_tensors(self._copy(shares_large=True)), inputs, wide=True)
            except Exception:  # a model may do anything with its weights
                free = free_memory_bytes()
                if free is not None and _wide_bytes(self._tensors()) > free:
                    raise
        module = self._copy()
        return self._outputs(module._apply(_wide) if wide else module, inputs, wide=wide, moved=moved)

    def _outputs(self, module: Any, inputs: Sequence[Any], *, wide: bool, moved: int | None = None) -> Any:
        """Evaluate a copy of the model, which may change it.

        wide: Whether the copy is in float64.
        """
        import torch

        tensors = [tensor.clone() for tensor in inputs]
        if wide:
            tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        if moved is not None:
            tensors = moved_by_a_rounding([*tensors, *module.parameters(), *module.buffers()], moved)[: len(tensors)]
        if not isinstance(module, torch.fx.GraphModule):
            module.eval()
        elif wide:
            _widen_conversions(module)
        with torch.no_grad(), callers_dtype(), _exported_attention():
            outputs = self._signature.call(module, tensors)
        if any(map(is_converted_at_use, pytree().tree_leaves(outputs))):
            raise TypeError("the model returns a parameter")
        if not self._mutations:
            return outputs
        buffers = dict(module.named_buffers(remove_duplicate=False))
        return [
            outputs,
            *(tensors[place] for place in self._mutations.inputs),
            *(buffers[name] for name in self._mutations.buffers),
        ]

    def _copy(self, *, shares_large: bool = False) -> Any:
        """Return a CPU copy of the model or of the program's module.

        shares_large: Whether its large parameters and buffers are the model's, converted to float64 when they are read.
        """
        import torch

        model = self._model
        if isinstance(model, torch.export.ExportedProgram):
            model = model.module(check_guards=False)  # shares parameters with the program and the model
        shared, workspace = {}, Workspace()
        if shares_large:
            for key, tensor in self._shared(model).items():
                wide = converted_at_use(tensor.detach().cpu(), torch.float64, workspace)
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                shared[key] = torch.nn.Parameter(wide, requires_grad=False) if is_parameter else wide
        with pytree_warnings_off():
            copied = copy.deepcopy(model, _computed(model) | shared)
        return copied if shares_large else copied.cpu()


@contextlib.contextmanager
def _exported_attention() -> Iterator[None]:
    """Let transformer encoders compute what torch.export captures, as they do where gradients are enabled.

    Without gradients, `nn.TransformerEncoder` writes zeros at the places that a padding mask hides.
    """
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _computed(model: Any) -> dict[int, Any]:
    """Return copies of the attributes that a module has computed from its parameters, by identity.

    Python cannot copy them. `torch.nn.utils.weight_norm` computes such weights before each call.
    """
    import torch

    values = [value for part in model.modules() for value in vars(part).values()]
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.grad_fn is not None]
    return {id(tensor): tensor.detach().clone() for tensor in tensors}


def _widen_conversions(module: Any) -> None:
    """Let an exported graph compute in float64: remove its checks of dtypes, and convert to float64 where it converts
    floats to the dtype that they had when it was exported.
    """
    import torch

    aten: Any = torch.ops.aten
    for node in list(module.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
        elif getattr(node.target, "overloadpacket", None) in (aten.to, aten._to_copy):
            before, after = (getattr(n.meta.get("val"), "dtype", None) for n in (node.args[0], node))
            if before is after is not None and after.is_floating_point:
                wide = {after: torch.float64}
                node.args = tuple(wide.get(x, x) if isinstance(x, torch.dtype) else x for x in node.args)
                node.kwargs = {k: wide.get(x, x) if isinstance(x, torch.dtype) else x for k, x in node.kwargs.items()}
    module.recompile()


def _wide(tensor: Any) -> Any:
    """Convert a tensor to float64, or to complex128, which nn.Module.double does not do."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _named_tensors(model: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a module or a program, under all their names."""
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        return dict(model.state_dict)
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])


def _is_large(tensor: Any) -> bool:
    """Return whether a tensor is converted to float64 only when it is read."""
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.nbytes >= _LARGE_BYTES


def _with_wide_small_tensors(module: Any) -> Any:
    """Return a module whose parameters that are not large, and whose buffers, are converted to float64 on the CPU."""
    for parameter in module.parameters():
        if not is_converted_at_use(parameter):
            parameter.data = _wide(parameter.data.cpu())
    narrow = {id(buffer): buffer for buffer in module.buffers() if not is_converted_at_use(buffer)}
    wide = {key: _wide(buffer.cpu()) for key, buffer in narrow.items()}  # a buffer with several names stays one
    for part in module.modules():
        part._buffers.update({name: wide[id(b)] for name, b in part._buffers.items() if id(b) in wide})
    return module


def _wide_bytes(tensors: Sequence[Any]) -> int:
    """Return the bytes of copies of tensors and of the copies' float64 values, which exist together."""
    return int(sum(t.nbytes + (8 * t.numel() if t.is_floating_point() else 0) for t in tensors))
