"""Run a compiled model with each kernel on guarded copies of its buffers.

Inputs: a model compiled in this process, and its inputs. Output: a description of the first kernel that writes outside
its buffers or to a read-only buffer; empty if none does. Measured candidates have passed the same check
(`measure/check/guarded_buffers.py`). This one covers functions compiled without being measured, and the schedules as
they are in the model.
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
from felixlike.runtime.serial_copy import contiguous_copy

RUN, SKIP = 0, 1
"""Return values of an instrument that make TVM's virtual machine run or skip the call (VMInstrumentReturnKind)."""


def damage_by_kernels(compiled: Compiled, tensors: Sequence[Any]) -> str:
    """Describe the first invalid write of a kernel.

    Args:
        compiled: The model.
        tensors: Flat inputs on the model's device; unchanged.

    Returns:
        A description; empty without an invalid write. It is also empty for models on GPUs, whose kernels may be parts
        of a graph, for models loaded from a file, whose kernels' names are unknown, and for models with several parts,
        each of which is checked separately.
    """
    if compiled.device.type != "cpu" or compiled.lowered is None or isinstance(compiled, Chunked):
        return ""
    machine = compiled._virtual_machine()
    instrument = _Instrument(compiled.lowered)
    machine.set_instrument(instrument)
    compiled._main(machine)(*[contiguous_copy(tensor) for tensor in (*tensors, *compiled.mutations.state)])
    return instrument.words


class _Instrument:
    """An instrument of the virtual machine, called before and after each call. `words` describes the first damage."""

    def __init__(self, lowered: Any) -> None:
        functions = {str(v.name_hint): lowered[v] for v in lowered.get_global_vars()}
        self._kernels = {name: _written(f) for name, f in functions.items() if isinstance(f, _tvm.PrimFunc)}
        self.words = ""

    def __call__(self, function: Any, name: str, before: bool, result: Any, *values: Any) -> int:
        if not before or name not in self._kernels:
            return RUN
        written = self._kernels[name]
        buffers = Buffers(_tvm.runtime.cpu())
        copies = [
            buffers.copied(tensor, f"buffer {index}", constant=index not in written)
            if isinstance(tensor, _tvm.runtime.Tensor)
            else tensor
            for index, tensor in enumerate(map(_of_tvm, values))
        ]
        function(*copies)
        if not self.words and (damage := buffers.damage()):
            self.words = f"kernel {name}: {damage}"
        for index in written:
            if isinstance(copies[index], _tvm.runtime.Tensor):
                copies[index].copyto(_of_tvm(values[index]))
        return SKIP


def _of_tvm(value: Any) -> Any:
    """Convert a torch tensor to a TVM tensor that shares its memory; return other values unchanged."""
    import torch

    return _tvm.runtime.from_dlpack(value) if isinstance(value, torch.Tensor) else value


def _written(func: Any) -> frozenset[int]:
    """Return the indices of the parameters that a kernel writes; all parameters if sizes are dynamic."""
    try:
        return frozenset(index for index, argument in enumerate(arguments(func)) if argument.written)
    except InvalidModel:
        return frozenset(range(len(func.params)))
