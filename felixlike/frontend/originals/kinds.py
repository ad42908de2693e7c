"""Choose the `Original` that evaluates a kind of model.

Input: an nn.Module, an ExportedProgram, an ONNX ModelProto or a Relax IRModule. Output: an `Original`. Where another
tool than TVM can run the model, it shares no importer, decomposition or rewrite of felixlike with the compiled model.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.originals.eager import TorchOriginal
from felixlike.frontend.originals.onnx_reference import OnnxOriginal
from felixlike.frontend.originals.original import Original
from felixlike.frontend.originals.tvm_alone import RelaxOriginal
from felixlike.frontend.signature.mutations import NONE, Mutations
from felixlike.frontend.signature.signature import Signature


def original_of(model: Any, signature: Signature, mutations: Mutations = NONE) -> Original:
    """Return the `Original` that evaluates a model.

    Args:
        model: nn.Module, ExportedProgram, ONNX ModelProto or Relax IRModule. An `Original` is returned unchanged.
        signature: How the model is called.
        mutations: What the model changes in place. The new values are evaluated after the outputs.

    Returns:
        The model in a form that can be evaluated.
    """
    import torch

    if isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        return TorchOriginal(model, signature, mutations)
    if type(model).__name__ == "ModelProto":
        return OnnxOriginal(model)
    if isinstance(model, _tvm.IRModule):
        return RelaxOriginal(model)
    return model  # type: ignore[no-any-return]
