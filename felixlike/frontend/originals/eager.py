"""Evaluate a PyTorch model with PyTorch itself, in eager mode.

Input: an nn.Module or ExportedProgram. Output: an `Original`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from felixlike._util.torch_modes import callers_dtype
from felixlike.frontend.originals.original import moved_by_a_rounding
from felixlike.frontend.signature.mutations import NONE, Mutations
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import pytree_warnings_off


class TorchOriginal:
    """Evaluate a module in eval mode, or an ExportedProgram, with PyTorch. Always works on a copy."""

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
        """Return the bytes of a copy's weights. With `wide`, both copies exist while one is converted to float64."""
        tensors = self._tensors()
        copy_bytes = int(sum(tensor.nbytes for tensor in tensors))
        return copy_bytes + sum(8 * t.numel() for t in tensors if t.is_floating_point()) if wide else copy_bytes

    def _tensors(self) -> list[Any]:
        """Return the parameters and buffers, each once."""
        import torch

        model = self._model
        program = isinstance(model, torch.export.ExportedProgram)
        state = model.state_dict if program else dict([*model.named_parameters(), *model.named_buffers()])
        return list({id(tensor): tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)}.values())

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate in eval mode. An exported program keeps the mode that it was exported in.

        New values of tensors that the model changes in place come after the outputs.
        """
        import torch

        module = self._copy()
        tensors = [tensor.clone() for tensor in inputs]
        if wide:
            module = _double(module)
            tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        if moved is not None:
            tensors = moved_by_a_rounding([*tensors, *module.parameters(), *module.buffers()], moved)[: len(tensors)]
        if not isinstance(module, torch.fx.GraphModule):
            module.eval()
        with torch.no_grad(), callers_dtype():
            outputs = self._signature.call(module, tensors)
        if not self._mutations:
            return outputs
        buffers = dict(module.named_buffers(remove_duplicate=False))
        return [
            outputs,
            *(tensors[place] for place in self._mutations.inputs),
            *(buffers[name] for name in self._mutations.buffers),
        ]

    def _copy(self) -> Any:
        """Return a CPU copy of the model or of the program's module."""
        import torch

        model = self._model
        if isinstance(model, torch.export.ExportedProgram):
            model = model.module(check_guards=False)  # shares parameters with the program and the model
        with pytree_warnings_off():
            return copy.deepcopy(model).cpu()


def _double(module: Any) -> Any:
    """Convert a module to float64, and its complex tensors to complex128, which nn.Module.double leaves as they are."""
    import torch

    return module.double()._apply(lambda tensor: tensor.to(torch.complex128) if tensor.is_complex() else tensor)
