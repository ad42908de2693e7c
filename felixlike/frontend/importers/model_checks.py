"""Refuse models and programs that cannot be imported, by name and before anything is converted."""

from collections.abc import Collection
from typing import Any

from felixlike._util.torch_compat import is_fake
from felixlike.errors import ExportFailed, InvalidModel, UnsupportedOperator
from felixlike.frontend.importers.dtypes import check_tensor
from felixlike.frontend.importers.graphs import graphs_of

_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
"""Modules of layers whose weights are packed for PyTorch's own quantised kernels."""


def check_kind(model: Any, where: str) -> None:
    """Refuse models that are or contain TorchScript, quantised layers or lazy layers without sizes.

    torch.export cannot look into TorchScript and quantised layers.
    """
    import torch
    from torch.nn import parameter

    for key, part in model.named_modules():
        if type(part).__module__.startswith(_QUANTISED):
            raise InvalidModel(
                f"{key or 'the model'} is quantised ({type(part).__name__} of torch.ao)",
                where=where,
                remedy="pass the original model, before quantisation",
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise InvalidModel(
                f"{key or 'the model'} is a TorchScript module (from torch.jit.trace or torch.jit.script)",
                where=where,
                remedy="use the original nn.Module",
            )
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, (parameter.UninitializedParameter, parameter.UninitializedBuffer)):
            raise InvalidModel(
                f"{key} has no size yet", where=where, remedy="call the model once to initialize its lazy layers"
            )


def check_tensors(model: Any, where: str) -> None:
    """Raise InvalidModel for weights on other devices than the CPU or of unsupported dtypes."""
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise InvalidModel(
                f"{key} is on {tensor.device}",
                where=where,
                remedy="load the weights on the CPU, for example with model.cpu()",
            )
        if not tensor.is_complex():  # `outline` makes them real
            check_tensor(tensor, what=key, where=where)


def check_assigned(program: Any, names: Collection[str], where: str) -> None:
    """Raise ExportFailed if a program reads a tensor that the model assigns to: it would be the same in each call.

    names: those of the attributes that the model assigns to. Those that it computes anew in each call are no state.
    """
    used = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "CONSTANT_TENSOR"]
    kept = sorted(spec.target for spec in specs if spec.arg.name in used and spec.target in names)
    if kept:
        raise ExportFailed(
            f"it keeps {', '.join(kept)} from one call to the next, which is no buffer",
            where=where,
            remedy=f"register it as a buffer: self.register_buffer({kept[0].rpartition('.')[2]!r}, ...)",
        )


def check_state(program: Any, where: str) -> None:
    """Refuse weights without values, whose memory TVM would read."""
    for key, value in {**program.state_dict, **program.constants}.items():
        if is_fake(value):
            raise InvalidModel(
                f"{key} is a FakeTensor, which has no values",
                where=where,
                remedy="create the model outside of FakeTensorMode",
            )


def check_operators(program: Any, known: set[str], where: str, *, dynamic: bool) -> None:
    """Raise UnsupportedOperator for operators that TVM's importer lacks or whose output shape depends on values."""
    nodes = [node for graph in graphs_of(program) for node in graph.nodes if node.op == "call_function"]
    missing = sorted({str(node.target) for node in nodes if node.target.__name__ not in known})
    if "felixlike.run.default" in missing:
        raise UnsupportedOperator(
            "a part of the model is already compiled by felixlike", where=where, remedy="use the original of that part"
        )
    if missing:
        raise UnsupportedOperator(f"TVM cannot import {', '.join(missing)}", where=where, remedy="use other operators")
    for node in nodes:
        if is_dynamic(node.meta.get("val"), unless_decided=dynamic):
            raise UnsupportedOperator(
                f"the output shape of {node.target} depends on tensor values",
                where=where,
                remedy="rewrite the model so that all sizes follow from the input shapes",
            )


def is_dynamic(value: Any, *, unless_decided: bool = False) -> bool:
    """Return whether a tensor has symbolic sizes.

    unless_decided: count only sizes that the inputs' sizes do not determine.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    sizes: list[Any] = list(value.shape)
    symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
    if not unless_decided:
        return bool(symbolic)
    return any(str(symbol).startswith("u") for size in symbolic for symbol in size.node.expr.free_symbols)
