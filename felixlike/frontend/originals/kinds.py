"""Which `Original` evaluates a kind of model.

In: an nn.Module, an ExportedProgram, an ONNX ModelProto or a Relax IRModule. Out: an `Original`, which shares none of
felixlike's importing, decompositions and rewrites with the compiled model, where anything else can run it.
"""

from __future__ import annotations

from typing import Any

from felixlike import _tvm
from felixlike.frontend.originals.eager import TorchOriginal
from felixlike.frontend.originals.onnx_reference import OnnxOriginal
from felixlike.frontend.originals.original import Original
from felixlike.frontend.originals.tvm_alone import RelaxOriginal
from felixlike.frontend.signature.signature import Signature


def original_of(model: Any, signature: Signature) -> Original:
    """Return a model as something to be evaluated; an `Original` as it is.  signature: how the model is called."""
    import torch

    if isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        return TorchOriginal(model, signature)
    if type(model).__name__ == "ModelProto":
        return OnnxOriginal(model)
    if isinstance(model, _tvm.IRModule):
        return RelaxOriginal(model)
    return model  # type: ignore[no-any-return]
