"""A Relax module as the user gave it, compiled by TVM alone: no rewrite, schedule rule or pass of felixlike.

In: an IRModule with "main", before `passes.fuse`. Out: an `Original`. Nothing else than TVM runs such a module, so what
it is compared with shares TVM's operators and code generation with what is compiled. Answers are of the module's own
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from felixlike import _tvm
from felixlike.frontend.originals.original import moved_by_a_rounding
from felixlike.hardware import host_target


class RelaxOriginal:
    """A Relax module in TVM's default pipeline, on this machine's CPU."""

    exact = False

    def __init__(self, module: Any) -> None:
        self._module = module

    def name(self, *, wide: bool) -> str:
        """Say what an answer is from."""
        return "TVM's own build of the module as given"

    def memory(self, *, wide: bool) -> int:
        """Return 0: constants are shared with the module."""
        return 0

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate. Constants of the module are not moved.  Raises ValueError for float64, which TVM has no way to."""
        if wide:
            raise ValueError("a Relax module is evaluated in its own precision")
        tensors = [tensor.clone() for tensor in inputs]
        if moved is not None:
            moved_by_a_rounding(tensors, moved)
        return _nested(self._main(*tensors))

    @cached_property
    def _main(self) -> Any:
        target = host_target()
        with target:
            executable = _tvm.tvm.compile(self._module, target=target)
        return _tvm.relax.VirtualMachine(executable, _tvm.device_of(target))["main"]


def _nested(found: Any) -> Any:
    """TVM's tensors and arrays of them as torch's."""
    import torch

    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, _tvm.runtime.Tensor):
        return torch.utils.dlpack.from_dlpack(found)
    return [_nested(part) for part in found]
