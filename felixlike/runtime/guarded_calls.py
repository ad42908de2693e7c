"""Run a compiled model once more, each kernel on guarded copies of its buffers.

In: a Compiled of this process, inputs. Out: in words, the first kernel that writes outside of its buffers or changes
what it only reads; empty if none does. Candidates were looked at like this when they were measured
(`measure/check/guarded_buffers.py`); this covers what was compiled without being measured, and the schedules as the
model has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felixlike import _tvm
from felixlike.errors import InvalidModel
from felixlike.frontend.signature.arguments import arguments
from felixlike.measure.check.guarded_buffers import Buffers
from felixlike.runtime.batch_buckets import Chunked
from felixlike.runtime.callable import Compiled

_RUN, _SKIP = 0, 1
"""What TVM's virtual machine does after an instrument was called: the call, or nothing (VMInstrumentReturnKind)."""


def damage_by_kernels(compiled: Compiled, tensors: Sequence[Any]) -> str:
    """Say which kernel writes to what is not its own.

    Empty for models on GPUs, where kernels may be parts of a graph; for those loaded from a file, whose kernels are not
    known by name; and for models in parts, each of which is looked at by itself.

    Args:
        compiled: the model.
        tensors: flat inputs on its device, which stay as they are."""
    if compiled.device.type != "cpu" or compiled.lowered is None or isinstance(compiled, Chunked):
        return ""
    machine = compiled._virtual_machine()
    found = _Instrument(compiled.lowered)
    machine.set_instrument(found)
    machine["main"](*[tensor.clone(memory_format=compiled._contiguous) for tensor in tensors])
    return found.words


class _Instrument:
    """Called by the virtual machine before and after each call.  words: of the first damage."""

    def __init__(self, lowered: Any) -> None:
        functions = {str(v.name_hint): lowered[v] for v in lowered.get_global_vars()}
        self._kernels = {name: _written(f) for name, f in functions.items() if isinstance(f, _tvm.PrimFunc)}
        self.words = ""

    def __call__(self, function: Any, name: str, before: bool, result: Any, *given: Any) -> int:
        if not before or name not in self._kernels or self.words:
            return _RUN
        written = self._kernels[name]
        buffers = Buffers(_tvm.runtime.cpu())
        copies = [
            buffers.copied(tensor, f"buffer {index}", constant=index not in written)
            if isinstance(tensor, _tvm.runtime.Tensor)
            else tensor
            for index, tensor in enumerate(map(_of_tvm, given))
        ]
        function(*copies)
        if damage := buffers.damage():
            self.words = f"kernel {name}: {damage}"
        for index in written:
            if isinstance(copies[index], _tvm.runtime.Tensor):
                copies[index].copyto(_of_tvm(given[index]))
        return _SKIP


def _of_tvm(value: Any) -> Any:
    """A tensor of torch's as one of TVM's, in the same memory; anything else as it is."""
    import torch

    return _tvm.runtime.from_dlpack(value) if isinstance(value, torch.Tensor) else value


def _written(func: Any) -> frozenset[int]:
    """Which parameters a kernel stores to; all where sizes are open."""
    try:
        return frozenset(index for index, argument in enumerate(arguments(func)) if argument.written)
    except InvalidModel:
        return frozenset(range(len(func.params)))
